"""Messages between a store and a helper that runs an engine.

They are JSON: a helper that ran wild must not be able to run code in the store, as pickles can.
Values travel in shared memory, and names are ASCII.
"""

import json
from multiprocessing.connection import Connection
from typing import Final

from kvstore.remote import errors
from kvstore.remote.errors import EngineRefused, RemoteError

MOST_MESSAGE_BYTES: Final = 16 << 20
READY: Final = "ready"
ITEM: Final = "item"
DONE: Final = "done"
ERROR: Final = "error"
STOP: Final = "stop"
# Strings, numbers, truth values, None, and lists of them.
Message = list[object]


def send(connection: Connection, message: Message) -> None:
    """Sends a message. Raises OSError."""
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> Message:
    """Returns the next message, of at most ``MOST_MESSAGE_BYTES``. Raises OSError or EOFError."""
    message = json.loads(connection.recv_bytes(MOST_MESSAGE_BYTES))
    if not isinstance(message, list) or not message:
        raise OSError(f"a message that is no list: {str(message)[:40]}")
    return message


def packed_error(error: Exception) -> Message:
    """Returns an error as a message has it."""
    return [ERROR, type(error).__name__, str(error)]


def error_of(message: Message) -> RemoteError:
    """Returns the error of a message. One of the engine's own classes is a refusal."""
    name, text = str(message[1]), str(message[2])
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RemoteError):
        return kind(text)
    return EngineRefused(f"{name}: {text}")
