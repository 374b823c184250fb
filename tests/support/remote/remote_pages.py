"""Pages of a remote tier with random content, and secrets."""

import random
from dataclasses import dataclass
from hashlib import blake2b

from kvstore.remote.secret.names import RemotePage

SECRET = bytes(range(32))
OTHER_SECRET = bytes(range(1, 33))


@dataclass(frozen=True)
class WrittenPage:
    """A page as it was asked for, its bytes, and the tokens that its digest came from."""

    page: RemotePage
    content: bytes
    tokens: bytes


def written_page(seed: int, page_bytes: int = 4096, *, namespace: bytes = b"n") -> WrittenPage:
    """Returns a page whose every part comes from a seed."""
    generator = random.Random(seed)
    tokens = generator.randbytes(64)
    page = RemotePage(
        namespace_digest=blake2b(namespace, digest_size=32).digest(),
        shard=generator.randrange(64),
        revision=generator.randbytes(16),
        page_digest=blake2b(tokens, digest_size=32).digest(),
        valid_tokens=16,
        page_bytes=page_bytes,
    )
    return WrittenPage(page, generator.randbytes(page_bytes), tokens)


def leaks(shown: bytes, *hidden: bytes, length: int = 8) -> list[bytes]:
    """Returns which hidden parts show any run of so many bytes, in binary or as digits."""
    runs, digits = _runs(shown, length), _runs(shown.lower(), 2 * length)
    return [
        part
        for part in hidden
        if any(run in runs or run.hex().encode() in digits for run in _runs(part, length))
    ]


def _runs(content: bytes, length: int) -> set[bytes]:
    return {content[at : at + length] for at in range(len(content) - length + 1)}
