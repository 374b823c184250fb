"""Objects of the library obstore: their paths, and the classes of its errors."""

import re
from typing import Final

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from kvstore.remote.errors import (
    CommandForbidden,
    CredentialRefused,
    EngineBusy,
    EngineRefused,
    EngineUnreachable,
    RemoteError,
)

_STATUS: Final = re.compile(r"status code: ([0-9]{3})")
# Of HTTP: too many requests, and a service that is not available.
_BUSY: Final = frozenset({"429", "503"})
# The text of an error has the whole reply of a server.
_MOST_TEXT: Final = 300


def path_of(name: bytes) -> str:
    """Returns the path of the object that has a value."""
    return name.decode("ascii")


def remote_error(error: BaseError | OSError) -> RemoteError:
    """Returns the error of ours for one of obstore or of the file system."""
    text = str(error)[:_MOST_TEXT]
    status = _STATUS.search(str(error))
    match error:
        case PermissionError() | PermissionDeniedError():
            return CommandForbidden(text)
        case UnauthenticatedError():
            return CredentialRefused(text)
        case OSError():
            return EngineUnreachable(text)
    if status is not None and status[1] in _BUSY:
        return EngineBusy(text)
    if status is not None and status[1].startswith("4"):
        return EngineRefused(text)
    # A refused connection, an unknown host, or a server that failed.
    return EngineUnreachable(text)
