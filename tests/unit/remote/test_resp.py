"""Replies of a server, each with its effect on the connection."""

from collections.abc import Callable

import pytest

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import EngineCut, EngineFull, EngineLoading, ReplyMalformed
from kvstore.remote.valkey.resp import MOST_LINE_BYTES, RespConnection, encoded
from remote.scripted_server import answered

Call = Callable[[RespConnection], object]
READ: Call = lambda connection: connection.value(memoryview(bytearray(4)))  # noqa: E731  # a row
SHORT: Call = lambda connection: connection.short_value(4)  # noqa: E731  # a row


@pytest.mark.parametrize(
    ("reply", "call", "result"),
    [
        (b"$4\r\nabcd\r\n", READ, ReadResult.READ),
        (b"$-1\r\n", READ, ReadResult.MISSING),
        (b"$3\r\nabc\r\n", READ, ReadResult.WRONG_SIZE),
        (b"$4\r\nabcd\r\n", SHORT, b"abcd"),
        (b"$0\r\n\r\n", SHORT, b""),
        (b"$-1\r\n", SHORT, None),
        (b":12\r\n", RespConnection.integer, 12),
        (b"+PONG\r\n", RespConnection.simple, b"PONG"),
        (b"+OK\r\n", RespConnection.outcome, None),
        (b"+OK\r\n", RespConnection.stored, True),
        (b"$-1\r\n", RespConnection.stored, False),
        (b"*2\r\n$2\r\n17\r\n$1\r\n9\r\n", RespConnection.pair, (17, 9)),
    ],
)
def test_a_reply_is_received_whole(reply: bytes, call: Call, result: object) -> None:
    """The connection is reusable then, and silent once the server is."""
    with answered(reply + b":7\r\n") as connection:
        connection.send(encoded(b"PING"), replies=2)
        assert call(connection) == result
        assert connection.integer() == 7
        assert (connection.due, connection.is_broken) == (0, False)


@pytest.mark.parametrize(
    ("reply", "call"),
    [
        (b"$4\r\nabcdef\r\n", READ),
        (b"$5\r\nabcde\r\n", READ),
        (b"$-2\r\n", READ),
        (b"$04x\r\n", READ),
        (b":4\r\n", READ),
        (b"+" + b"x" * MOST_LINE_BYTES + b"\r\n", RespConnection.simple),
        (b"$5\r\nabcde\r\n", SHORT),
        (b"$-2\r\n", SHORT),
        (b"$3\r\nabcd\r\n", SHORT),
        (b"+1\r\n", RespConnection.integer),
        (b":1_0\r\n", RespConnection.integer),
        (b":\r\n", RespConnection.integer),
        (b":1\n:1\r\n", RespConnection.integer),
        (b":1\r\n", RespConnection.simple),
        (b"+QUEUED\r\n", RespConnection.outcome),
        (b"+QUEUED\r\n", RespConnection.stored),
        (b"*3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n", RespConnection.pair),
        (b"*2\r\n$21\r\n111111111111111111111\r\n", RespConnection.pair),
        (b"*2\r\n-ERR x\r\n$1\r\n1\r\n", RespConnection.pair),
        (b"*2\r\n$-1\r\n$1\r\n1\r\n", RespConnection.pair),
    ],
)
def test_a_malformed_reply_ends_the_connection(reply: bytes, call: Call) -> None:
    """Nothing behind it is read as a reply."""
    with answered(reply + b":7\r\n" * 100) as connection:
        connection.send(encoded(b"PING"))
        with pytest.raises(ReplyMalformed):
            call(connection)
        assert connection.is_broken


def test_an_endless_line_takes_no_memory() -> None:
    """Its first bytes are enough to know it."""
    with answered(b"+" + b"x" * 10_000_000) as connection:
        connection.send(encoded(b"PING"))
        with pytest.raises(ReplyMalformed, match="endless"):
            connection.simple()


def test_an_error_leaves_the_connection_usable() -> None:
    """One that concerns a value alone is returned, others are raised."""
    with answered(b"-OOM x\r\n-LOADING x\r\n+OK\r\n") as connection:
        connection.send(encoded(b"PING"), replies=3)
        assert isinstance(connection.outcome(), EngineFull)
        with pytest.raises(EngineLoading):
            connection.outcome()
        assert connection.outcome() is None
        assert (connection.due, connection.is_broken) == (0, False)


def test_an_end_in_a_reply_is_a_cut() -> None:
    """The reply stays due, so nobody uses the connection again."""
    with answered(b"$4\r\nab") as connection:
        connection.send(encoded(b"PING"))
        with pytest.raises(EngineCut):
            READ(connection)
        assert connection.due == 1


def test_a_byte_that_nobody_asked_for_ends_an_idle_connection() -> None:
    """It would be taken for the answer to the next command."""
    with answered(b":1\r\n:2\r\n") as connection:
        connection.send(encoded(b"PING"))
        connection.integer()
        assert not connection.is_quiet()


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"+OK\r\n", b"OK"),
        (b":-7\r\n", -7),
        (b"$3\r\nabc\r\n", b"abc"),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"*0\r\n", []),
        (b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n*1\r\n+x\r\n", [1, [b"a", [b"x"]]]),
    ],
)
def test_a_reply_of_any_form_is_received(line: bytes, reply: object) -> None:
    """Lists may be in lists, and the next reply is found behind them."""
    with answered(line + b":5\r\n") as connection:
        connection.send(encoded(b"PING"), replies=2)
        assert connection.reply(7) == reply
        assert connection.integer() == 5
        assert connection.is_reusable


@pytest.mark.parametrize(
    "line",
    [
        b"*6\r\n" + b":1\r\n" * 6,
        b"*1\r\n" * 5 + b":1\r\n",
        b"*1\r\n$65\r\n",
        b"*1\r\n$-2\r\n",
        b"*x\r\n",
        b"*2\r\n-ERR x\r\n:1\r\n",
        b"%1\r\n",
    ],
    ids=["parts", "depth", "bytes", "negative", "count", "error", "kind"],
)
def test_a_reply_beyond_its_bounds_ends_the_connection(line: bytes) -> None:
    """Parts, their bytes and their depth are bounded, whatever the server states."""
    with answered(line + b":7\r\n" * 100) as connection:
        connection.send(encoded(b"PING"))
        with pytest.raises(ReplyMalformed):
            connection.reply(6, 64)
        assert connection.is_broken
