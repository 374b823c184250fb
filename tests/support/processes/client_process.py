"""A worker in a process of its own, which does what it is told, a command at a time."""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from kvstore_client import Client, ClientConfig, Match, Namespace, errors
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    TOKENS,
    holds_tokens,
    memfd_mappings,
    open_client,
    write_and_insert,
)


class ClientProcess:
    """Starts a process with a client; as a context manager it kills it at the end."""

    def __init__(self, runtime_dir: Path, **settings: Any) -> None:  # noqa: ANN401  # a config's fields
        context = get_context("spawn")
        self._pipe, remote = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(remote, runtime_dir, settings), daemon=True
        )
        self._process.start()
        remote.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, command: str) -> Any:  # noqa: ANN401  # each command has an answer of its own
        """Have a method of ``Worker`` called and return its answer; EOFError if it died."""
        self._pipe.send(command)
        return self._pipe.recv()

    def tell(self, command: str) -> None:
        """Have a method called whose answer nobody waits for."""
        self._pipe.send(command)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def wait_exit(self) -> int | None:
        """Waits for its end and returns the exit status, negative for a signal."""
        self._process.join(LIMIT)
        return self._process.exitcode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Worker:
    """What the process can be asked for."""

    def __init__(self, client: Client, namespace: Namespace) -> None:
        self._client = client
        self._namespace = namespace
        self._match = Match()

    def write(self) -> list[tuple[int, int]]:
        """Inserts the tokens' pages and returns where they are."""
        return [(page.extent_id, page.slot) for page in write_and_insert(self._namespace, TOKENS)]

    def hold(self) -> int:
        """Matches the tokens, keep the match, and returns how many tokens it has."""
        self._match = self._namespace.match(TOKENS)
        return self._match.token_count

    def reads_right(self) -> bool:
        """Returns whether the match that is kept has the bytes that were written."""
        assert self._match.pages
        return holds_tokens(self._namespace, TOKENS, self._match.pages)

    def release(self) -> None:
        """Releases the match that is kept."""
        self._match.release()

    def connected(self) -> bool:
        """Returns whether the client is connected."""
        return self._client.connected

    def fork(self) -> list[str]:
        """Forks, and returns what the child met: the errors of its calls, and its mappings."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, "\n".join(_in_child(self._client, self._namespace)).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        with os.fdopen(reader) as results:
            return results.read().split("\n")


def _in_child(client: Client, namespace: Namespace) -> list[str]:
    calls: list[Callable[[], object]] = [
        lambda: namespace.match(TOKENS),
        lambda: namespace.acquire(TOKENS, total_page_count=4),
        lambda: namespace.reserve(start_page=0, page_count=1),
        lambda: namespace.peek(TOKENS),
        lambda: namespace.extents,
        lambda: namespace.wait_open(0),
        lambda: client.connected,
        lambda: client.namespace(IDENTITY, LAYOUT),
        lambda: client.flush(0),
        client.admin.stats,
        client.start,
        client.close,
    ]
    met = []
    for call in calls:
        try:
            met.append(repr(call()))
        except errors.ForkedClient as error:
            met.append(type(error).__name__)
    return [*met, str(memfd_mappings())]


def _serve(pipe: Connection, runtime_dir: Path, settings: dict[str, Any]) -> None:
    config = ClientConfig(**{"call_timeout": LIMIT, **settings})
    client, namespace = open_client(runtime_dir, config)
    worker = Worker(client, namespace)
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            break
        pipe.send(getattr(worker, command)())
    client.close()
