"""The user of a request, by its key."""

from starlette.requests import Request

from inference_worker.http.api_keys import ApiKeys
from inference_worker.http.problem import Problem


def user_of(request: Request, keys: ApiKeys | None) -> str | None:
    """Returns the user, None if no keys are required.

    Raises :class:`Problem` if a key is required and missing or wrong.
    """
    if keys is None:
        return None
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    user = keys.user_of(key.strip()) if scheme.lower() == "bearer" else None
    if user is None:
        raise Problem(
            401,
            "Incorrect API key provided; it goes into the header 'Authorization: Bearer KEY'.",
            kind="authentication_error",
            code="invalid_api_key",
        )
    return user
