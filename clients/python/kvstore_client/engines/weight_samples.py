"""A digest of a weights file from samples, without reading all of it.

It covers a safetensors file's size and header, and a sample of each tensor. Fine-tuning changes
nearly every element of a tensor that it touches, so 4 KiB of each are enough: if one element in a
hundred changed, 2,048 of them all look the same once in a billion.

Some tensors are trained by the row: embeddings (new tokens) and experts that share one tensor.
Those are read by the row or whole.

An attacker can write weights with equal samples. The hash is therefore fast (XXH3, 128 bits) and
not cryptographic.
"""

import json
import os
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from xxhash import xxh3_128

from kvstore_client.engines.canonical import UnidentifiableModel

SAMPLE_BYTES: Final = 4096
HEADER_LENGTH_BYTES: Final = 8
# A longer header is invalid: that of 90,000 tensors has 10 MB.
LONGEST_HEADER: Final = 256 << 20
# Parts of the names of tensors with a row for each token, or for each position.
EMBEDDING_NAMES: Final = ("embed", "wte", "wpe")
# A tensor with more than two dimensions counts as several, one for each index of its first.
MATRIX_DIMENSIONS: Final = 2
WHOLE_STEP: Final = 1 << 20


class TensorPlace(NamedTuple):
    """The place of a tensor's bytes in its file."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


def sampled_digest(file: Path) -> bytes:
    """Returns 32 bytes that distinguish this safetensors file from one with another tensor in it.

    Neither its name nor its times count. Raises ``UnidentifiableModel`` for a file that is no
    safetensors file, and ``OSError``.
    """
    with file.open("rb", buffering=0) as source:
        descriptor = source.fileno()
        size = os.fstat(descriptor).st_size
        header = _header(descriptor, size, file)
        samples = xxh3_128()
        for place in _tensors(header, size, file):
            for start, end in _read_of(place):
                samples.update(_read(descriptor, start, end, file))
    stated = size.to_bytes(HEADER_LENGTH_BYTES, "little") + header
    return sha256(stated + samples.digest()).digest()


def _header(descriptor: int, size: int, file: Path) -> bytes:
    length = int.from_bytes(os.pread(descriptor, HEADER_LENGTH_BYTES, 0), "little")
    if not 0 < length <= min(size - HEADER_LENGTH_BYTES, LONGEST_HEADER):
        raise UnidentifiableModel(f"{file} is no safetensors file")
    return _read(descriptor, HEADER_LENGTH_BYTES, HEADER_LENGTH_BYTES + length, file)


def _tensors(header: bytes, size: int, file: Path) -> Iterator[TensorPlace]:
    data = HEADER_LENGTH_BYTES + len(header)
    try:
        described: Mapping[str, Any] = json.loads(header)
        for name, facts in sorted(described.items()):
            if name == "__metadata__":
                continue
            start, end = facts["data_offsets"]
            place = TensorPlace(name, tuple(facts["shape"]), data + start, data + end)
            if not data <= place.start <= place.end <= size:
                raise UnidentifiableModel(f"{file} is cut off: {name} ends at {place.end}")
            yield place
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise UnidentifiableModel(f"{file} has no safetensors header: {error!r}") from error
    except json.JSONDecodeError as error:
        raise UnidentifiableModel(f"{file} has no safetensors header: {error}") from error


def _read_of(place: TensorPlace) -> Iterator[tuple[int, int]]:
    """Yields the parts of a tensor that are sampled."""
    length = place.end - place.start
    if length <= SAMPLE_BYTES or any(part in place.name for part in EMBEDDING_NAMES):
        for start in range(place.start, place.end, WHOLE_STEP):
            yield start, min(start + WHOLE_STEP, place.end)
        return
    parts = place.shape[0] if len(place.shape) > MATRIX_DIMENSIONS else 1
    step = length // parts
    for part in range(parts):
        sample = min(SAMPLE_BYTES, step)
        start = place.start + part * step + _offset(f"{place.name} {part}", step - sample)
        yield start, start + sample


def _offset(name: str, most: int) -> int:
    """Returns an offset from 0 to ``most`` that follows from a name."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "little") % (most + 1)


def _read(descriptor: int, start: int, end: int, file: Path) -> bytes:
    parts: list[bytes] = []
    while start < end:
        part = os.pread(descriptor, end - start, start)
        if not part:
            raise UnidentifiableModel(f"{file} ends before its byte {end}")
        parts.append(part)
        start += len(part)
    return b"".join(parts)
