"""The spellings of a secret in a log: all that a program makes of bytes or token ids."""

import struct
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator

# Fewer bytes than this are in any log by chance.
LEAST = 8


def spellings(secret: bytes) -> Iterator[bytes]:
    """Yields the ways in which ``secret`` may be written, or a good part of it."""
    assert len(secret) >= LEAST
    yield secret
    yield secret[: len(secret) // 2]
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield secret.hex(" ").encode()
    # What other bytes it may be written behind moves it by one or two.
    for skipped in range(3):
        whole = secret[skipped:][: (len(secret) - skipped) // 3 * 3]
        yield b64encode(whole)
        yield urlsafe_b64encode(whole)
    yield repr(secret)[2:-1].encode()
    yield str(secret, "latin-1").encode("unicode_escape")
    for numbers in (secret, *_token_ids(secret)):
        for between in (", ", ",", " ", "\n"):
            yield between.join(str(each) for each in numbers[:3]).encode()


def _token_ids(secret: bytes) -> Iterator[tuple[int, ...]]:
    if len(secret) % 4 == 0:
        yield struct.unpack(f"<{len(secret) // 4}I", secret)


def found(log: bytes, secrets: dict[str, bytes]) -> list[str]:
    """Returns the names of the secrets that a log has in some spelling."""
    return [
        name
        for name, secret in secrets.items()
        if any(each in log for each in spellings(secret) if len(each) >= LEAST)
    ]
