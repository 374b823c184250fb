"""A digest of a model's folder: its weights, configuration and code."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from kvstore_client.engines.canonical import UnidentifiableModel, framed
from kvstore_client.engines.weight_samples import sampled_digest

# Variables that make an engine read ModelScope in place of the hub.
MODELSCOPE: Final = ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE")


def hub_snapshot(name: str, revision: str | None = None, cache_dir: str | None = None) -> Path:
    """Returns the local folder of a hub's repository, as it was downloaded.

    Raises ``UnidentifiableModel`` if it is absent or is on ModelScope, and without
    huggingface_hub.
    """
    if any(os.environ.get(each, "").lower() in ("true", "1") for each in MODELSCOPE):
        raise UnidentifiableModel(f"{name} is of ModelScope, whose cache kvstore does not read")
    try:
        import huggingface_hub  # noqa: PLC0415  # an engine brings it; only it knows its cache
    except ImportError as error:
        raise UnidentifiableModel(f"{name} is no folder") from error
    find: Any = huggingface_hub.snapshot_download
    try:
        return Path(find(name, revision=revision, cache_dir=cache_dir, local_files_only=True))
    except Exception as error:  # a library's many ways to say that it is not there
        raise UnidentifiableModel(f"{name} is no folder, and not downloaded: {error}") from error


WEIGHTS: Final = ".safetensors"
# Other files that may decide over the weights' use: quantization, image processing, code.
CONFIGURATION: Final = (".json", ".py", ".yaml", ".txt")
# Files that decide over text and sampling alone, and leftovers of training.
TEXT_ONLY: Final = (
    *("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "chat_template"),
)
NOT_READ: Final = ("generation_config", "trainer_state", "training_args", "README", "LICENSE")
# In a hub's cache, a snapshot's files are links to files named by the digest of their content:
# SHA-256 for large files, else git's.
BLOBS: Final = "blobs"
CONTENT_NAME_DIGITS: Final = (40, 64)
HEX_DIGITS: Final = frozenset("0123456789abcdef")
LARGEST_CONFIGURATION: Final = 64 << 20


def folder_digest(folder: Path) -> bytes:
    """Returns 32 bytes that identify a folder's weights and configuration.

    Neither its path nor any time counts, so each process gets the same, on any day. Raises
    ``UnidentifiableModel`` if safetensors files are absent or broken, and ``OSError`` if files
    cannot be read.
    """
    files = list(_files(folder))
    weights = [each for each in files if each.suffix == WEIGHTS]
    if not weights:
        raise UnidentifiableModel(f"{folder} has no safetensors files")
    parts: list[bytes] = []
    for file in files:
        digest = _content_name(file)
        if file.suffix == WEIGHTS:
            digest = digest or sampled_digest(file)
        elif _is_configuration(file):
            digest = digest or _whole_digest(file)
        else:
            continue
        parts += [file.relative_to(folder).as_posix().encode(), digest]
    return sha256(framed(*parts)).digest()


def folder_stamp(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Returns a value that changes with any file of a folder: names, sizes, inodes, times."""
    return tuple(_stamps(folder))


def _files(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder and of its subfolders, without hidden ones."""
    for each in sorted(folder.rglob("*")):
        below = each.relative_to(folder)
        if each.is_file() and not any(part.startswith(".") for part in below.parts):
            yield each


def _stamps(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    for each in _files(folder):
        found = each.stat()
        yield str(each), found.st_size, found.st_ino, found.st_mtime_ns


def _content_name(file: Path) -> bytes:
    """Returns the content's digest in the name of a hub snapshot's file; else ``b""``."""
    target = file.resolve()
    name = target.name
    if (
        file.is_symlink()
        and target.parent.name == BLOBS
        and len(name) in CONTENT_NAME_DIGITS
        and HEX_DIGITS.issuperset(name)
    ):
        return b"content " + name.encode()
    return b""


def _is_configuration(file: Path) -> bool:
    return file.suffix in CONFIGURATION and not file.name.startswith(TEXT_ONLY + NOT_READ)


def _whole_digest(file: Path) -> bytes:
    if file.stat().st_size > LARGEST_CONFIGURATION:
        raise UnidentifiableModel(f"{file} is too large for a configuration file")
    return sha256(file.read_bytes()).digest()
