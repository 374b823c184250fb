"""The LoRA adapters of an engine's start: digests of their files, by SGLang's ids."""

import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from kvstore_client.engines.canonical import UnidentifiableModel, canonical_json, framed
from kvstore_client.engines.model_folder import folder_digest, hub_snapshot

MARK: Final = b"kvstore_sglang adapter 1"
DIGEST_BYTES: Final = 32
# Settings that decide over an adapter's KV. The rest limits their number.
COUNTED: Final = (
    *("lora.lora_target_modules", "lora.lora_backend", "lora.experts_shared_outer_loras"),
    "lora.lora_use_virtual_experts",
)


def adapter_digests(settings: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns 32 bytes for each adapter of ``--lora-paths``, by SGLang's id of it.

    SGLang makes these ids of names and paths, whose files may be others in the next server. An
    adapter whose files cannot be read gets bytes of chance, so that it is shared with nobody. An
    adapter that is loaded later has an id of chance from SGLang.
    """
    facts = canonical_json([settings.get(name) for name in COUNTED], "lora")
    return {
        str(each.lora_id): _digest(str(each.lora_path), facts)
        for each in settings.get("lora.lora_paths") or ()
    }


def _digest(path: str, facts: bytes) -> bytes:
    try:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            folder = hub_snapshot(path)
        return sha256(framed(MARK, facts, folder_digest(folder))).digest()
    except (OSError, UnidentifiableModel):
        return secrets.token_bytes(DIGEST_BYTES)
