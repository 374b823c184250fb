"""One engine's use of a store: the client of its scheduler half, shared with its ranks."""

import os
from collections import OrderedDict
from threading import Lock
from typing import Final
from uuid import UUID

from kvstore_client import (
    Client,
    ClientConfig,
    ContiguousMemory,
    Namespace,
    NamespaceIdentity,
    PageLayout,
)
from kvstore_client.errors import StoreError
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_vllm.engine.connector_settings import LONGEST_NAME

# The separator that vLLM puts between an engine's id and its data-parallel rank.
RANK = "_dp"


def lease_name(model: str, engine_id: str) -> str:
    """Returns the lease's name: the model's name and the engine's id, at most 256 bytes.

    The id is the `engine_id` of the kv-transfer-config, if an operator set one, and the
    data-parallel rank. Both survive a restart. An id that vLLM drew is left out.
    """
    chosen, _, rank = engine_id.rpartition(RANK)
    if not rank.isdecimal() or not chosen:
        chosen, rank = engine_id, ""
    own = "" if _is_drawn(chosen) else chosen
    which = _cut(" ".join(filter(None, (own, rank and f"dp{rank}"))), LONGEST_NAME // 2)
    named = _cut(f"vllm {model}".strip(), LONGEST_NAME - len(f" {which}".encode()))
    return f"{named} {which}".strip()


def _is_drawn(engine_id: str) -> bool:
    try:
        UUID(engine_id)
    except ValueError:
        return False
    return True


def _cut(text: str, most: int) -> str:
    return text.encode()[:most].decode(errors="ignore")


# Salts, which users choose, with namespaces of their own; above this number the least recently
# used is closed.
MOST_NAMESPACES: Final = 64


def copies_are_done() -> None:
    """Returns at once, for ``ClientConfig.wait_for_device``: all device work is already done.

    A rank waits for each copy on its stream before it reports the copy, and keeps the store's
    memory mapped until then. A wait for the whole device would end vLLM's captures of graphs.
    """


class StoreAccess:
    """A client with the namespaces of one model. Any thread may use it."""

    def __init__(
        self,
        runtime_dir: str | None,
        identity: NamespaceIdentity,
        layout: PageLayout,
        *,
        name: str,
        call_timeout: float,
        device: int | None = None,
        contiguous_memory: ContiguousMemory | None = None,
    ) -> None:
        """``name`` is the lease's, and ``contiguous_memory`` the client's setting.

        ``device`` is the GPU of a rank in this process.
        """
        # A scheduler touches no pages, apart from checksums of saved ones. A rank in its process
        # fills the page tables of the slots that it writes.
        config = ClientConfig(
            call_timeout=call_timeout,
            display_name=name,
            wait_for_device=copies_are_done,
            host_memory_device=device,
            fill_page_tables=False,
            contiguous_memory=contiguous_memory,
        )
        self.layout = layout
        self._folder = RuntimeDir(runtime_dir).path
        self._client = Client(self._folder, config)
        self._plain = self._client.namespace(identity, layout)
        self._by_salt: OrderedDict[bytes, Namespace] = OrderedDict()
        self._speed = 0.0
        self._mutex = Lock()
        self._client.start()

    @property
    def memory(self) -> Namespace:
        """The mapped pages of all its namespaces, by extent."""
        return self._plain

    @property
    def usable(self) -> bool:
        """Says whether the store answers requests, as far as the client knows."""
        return self._client.connected

    @property
    def tried(self) -> bool:
        """Says whether the client has tried to reach the store since the start."""
        return self._client.tried

    def namespace(self, salt: bytes) -> Namespace:
        """Returns the namespace of a salt; opens a new one in the background."""
        if salt == self._plain.identity.salt:
            return self._plain
        with self._mutex:
            found = self._by_salt.pop(salt, None) or self._plain.salted(salt)
            found.prefill_tokens_per_second = self._speed
            self._by_salt[salt] = found
            if len(self._by_salt) > MOST_NAMESPACES:
                _, longest_unused = self._by_salt.popitem(last=False)
                longest_unused.forget()
            return found

    def state_speed(self, tokens_per_second: float) -> None:
        """States the engine's prefill speed to the store, with each later lookup."""
        with self._mutex:
            self._speed = tokens_per_second
            for namespace in (self._plain, *self._by_salt.values()):
                namespace.prefill_tokens_per_second = tokens_per_second

    def facts(self) -> dict[str, str]:
        """Returns the fields of the log: folder, namespace, and the reason if it is unused."""
        identity = self._plain.identity
        return {
            "runtime_dir": str(self._folder),
            "namespace": identity.display_name,
            "model_digest": identity.model_digest.hex(),
            "reason": str(self._plain.failure or ""),
        }

    def share_lease(self) -> bytes | None:
        """Returns the data with which another process joins the lease; None without a lease."""
        try:
            return self._client.share_lease()
        except StoreError:
            return None

    def close(self) -> None:
        """Gives the lease back. Waits as ``Client.close`` does."""
        self._client.close()


class EnginesHere:
    """The state that both halves of an engine share in one process.

    Its keys are process and engine, so a fork begins with none.
    """

    def __init__(self) -> None:
        self._accesses: dict[tuple[int, str], StoreAccess] = {}
        self._ranks: dict[tuple[int, str], int | None] = {}

    def note_rank(self, engine_id: str, device: int | None = None) -> None:
        """Notes that a rank of the engine is in this process, and its GPU if it has one."""
        self._ranks[os.getpid(), engine_id] = device

    def device_of(self, engine_id: str) -> int | None:
        """Returns the GPU of the engine's rank in this process, if there are both."""
        return self._ranks.get((os.getpid(), engine_id))

    def has_rank(self, engine_id: str) -> bool:
        """Returns whether a rank of the engine is in this process."""
        return (os.getpid(), engine_id) in self._ranks

    def put(self, engine_id: str, access: StoreAccess) -> None:
        """Registers the scheduler half's store for ranks of this process."""
        self._accesses[os.getpid(), engine_id] = access

    def get(self, engine_id: str) -> StoreAccess | None:
        """Returns the scheduler half's store, or None if it is in another process."""
        return self._accesses.get((os.getpid(), engine_id))

    def remove(self, engine_id: str) -> None:
        """Forgets an engine that ends."""
        self._accesses.pop((os.getpid(), engine_id), None)
        self._ranks.pop((os.getpid(), engine_id), None)


ENGINES_HERE: Final = EnginesHere()
