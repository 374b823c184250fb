"""A process's use of one store."""

import os
from typing import Self

from kvstore_client.admin import Admin
from kvstore_client.config import ClientConfig
from kvstore_client.lifecycle.joined_lease import SharedLease
from kvstore_client.lifecycle.store_connector import Connector
from kvstore_client.namespace import Namespace
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.namespace_key import NamespaceIdentity, NamespaceKey
from kvstore_client.values.page_layout import PageLayout


class Client:
    r"""Attaches to the store of a runtime folder in the background, and again after each end.

    ``runtime_dir`` is the folder of the store's sockets, by default
    ``default_runtime_dir()``. As a context manager the client starts and closes. Any thread
    may use it. A forked child's copy raises ``ForkedClient``. The child must make its own
    client, and MUST NOT touch inherited views of pages, which are not mapped in it. Raises
    ``ValueError`` if the path is too long for a socket.

    An engine of several processes has one lease for all of them. One process owns the lease,
    as any client does, and gives :meth:`share_lease` to the others, which ``join`` it. They
    map the same memory and find pages by the owner's ``PageRef``\ s. Only the owner can
    match, reserve and insert; for the others these calls are misses. The store gives the
    owner only pages that all processes have mapped, and reuses nothing of the lease until
    the last process is dead. A client that joined ends with the lease and counts until its
    process ends: close it as the process ends.
    """

    def __init__(
        self,
        runtime_dir: str | os.PathLike[str] | None = None,
        config: ClientConfig | None = None,
        *,
        join: bytes | None = None,
    ) -> None:
        """``join`` is the result of :meth:`share_lease`; raises ``ValueError`` for other bytes."""
        self.config = config or ClientConfig()
        joined = None if join is None else SharedLease.unpack(join)
        self._connector = Connector(RuntimeDir(runtime_dir), self.config, joined)
        self.admin = Admin(lambda: self._connector.require_session().calls)

    def start(self) -> None:
        """Begins to attach. Returns at once, with or without a store.

        Can be repeated. A closed client stays closed.
        """
        self._connector.check_process()
        self._connector.start()

    def close(self) -> None:
        """Sends pending releases, revokes the lease and unmaps. Can be repeated.

        Waits up to ``close_timeout`` for open holds, and then as long for the store. Memory
        that is still held after that stays mapped until this process ends.
        """
        self._connector.check_process()
        self._connector.close()

    @property
    def connected(self) -> bool:
        """True while requests are sent: the client has a lease and the store answers."""
        self._connector.check_process()
        session = self._connector.session
        return session is not None and session.usable

    @property
    def tried(self) -> bool:
        """True once an attempt to attach has ended, with or without success."""
        self._connector.check_process()
        return self._connector.tried

    def wait_tried(self, timeout: float) -> bool:
        """Waits until :attr:`tried`, for ``timeout`` seconds at most."""
        self._connector.check_process()
        with self._connector.monitor:
            return self._connector.monitor.wait_for(lambda: self._connector.tried, timeout)

    def wait_connected(self, timeout: float) -> bool:
        """Waits until :attr:`connected`, for ``timeout`` seconds at most."""
        self._connector.check_process()
        with self._connector.monitor:
            return self._connector.monitor.wait_for(lambda: self.connected, timeout)

    @property
    def store_epoch(self) -> int | None:
        """The epoch of the attached store, or None."""
        self._connector.check_process()
        session = self._connector.session
        return session.store_epoch if session is not None and session.ended is None else None

    def share_lease(self) -> bytes:
        """Returns the bytes by which another process of this user joins the lease.

        They are secret: hand them over by a pipe, or by a file that nobody else can read. They
        are valid while this session lasts. Raises ``StoreError`` without a session.
        """
        return self._connector.require_session().shared.pack()

    def namespace(self, identity: NamespaceIdentity, layout: PageLayout) -> Namespace:
        """Returns a namespace, which every session opens in the background."""
        self._connector.check_process()
        return Namespace(self._connector, NamespaceKey(identity, layout))

    def flush(self, timeout: float) -> bool:
        """Waits until the store has all releases so far; False after ``timeout`` seconds."""
        self._connector.check_process()
        session = self._connector.session
        return session is None or session.flush(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
