"""Repositories of a hub, as they were downloaded."""

import os
from pathlib import Path
from typing import Any

from kvstore_vllm.unidentifiable import UnidentifiableModel


def hub_snapshot(name: str, revision: str | None = None, cache_dir: str | None = None) -> Path:
    """Return the local folder of a hub's repository, as it was downloaded.

    Raises ``UnidentifiableModel`` where it is not there, or nothing can tell.
    """
    if os.environ.get("VLLM_USE_MODELSCOPE", "").lower() == "true":
        raise UnidentifiableModel(f"{name} is of ModelScope, whose cache kvstore does not read")
    try:
        import huggingface_hub  # noqa: PLC0415  # vLLM brings it; only it knows its cache
    except ImportError as error:
        raise UnidentifiableModel(f"{name} is no folder") from error
    find: Any = huggingface_hub.snapshot_download
    try:
        return Path(find(name, revision=revision, cache_dir=cache_dir, local_files_only=True))
    except Exception as error:  # a library's many ways to say that it is not there
        raise UnidentifiableModel(f"{name} is no folder, and not downloaded: {error}") from error
