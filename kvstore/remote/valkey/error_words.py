"""The errors that Valkey and Redis answer, each with its class."""

from collections.abc import Mapping
from typing import Final

from kvstore.remote.errors import (
    ClusterDown,
    CommandForbidden,
    CredentialRefused,
    EngineBusy,
    EngineFull,
    EngineLoading,
    EngineNotPersisting,
    EngineReadOnly,
    EngineRefused,
    RemoteError,
    ReplicasMissing,
    TryAgain,
    WrongNode,
)

# First words of the server's errors.
ERRORS: Final[Mapping[bytes, type[RemoteError]]] = {
    b"ASK": WrongNode,
    b"BUSY": EngineBusy,
    b"CLUSTERDOWN": ClusterDown,
    b"CROSSSLOT": WrongNode,
    b"LOADING": EngineLoading,
    b"MASTERDOWN": ClusterDown,
    b"MISCONF": EngineNotPersisting,
    b"MOVED": WrongNode,
    b"NOAUTH": CredentialRefused,
    b"NOPERM": CommandForbidden,
    b"NOREPLICAS": ReplicasMissing,
    b"OOM": EngineFull,
    b"READONLY": EngineReadOnly,
    b"TRYAGAIN": TryAgain,
    b"WRONGPASS": CredentialRefused,
}


def error_of(line: bytes) -> RemoteError:
    """Returns the error of a reply's line, without its dash. An unknown word is a refusal."""
    word = line.split(b" ", 1)[0]
    return ERRORS.get(word, EngineRefused)(line.decode("ascii", "backslashreplace"))
