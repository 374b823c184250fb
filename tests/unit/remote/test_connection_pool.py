"""The pool of connections: attempts by its own thread, and waits that end."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event, Thread, current_thread
from time import monotonic

import pytest

from kvstore.remote import connection_pool
from kvstore.remote.connection_pool import ConnectionPool
from kvstore.remote.errors import (
    CredentialRefused,
    DeadlinePassed,
    EngineClosed,
    EngineUnreachable,
    RemoteError,
)
from kvstore.remote.valkey.resp import RespConnection

GENEROUS = 60.0


def soon() -> float:
    """Returns a deadline that no test reaches."""
    return monotonic() + GENEROUS


class Server:
    """The other side of connections. ``error`` makes attempts fail, ``held`` makes them wait."""

    def __init__(self) -> None:
        self.error: RemoteError | None = None
        self.free = Event()
        self.free.set()
        self.threads: set[str] = set()
        self.attempts = 0
        self.made: list[RespConnection] = []
        self._ends: list[socket.socket] = []

    def connect(self) -> RespConnection:
        """Makes a connection."""
        self.attempts += 1
        self.threads.add(current_thread().name)
        self.free.wait(GENEROUS)
        if self.error is not None:
            raise self.error
        ours, theirs = socket.socketpair()
        self._ends.append(theirs)
        self.made.append(RespConnection(ours))
        return self.made[-1]

    def cut(self) -> None:
        """Ends all connections."""
        while self._ends:
            self._ends.pop().close()


MakePool = Callable[..., ConnectionPool]


@pytest.fixture
def server() -> Iterator[Server]:
    """Returns the other side."""
    made = Server()
    yield made
    made.free.set()
    made.cut()


@pytest.fixture
def make_pool(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePool]:
    """Returns a function that makes a pool, whose thread makes no second attempt by itself."""
    monkeypatch.setattr(connection_pool, "FIRST_BACKOFF", 10_000.0)
    monkeypatch.setattr(connection_pool, "MOST_BACKOFF", 10_000.0)
    with ExitStack() as pools:

        def make(size: int = 1, connect_seconds: float = GENEROUS) -> ConnectionPool:
            pool = ConnectionPool(server.connect, size=size, connect_seconds=connect_seconds)
            pools.callback(pool.close)
            return pool

        yield make


def test_requests_make_no_connections(server: Server, make_pool: MakePool) -> None:
    """The pool's own thread makes all of them."""
    pool = make_pool()
    pool.give(pool.take(soon()))
    server.cut()
    pool.give(pool.take(soon()))
    assert server.threads == {"kv-remote-connect"}
    assert server.attempts == 2


def test_the_last_error_is_told_at_once(server: Server, make_pool: MakePool) -> None:
    """Requests neither wait nor make an attempt; its class is that of the attempt."""
    server.error = CredentialRefused("wrong")
    pool = make_pool()
    for _ in range(10):
        with pytest.raises(CredentialRefused, match="wrong"):
            pool.take(soon())
    assert server.attempts == 1


def test_who_insists_gets_a_new_attempt(server: Server, make_pool: MakePool) -> None:
    """A probe waits for no backoff, and is told the error of its own attempt."""
    server.error = EngineUnreachable("first")
    pool = make_pool()
    with pytest.raises(EngineUnreachable, match="first"):
        pool.take(soon())
    server.error = EngineUnreachable("second")
    with pytest.raises(EngineUnreachable, match="second"):
        pool.take(soon(), insist=True)
    server.error = None
    pool.give(pool.take(soon(), insist=True))


def test_a_lost_connection_is_made_again_at_once(server: Server, make_pool: MakePool) -> None:
    """An older error does not speak of it."""
    pool = make_pool(2)
    first = pool.take(soon())
    server.error = EngineUnreachable("of the second connection")
    pool.give(first)
    server.cut()
    server.error = None
    pool.give(pool.take(soon()))


def test_an_attempt_that_takes_too_long_holds_nobody(server: Server, make_pool: MakePool) -> None:
    """Requests are told after the time of an attempt, not at their deadlines."""
    server.free.clear()
    pool = make_pool(connect_seconds=0.01)
    for _ in range(5):
        with pytest.raises(EngineUnreachable, match="long"):
            pool.take(soon())
    server.free.set()
    pool.give(pool.take(soon(), insist=True))


def test_a_request_waits_for_a_used_connection(make_pool: MakePool) -> None:
    """It waits until its deadline, or until another one gives it back."""
    pool = make_pool()
    used = pool.take(soon())
    with pytest.raises(DeadlinePassed):
        pool.take(monotonic() + 0.01)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.take, soon())
        pool.give(used)
        assert waiting.result(GENEROUS) is used
    pool.give(used)


def test_a_connection_with_a_reply_due_is_closed(server: Server, make_pool: MakePool) -> None:
    """The next request gets another one."""
    pool = make_pool()
    used = pool.take(soon())
    used.send(b"PING\r\n")
    pool.give(used)
    other = pool.take(soon())
    assert other is not used
    assert server.attempts == 2
    pool.give(other)


def test_no_more_connections_are_made_than_allowed(server: Server, make_pool: MakePool) -> None:
    """Many threads share two."""
    pool = make_pool(2)

    def use(_number: int) -> None:
        pool.give(pool.take(soon()))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(400)))
    assert server.attempts <= 2


def test_closing_ends_every_wait(server: Server, make_pool: MakePool) -> None:
    """A connection that is made during the end is closed."""
    server.free.clear()
    pool = make_pool()
    errors: list[RemoteError] = []

    def wait() -> None:
        try:
            pool.take(soon())
        except RemoteError as error:
            errors.append(error)

    thread = Thread(target=wait)
    thread.start()
    closer = Thread(target=pool.close)
    closer.start()
    thread.join(GENEROUS)
    assert [type(each) for each in errors] == [EngineClosed]
    server.free.set()
    closer.join(GENEROUS)
    pool._thread.join(GENEROUS)
    assert [each._socket.fileno() for each in server.made] == [-1]
