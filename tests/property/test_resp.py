"""A hostile or broken server: whatever it sends, memory and connections stay right.

A server's replies are generated: real ones, changed ones, and any bytes at all.
"""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import EngineCut, RemoteError, ReplyMalformed
from kvstore.remote.valkey.resp import MOST_LINE_BYTES, SCRATCH_BYTES, RespConnection
from remote.scripted_server import answered

SIZE = 40
GUARD = b"\xee" * 64
VALUE = b"$%d\r\n%b\r\n" % (SIZE, b"v" * SIZE)
REAL = (
    *(VALUE, b"$-1\r\n", b"$3\r\nabc\r\n", b"+OK\r\n", b"+PONG\r\n", b":1\r\n", b":0\r\n"),
    *(b"-OOM command not allowed\r\n", b"-LOADING\r\n", b"-ERR x\r\n", b"-NOPERM x\r\n"),
    b"*2\r\n$10\r\n1700000000\r\n$6\r\n123456\r\n",
)
HOSTILE = (
    *(
        b"$536870912\r\n",
        b"$99999999999999999999\r\n",
        b"$-2\r\n",
        b"$41\r\n",
        b"$\r\n",
        b"$+4\r\n",
    ),
    *(b"$ 4\r\n", b"$4_0\r\n", b"*1000000000\r\n", b"*2\r\n*2\r\n*2\r\n", b"*2\r\n$536870912\r\n"),
    *(
        b"*2\r\n-ERR\r\n",
        b"x" * 2 * MOST_LINE_BYTES,
        b"+" + b"x" * 4 * SCRATCH_BYTES,
        b"\n",
        b"\r\n",
    ),
    *(
        b":9" * 30 + b"\r\n",
        b"-\r\n",
        b"$3\r\nabcd\r\n",
        b"_\r\n",
        b"%1\r\n",
        b"*1\r\n" * 100,
        b"*3\r\n*3\r\n:1\r\n:1\r\n:1\r\n*3\r\n:1\r\n:1\r\n",
        b"*-2\r\n",
        b"-" + b"\xff" * 20 + b"\r\n",
    ),
)
replies = st.one_of(
    st.lists(st.sampled_from(REAL + HOSTILE), max_size=5).map(b"".join),
    st.binary(max_size=200),
    st.builds(
        lambda reply, at, byte: reply[:at] + bytes([byte]) + reply[at + 1 :],
        st.sampled_from(REAL),
        st.integers(0, 60),
        st.integers(0, 255),
    ),
)


class Pages:
    """A buffer between two guards, which no reply may change."""

    def __init__(self) -> None:
        self._memory = bytearray(GUARD + bytes(SIZE) + GUARD)
        self.buffer = memoryview(self._memory)[len(GUARD) : -len(GUARD)]

    def are_guarded(self) -> bool:
        """Returns whether nothing was written beside the buffer."""
        return self._memory.startswith(GUARD) and self._memory.endswith(GUARD)


CALLS: dict[str, Callable[[RespConnection, Pages], object]] = {
    "value": lambda connection, pages: connection.value(pages.buffer),
    "integer": lambda connection, _: connection.integer(),
    "simple": lambda connection, _: connection.simple(),
    "outcome": lambda connection, _: connection.outcome(),
    "short_value": lambda connection, _: connection.short_value(64),
    "reply": lambda connection, _: connection.reply(6, 64),
    "stored": lambda connection, _: connection.stored(),
    "pair": lambda connection, _: connection.pair(),
}


@given(
    reply=replies,
    calls=st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 300), max_size=4),
)
@example(reply=b"$536870912\r\n" + b"x" * 100_000, calls=["value"], cuts=[])
@example(reply=b"+" + b"x" * 100_000, calls=["simple"], cuts=[])
@example(reply=b"*2\r\n-ERR x\r\n+OK\r\n", calls=["pair", "simple"], cuts=[])
def test_no_reply_does_harm(reply: bytes, calls: list[str], cuts: list[int]) -> None:
    """Only errors of the interface are raised, and nothing is written beside the buffer.

    After a malformed reply the connection is broken. Otherwise each reply was taken exactly once.
    """
    pages = Pages()
    with answered(reply, cuts) as connection:
        connection.send(b"PING\r\n" * len(calls), replies=len(calls))
        for done, call in enumerate(calls):
            try:
                CALLS[call](connection, pages)
            except RemoteError as error:
                if isinstance(error, ReplyMalformed):
                    assert connection.is_broken
                if connection.is_broken or isinstance(error, EngineCut):
                    assert connection.due or connection.is_broken
                    break
            assert connection.due == len(calls) - done - 1
        assert pages.are_guarded()


@given(size=st.one_of(st.integers(SIZE + 1, 10**18), st.integers(-(10**18), -2)))
@example(size=SIZE + 7)
@example(size=-2)
def test_a_value_cannot_smuggle_replies(size: int) -> None:
    """A longer value ends the connection before its body, whose bytes may look like replies."""
    body = b"v" * max(min(SIZE, SIZE + size), 0) if size < 0 else b"v" * SIZE
    pages = Pages()
    with answered(b"$%d\r\n%b\r\n+OK\r\n" % (size, body), []) as connection:
        connection.send(b"", replies=2)
        with pytest.raises(ReplyMalformed):
            connection.value(pages.buffer)
        assert connection.is_broken
        assert bytes(pages.buffer) == bytes(SIZE)


@given(
    values=st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_values_are_told_apart_however_they_come(values: list[bytes], cuts: list[int]) -> None:
    """Pieces of a reply may end anywhere, and several replies may come in one piece."""
    reply = b"".join(b"$%d\r\n%b\r\n:%d\r\n" % (len(each), each, len(each)) for each in values)
    with answered(reply, cuts) as connection:
        connection.send(b"", replies=2 * len(values))
        for value in values:
            buffer = bytearray(len(value))
            assert connection.value(memoryview(buffer)) is ReadResult.READ
            assert buffer == value
            assert connection.integer() == len(value)
        assert connection.due == 0
