"""The limits of the attach socket's connections, in all and per uid."""

import socket
from collections.abc import Callable, Iterator

import pytest

from kvstore.errors import PeerRefused, QuotaExceeded
from kvstore.rpc.attach.connection import Connection
from kvstore.rpc.attach.table import ConnectionTable


@pytest.fixture
def connect() -> Iterator[Callable[[], Connection]]:
    """Provides connections whose peers send nothing."""
    made: list[tuple[Connection, socket.socket]] = []

    def make() -> Connection:
        near, far = socket.socketpair()
        made.append((Connection(near, PeerRefused(), max_frame_bytes=10), far))
        return made[-1][0]

    yield make
    for connection, far in made:
        connection.close()
        far.close()


def fill(table: ConnectionTable, uid: int | None, connections: list[Connection]) -> None:
    """Adds connections that have already said Hello."""
    for each in connections:
        table.add(each, uid)
        table.welcome(each)


def test_a_uid_leaves_room_for_another(connect: Callable[[], Connection]) -> None:
    """One uid has at most three quarters of the places; all uids together have all places."""
    table = ConnectionTable(8)
    fill(table, 1, [connect() for _ in range(6)])
    with pytest.raises(QuotaExceeded) as error:
        table.add(connect(), 1)
    assert error.value.metadata == {"quota": "attach_connections_of_uid", "maximum": "6"}
    fill(table, 2, [connect()])
    fill(table, None, [connect()])
    with pytest.raises(QuotaExceeded) as error:
        table.add(connect(), 3)
    assert error.value.metadata == {"quota": "attach_connections", "maximum": "8"}
    assert len(table) == 8


def test_several_uids_leave_room_for_another(connect: Callable[[], Connection]) -> None:
    """Two uids that take all they may leave a place for a third uid."""
    table = ConnectionTable(32)
    for uid in (1, 2):
        with pytest.raises(QuotaExceeded):
            fill(table, uid, [connect() for _ in range(32)])
    assert len(table) == 24 + 6
    fill(table, 3, [connect()])


def test_who_leaves_makes_room(connect: Callable[[], Connection]) -> None:
    """A closed connection frees its place once, however often it is discarded."""
    table = ConnectionTable(4)
    first = connect()
    fill(table, 1, [first, connect(), connect()])
    assert first in table
    table.discard(first)
    table.discard(first)
    assert first not in table
    fill(table, 1, [connect()])
    assert len(list(table)) == 3


def test_the_oldest_silent_connection_goes(connect: Callable[[], Connection]) -> None:
    """The table names the oldest silent connection of a uid that has too many of them."""
    table = ConnectionTable(8)
    silent = [connect() for _ in range(3)]
    assert table.too_silent(1) is None
    for each in silent[:2]:
        table.add(each, 1)
    assert table.too_silent(1) is silent[0]
    assert table.too_silent(2) is None
    table.welcome(silent[0])
    assert table.too_silent(1) is None
    table.add(silent[2], 1)
    assert table.too_silent(1) is silent[1]
    table.discard(silent[1])
    assert table.too_silent(1) is None
