"""Pages of a remote tier with random content, and secrets."""

import random
from dataclasses import dataclass
from hashlib import blake2b

from kvstore.remote.names import RemotePage

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


def leaks(shown: bytes, hidden: bytes, length: int = 8) -> bool:
    """Returns whether something shown has any run of bytes of something hidden, or its digits."""
    runs = {hidden[at : at + length] for at in range(len(hidden) - length + 1)}
    digits = shown.lower()
    return any(run in shown or run.hex().encode() in digits for run in runs)
