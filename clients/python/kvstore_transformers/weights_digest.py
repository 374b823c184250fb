"""A model's identity: a digest of its weights and configuration, not its name."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torch import Tensor, uint8
from transformers import PreTrainedModel

from kvstore_transformers.cache_folder import cache_folder

# Reading less than this takes well under a second, so the digest is not worth remembering.
REMEMBER_FROM_BYTES: Final = 64 << 20
CONFIG_FILES: Final = ("config.json", "adapter_config.json")


def folder_digest(folder: Path) -> str:
    """Returns the digest of a folder's configuration and safetensors files, 64 hexadecimal digits.

    Remembers a large folder's digest in the cache folder, by every file's name, size, inode and
    times of change, so that a changed file is read again. Raises ``FileNotFoundError`` if the
    folder has no configuration or no safetensors file.
    """
    files = list(_digested_files(folder))
    if sum(file.stat().st_size for file in files) < REMEMBER_FROM_BYTES:
        return _digest_files(files)
    stamp = json.dumps([str(folder.resolve()), *(_stamp(file) for file in files)])
    memory = cache_folder() / "digests" / hashlib.sha256(stamp.encode()).hexdigest()
    if memory.is_file():
        return memory.read_text()
    digest = _digest_files(files)
    memory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = memory.with_suffix(f".{os.getpid()}")
    unfinished.write_text(digest)
    unfinished.rename(memory)
    return digest


def module_digest(module: PreTrainedModel) -> str:
    """Returns the digest of a built model, as 64 hexadecimal digits.

    It covers the class, the configuration and the weights, but not the model's name or folder.
    """
    config = json.loads(module.config.to_json_string(use_diff=False))
    config.pop("_name_or_path", None)
    named = [type(module).__module__, type(module).__qualname__, config]
    hasher = hashlib.sha256(json.dumps(named, sort_keys=True).encode())
    tensors: dict[str, Tensor] = module.state_dict()
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().cpu().contiguous().flatten().view(uint8).numpy().data)
    return hasher.hexdigest()


def _digested_files(folder: Path) -> Iterator[Path]:
    weights = sorted(folder.glob("*.safetensors"))
    if not weights or not (folder / CONFIG_FILES[0]).is_file():
        raise FileNotFoundError(f"{folder} has no {CONFIG_FILES[0]} with *.safetensors beside it")
    yield from (folder / name for name in CONFIG_FILES if (folder / name).is_file())
    yield from weights


def _digest_files(files: list[Path]) -> str:
    hasher = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            own = hashlib.file_digest(content, "sha256").hexdigest()
        hasher.update(f"{file.name} {own}\n".encode())
    return hasher.hexdigest()


def _stamp(file: Path) -> list[str | int]:
    found = file.stat()
    return [file.name, found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]
