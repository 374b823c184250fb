"""The identity of a LoRA adapter: a digest of its files, not its name."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final

from kvstore_client.engines.canonical import UnidentifiableModel, framed
from kvstore_client.engines.model_folder import folder_digest, folder_stamp, hub_snapshot
from kvstore_vllm.engine.vllm_types import LoraLike

MARK: Final = b"kvstore_vllm adapter 1"


class UndigestableAdapter(ValueError):
    """The identity of a LoRA adapter's weights is unknown."""


@dataclass(frozen=True)
class _Known:
    stamp: object
    digest: bytes


class AdapterDigests:
    """The digests of an engine's adapters, each read once.

    Any thread may use it. ``engine_facts`` are the engine's other factors of an adapter's KV,
    such as the type that it is computed in.
    """

    def __init__(self, engine_facts: Mapping[str, str] | None = None) -> None:
        facts = sorted((engine_facts or {}).items())
        self._facts = framed(*(f"{name}={value}".encode() for name, value in facts))
        self._known: dict[tuple[str, int, str], _Known] = {}
        # The lock makes one thread read one adapter at a time.
        self._reading = Lock()

    def digest_of(self, adapter: LoraLike) -> bytes:
        """Returns 32 bytes for an adapter's weights.

        The first call for an adapter reads it, which takes milliseconds. Later calls know
        it by name, number and path. Raises ``UndigestableAdapter`` if the adapter is in no
        local folder, or if its files changed since the first call: nobody knows which
        files the engine has loaded. A change stays an error until the adapter is
        loaded under another number.
        """
        key = (adapter.lora_name, adapter.lora_int_id, adapter.lora_path)
        with self._reading:
            try:
                folder = _local_folder(adapter.lora_path)
                stamp = folder_stamp(folder)
                known = self._known.get(key)
                if known is None:
                    digest = sha256(framed(MARK, self._facts, folder_digest(folder))).digest()
                    self._known[key] = known = _Known(stamp, digest)
                    stamp = folder_stamp(folder)
            except (OSError, UnidentifiableModel) as error:
                raise UndigestableAdapter(
                    f"the adapter {adapter.lora_name} cannot be told from others: {error}"
                ) from error
            if known.stamp != stamp:
                # The entry equals nothing: an adapter once in doubt stays in doubt.
                self._known[key] = _Known(None, known.digest)
                raise UndigestableAdapter(
                    f"the files of the adapter {adapter.lora_name} changed while it was in use"
                )
            return known.digest


def _local_folder(path: str) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    return hub_snapshot(path)
