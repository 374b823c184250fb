"""One engine's use of a store: its client, and the namespaces of its model by salt."""

from collections import OrderedDict
from threading import Lock
from typing import Final

from kvstore_client import (
    Client,
    ClientConfig,
    ContiguousMemory,
    Namespace,
    NamespaceIdentity,
    PageLayout,
)
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.errors import StoreError
from kvstore_client.runtime_dir import RuntimeDir

# Salts, which users choose, with namespaces of their own; above this number the least recently
# used is closed.
MOST_NAMESPACES: Final = 64


def copies_are_done() -> None:
    """Returns at once, for ``ClientConfig.wait_for_device``: all device work is already done.

    A rank waits for each copy on its stream before it reports the copy, and keeps the store's
    memory mapped until then. A wait for the whole device would end an engine's captures of graphs.
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

    def wait_attached(self, timeout: float) -> bool:
        """Waits for the first attempt to reach the store, and for the namespace without a salt.

        Returns whether the namespace is open, after ``timeout`` seconds at most. An absent store
        refuses the attempt at once.
        """
        deadline = Deadline(timeout)
        if not self._client.wait_tried(deadline.left()) or not self._client.connected:
            return False
        return self._plain.wait_open(deadline.left())

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
