"""A process's use of one store."""

import os
from types import TracebackType
from typing import Self

from kvstore_client.admin import Admin
from kvstore_client.config import ClientConfig
from kvstore_client.layout import NamespaceIdentity, NamespaceKey, PageLayout
from kvstore_client.lifecycle.connector import Connector
from kvstore_client.lifecycle.joined_lease import SharedLease
from kvstore_client.namespace import Namespace
from kvstore_client.runtime_dir import RuntimeDir


class Client:
    r"""Attaches to the store of a runtime folder, in the background, again and again.

    ``runtime_dir`` is where its sockets are; None: ``default_runtime_dir()``.
    As a context manager it starts and closes. Any thread may use it. A forked
    child's copy raises ``ForkedClient``: the child makes a client of its own,
    and MUST NOT touch views of pages that it inherited, which are not mapped in
    it. Raises ``ValueError`` for a path too long for a socket.

    An engine of several processes has one lease for all of them: one owns it, as
    any client does, and gives :meth:`share_lease` to the others, which ``join`` it.
    Those map the same memory and reach pages by the owner's ``PageRef``\ s; matches,
    reservations and inserts are the owner's alone, and here they are misses. The
    store hands the owner pages that all of them have mapped, and takes nothing of
    the lease for granted before the last of them is dead. A client that joined
    ends when the lease does, and counts until its process ends: close it as the
    process ends.
    """

    def __init__(
        self,
        runtime_dir: str | os.PathLike[str] | None = None,
        config: ClientConfig | None = None,
        *,
        join: bytes | None = None,
    ) -> None:
        """``join`` is from :meth:`share_lease`; raises ``ValueError`` for other bytes."""
        self.config = config or ClientConfig()
        joined = None if join is None else SharedLease.unpack(join)
        self._connector = Connector(RuntimeDir(runtime_dir), self.config, joined)
        self.admin = Admin(lambda: self._connector.require_session().calls)

    def start(self) -> None:
        """Begins to attach. Returns at once, whether there is a store or not.

        Can be repeated. A client that was closed stays closed.
        """
        self._connector.check_process()
        self._connector.start()

    def close(self) -> None:
        """Gives back what was released, revoke the lease, unmap. Can be repeated.

        Waits up to ``close_timeout`` for what is still held, and as long for the
        store. What is held even then stays mapped, and goes back when this
        process ends.
        """
        self._connector.check_process()
        self._connector.close()

    @property
    def connected(self) -> bool:
        """Whether requests are sent: a lease is held and the store answers."""
        self._connector.check_process()
        session = self._connector.session
        return session is not None and session.usable

    @property
    def tried(self) -> bool:
        """Whether an attempt to attach has ended since the start, well or not."""
        self._connector.check_process()
        return self._connector.tried

    def wait_connected(self, timeout: float) -> bool:
        """Waits until :attr:`connected`, for ``timeout`` seconds at most."""
        self._connector.check_process()
        with self._connector.monitor:
            return self._connector.monitor.wait_for(lambda: self.connected, timeout)

    @property
    def store_epoch(self) -> int | None:
        """The epoch of the store attached to, or None where there is none."""
        self._connector.check_process()
        session = self._connector.session
        return session.store_epoch if session is not None and session.ended is None else None

    def share_lease(self) -> bytes:
        """Returns what has another process of this user join the lease.

        It is a secret: hand it over by a pipe, or a file that nobody else reads. It is
        good while this session lasts. Raises ``StoreError`` where there is none.
        """
        return self._connector.require_session().shared.pack()

    def namespace(self, identity: NamespaceIdentity, layout: PageLayout) -> Namespace:
        """Returns a namespace, to be opened in the background in every session."""
        self._connector.check_process()
        return Namespace(self._connector, NamespaceKey(identity, layout))

    def flush(self, timeout: float) -> bool:
        """Waits until what was released so far has reached the store; False if it has not."""
        self._connector.check_process()
        session = self._connector.session
        return session is None or session.flush(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
