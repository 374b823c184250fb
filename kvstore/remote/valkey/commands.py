"""The commands that engines of Valkey send on a connection."""

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final

from kvstore.remote.engine import MOST_CONTROL_BYTES
from kvstore.remote.errors import ReplicasMissing
from kvstore.remote.valkey.connector import read_clock
from kvstore.remote.valkey.resp import RespConnection, encoded

# The rights of the user that kvstore needs: `user kvstore on >PASSWORD` and these rules.
ACL_RULES: Final = (
    "~kv1/* ~kvr/* resetchannels -@all +asking +cluster|slots +exists +get +pexpireat +ping +role "
    "+set +time +unlink +wait"
)
# More requests ahead than two bring nothing where they were measured.
REQUESTS_AHEAD: Final = 2
NAMES_PER_TRIP: Final = 1000
# Clocks drift apart by less than a millisecond in so many seconds.
CLOCK_SECONDS: Final = 60.0
# The replicas' answers have to come before the deadline, so they are waited for a bit less.
_WAIT_SHARE: Final = 0.9


def parts(names: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields the names in parts that one command takes."""
    for start in range(0, len(names), NAMES_PER_TRIP):
        yield names[start : start + NAMES_PER_TRIP]


def count_among(connection: RespConnection, most: int) -> int:
    """Receives a count of names."""
    count = connection.integer()
    if not 0 <= count <= most:
        raise connection.malformed(f"a count of {count} for {most} names")
    return count


def engine_ms(connection: RespConnection) -> int:
    """Returns the engine's clock, which each connection asks for once a minute."""
    if monotonic() - connection.clock_read > CLOCK_SECONDS:
        return read_clock(connection)
    return int(monotonic() * 1000) + connection.clock_offset_ms


def send_set(connection: RespConnection, name: bytes, value: memoryview, expiry_ms: int) -> None:
    """Sends a SET from the value's own memory."""
    head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, value.nbytes)
    expiry = b"%d" % expiry_ms
    connection.send(head, value, b"\r\n$4\r\nPXAT\r\n$%d\r\n%b\r\n" % (len(expiry), expiry))


def refresh_command(name: bytes, expiry_ms: int) -> bytes:
    """Returns a command that makes an expiry later: no clock can delete a value by it."""
    return encoded(b"PEXPIREAT", name, b"%d" % expiry_ms, b"GT")


def read_control(connection: RespConnection, name: bytes) -> bytes | None:
    """Returns a control value."""
    connection.send(encoded(b"GET", name))
    return connection.short_value(MOST_CONTROL_BYTES)


def write_control(
    connection: RespConnection,
    name: bytes,
    value: bytes,
    life_ms: int,
    *,
    only_if_absent: bool,
    replicas: int,
) -> bool:
    """Writes a control value, and returns whether it did so, once enough replicas have it.

    Raises ``ReplicasMissing`` if they do not have it in time.
    """
    condition = [b"NX"] if only_if_absent else []
    connection.send(encoded(b"SET", name, value, b"PX", b"%d" % life_ms, *condition))
    if not connection.stored():
        return False
    if replicas:
        left_ms = max(int((connection.deadline - monotonic()) * 1000 * _WAIT_SHARE), 1)
        connection.send(encoded(b"WAIT", b"%d" % replicas, b"%d" % left_ms))
        if (count := connection.integer()) < replicas:
            raise ReplicasMissing(f"{count} replicas have the value in time, and {replicas} must")
    return True


def ping(connection: RespConnection) -> None:
    """Returns if the server answers."""
    connection.send(encoded(b"PING"))
    if (status := connection.simple()) != b"PONG":
        raise connection.malformed(f"{status[:40]!r} instead of PONG")
