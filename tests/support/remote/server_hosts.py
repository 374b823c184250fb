"""Hosts for a test: real servers that have nothing in common but an engine and a key."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kvstore.v1 import store_pb2
from kvstore_client import Client, Namespace
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    LAYOUT,
    holds_tokens,
    open_client,
    page_count,
    write_and_insert,
)
from remote.valkey_server import ValkeyServer

KEY = bytes(range(32))
# 64 slots in each extent, 256 in all.
MEMORY = (
    *("--extent-bytes", str(64 * LAYOUT.page_bytes)),
    *("--tier1-bytes", str(256 * LAYOUT.page_bytes)),
)
TENANT = "team"


def write_private(path: Path, content: bytes) -> Path:
    """Writes a file that its owner alone can read; returns its path."""
    path.touch(0o600)
    path.write_bytes(content)
    return path


class Host:
    """A server with its own runtime folder, and a client of it with one namespace."""

    def __init__(self, store: RunningStore) -> None:
        self.store = store
        self.client: Client | None = None

    def open(self) -> Namespace:
        """Returns the namespace, opened by a client that is new at the first call."""
        if self.client is None:
            self.client, self._namespace = open_client(self.store.runtime_dir)
            # So slow a model that each load is worth its time, however busy the machine is.
            self._namespace.prefill_tokens_per_second = 1.0
        return self._namespace

    @property
    def namespace_id(self) -> bytes:
        """The id of the namespace."""
        self.open()
        assert self.client is not None
        [info] = self.client.admin.namespaces()
        return info.namespace_id

    @property
    def remote(self) -> store_pb2.RemoteStats:
        """The statistics of the remote tier."""
        self.open()
        assert self.client is not None
        return self.client.admin.stats().remote

    def publish(self, tokens: list[int]) -> None:
        """Writes a prompt's pages, and uses them until the engine has them.

        A write that the engine does not answer is lost, and the next use of its page repeats it.
        """
        namespace = self.open()
        wanted = self.remote.written_page_count + page_count(tokens)
        write_and_insert(namespace, tokens)

        def written() -> bool:
            namespace.match(tokens).release()
            return self.remote.written_page_count >= wanted

        assert wait_until(written), (self.remote, self.store.log)

    def matched(self, tokens: list[int]) -> int:
        """Matches a prompt once, and compares the bytes. Returns the number of pages."""
        namespace = self.open()
        with namespace.match(tokens) as match:
            assert holds_tokens(namespace, tokens, list(match.pages))
            return match.page_count

    def looks_in_vain(self, tokens: list[int]) -> bool:
        """Matches a prompt; returns whether the engine was asked, and has no page of it."""
        before = self.remote.missed_look_count
        return self.matched(tokens) == 0 and self.remote.missed_look_count > before

    def evict(self, tokens: list[int]) -> store_pb2.EvictPrefixResponse:
        """Removes a prompt's first page, and all that follow it, for all hosts."""
        namespace_id = self.namespace_id
        assert self.client is not None
        return self.client.admin.evict_prefix(namespace_id, tokens[: LAYOUT.page_tokens])

    def restart(self) -> None:
        """Kills the server, and starts another one in its place."""
        self.close()
        self.store.restart()

    def close(self) -> None:
        """Closes the client, if there is one."""
        if self.client is not None:
            self.client.close()
            self.client = None


class Hosts:
    """Makes hosts in a folder, with one engine."""

    def __init__(self, folder: Path, engine: ValkeyServer, stack: ExitStack) -> None:
        self.engine = engine
        self._folder = folder
        self._stack = stack
        self._made = 0

    def add(
        self,
        *more: str,
        key: bytes = KEY,
        tenant: str | None = TENANT,
        tenant_key: bytes | None = None,
        start: bool = True,
    ) -> Host:
        """Returns a started host. Its user is ``tenant``, or no tenant of the file for None."""
        self._made += 1
        folder = self._folder / f"h{self._made}"
        folder.mkdir(mode=0o700)
        store = self._stack.enter_context(
            running_store(
                *MEMORY,
                *("--remote-url", f"valkey+unix://{self.engine.socket}"),
                *("--remote-credential-file", str(self.engine.credential)),
                *("--remote-key-file", str(write_private(folder / "key", key))),
                *("--tenants-file", str(self._tenants(folder, tenant, tenant_key))),
                *("--remote-state-dir", str(folder / "state")),
                *more,
                runtime_dir=folder / "run",
                start=start,
            )
        )
        host = Host(store)
        self._stack.callback(host.close)
        return host

    def _tenants(self, folder: Path, tenant: str | None, key: bytes | None) -> Path:
        lines: Sequence[str] = ("[tenants.nobody]",)
        if tenant is not None:
            lines = (f"[tenants.{tenant}]", f"uids = [{os.getuid()}]")
            if key is not None:
                lines = (*lines, f'remote_key = "{key.hex()}"')
        return write_private(folder / "tenants.toml", "\n".join(lines).encode())


@contextmanager
def running_hosts(folder: Path, engine: ValkeyServer) -> Iterator[Hosts]:
    """Provides hosts that end with the block."""
    with ExitStack() as stack:
        yield Hosts(folder, engine, stack)
