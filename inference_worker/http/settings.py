"""The HTTP server's bounds."""

from dataclasses import dataclass
from typing import Final

from inference_worker.http.api_keys import ApiKeys

# Seconds that running requests get after SIGTERM.
GRACE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """What bounds a request; ``api_keys`` None lets everybody in.

    A body of more than ``max_body_bytes`` is refused before it is read whole, and one that is
    slower than ``body_seconds`` too. Of one request at most ``max_choices`` answers are computed:
    its prompts times ``n``.
    """

    api_keys: ApiKeys | None = None
    max_body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    max_choices: int = 16
