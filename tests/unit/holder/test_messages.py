"""The parts of a holder's messages, and the descriptors that it accepts."""

import os
import socket
import struct
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.holder.holder_process import (
    ENTRY,
    HEADER,
    MAKE,
    MOST_DESCRIPTORS,
    OWN,
    REQUIRED_SEALS,
    SOCKET_NAME,
    STEP_BYTES,
    VERSION,
    DescriptorHolder,
    DescriptorIdentity,
    DescriptorKind,
    Refused,
    Result,
    Verb,
    close_all,
    is_dead,
    listen,
    lowest_bound,
    new_memfd,
    pack_entry,
    pack_names,
    pid_of,
    receive,
    send,
    unpack_entries,
    unpack_names,
)
from kvstore.storage.host import machine_limits
from processes.deposit_worker import sealed_memfd
from processes.open_descriptors import open_descriptors

SEQPACKET = socket.AF_UNIX, socket.SOCK_SEQPACKET
IDENTITY = DescriptorIdentity(DescriptorKind.MEMFD, REQUIRED_SEALS, 1 << 40, 7, 1 << 33)


def test_entries_come_back() -> None:
    """Names and identities survive the packing."""
    entries = [
        ("extent-1.data", IDENTITY),
        ("a" * 64, IDENTITY._replace(kind=DescriptorKind.PIDFD)),
    ]
    body = b"".join(pack_entry(*each) for each in entries)
    assert list(unpack_entries(2, body)) == entries


@pytest.mark.parametrize("cut", range(1, ENTRY.size + 3))
def test_an_entry_that_is_cut_off_is_refused(cut: int) -> None:
    """At every byte."""
    body = pack_entry("ab", IDENTITY)
    with pytest.raises((struct.error, ValueError)):
        list(unpack_entries(1, body[:-cut]))
    with pytest.raises(ValueError, match="came"):
        list(unpack_entries(1, body + bytes(cut)))


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a:b", "a\n", "ä", "../a/b"])
def test_a_name_that_systemd_would_refuse_is_refused(name: str) -> None:
    """Names are letters, digits, dots, dashes and underscores."""
    encoded = name.encode()
    with pytest.raises(ValueError):  # noqa: PT011  # of decoding, or of ours
        list(unpack_names(1, bytes([len(encoded)]) + encoded))


def test_names_come_back() -> None:
    """Each after its length; a cut one is refused."""
    assert list(unpack_names(2, pack_names(["a.b", "process-7"]))) == ["a.b", "process-7"]
    with pytest.raises((ValueError, IndexError)):
        list(unpack_names(2, pack_names(["a.b"])))


def test_the_identity_of_a_memfd() -> None:
    """It is the same through another descriptor, and not that of another memfd."""
    one, other = (new_memfd("kvstore-test", 4096, REQUIRED_SEALS) for _ in range(2))
    copy = os.dup(one)
    identity = DescriptorIdentity.of(one)
    assert identity[:3] == (DescriptorKind.MEMFD, REQUIRED_SEALS, 4096)
    identity.require(copy)
    with pytest.raises(Refused) as refused:
        identity.require(other)
    assert refused.value.result == Result.UNSUITABLE
    close_all([one, other, copy])


def test_other_descriptors_are_refused(tmp_path: Path) -> None:
    """Unsealed memory, files and sockets have no identity."""
    unsealed = os.memfd_create("kvstore-test", os.MFD_ALLOW_SEALING)
    with closing(socket.socket()) as other, (tmp_path / "file").open("wb") as file:
        for each in (unsealed, other.fileno(), file.fileno()):
            with pytest.raises(Refused):
                DescriptorIdentity.of(each)
    os.close(unsealed)


def test_a_pidfd_tells_whose_it_is() -> None:
    """Its kind, its pid and its death; other descriptors have no pid."""
    child = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(child.pid)
    assert DescriptorIdentity.of(pidfd)[:3] == (DescriptorKind.PIDFD, 0, 0)
    assert pid_of(pidfd) == child.pid
    child.wait()
    assert is_dead(pidfd)
    assert pid_of(pidfd) == -1
    os.close(pidfd)
    own = os.pidfd_open(os.getpid())
    assert not is_dead(own)
    os.close(own)
    with closing(socket.socket()) as other:
        assert pid_of(other.fileno()) is None


def test_descriptors_travel_close_on_exec() -> None:
    """As many as one message takes."""
    descriptor = sealed_memfd("kvstore-test", b"seen")
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        send(one, b"message", [descriptor] * MOST_DESCRIPTORS)
        message, received = receive(other)
    assert message == b"message"
    assert len(received) == MOST_DESCRIPTORS
    assert not any(os.get_inheritable(each) for each in received)
    assert os.pread(received[-1], 4, 0) == b"seen"
    close_all([descriptor, *received])


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [
        ("0::/a/b", "sys/fs/cgroup/a", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:cpu,memory:/a/b",
            "sys/fs/cgroup/memory/a",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_the_lowest_bound_is_the_store_s_own(
    tmp_path: Path, line: str, folder: str, names: tuple[str, str, str]
) -> None:
    """The holder's few lines find what the store's reader of cgroups finds, of both versions."""
    limit, usage, reclaimable = names
    files = {
        "proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 512000 kB\n",
        "proc/self/cgroup": f"{line}\n",
        "proc/self/mountinfo": (
            "30 20 0:1 / /sys/fs/cgroup rw - cgroup2 none rw\n"
            if "::" in line
            else "30 20 0:1 / /sys/fs/cgroup/memory rw - cgroup none rw,memory\n"
        ),
        f"{folder}/{limit}": f"{700 << 20}\n",
        f"{folder}/{usage}": f"{300 << 20}\n",
        f"{folder}/memory.stat": f"anon 1\n{reclaimable} {1 << 20}\n",
        f"{folder}/b/{limit}": "max\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = lowest_bound(tmp_path)
    assert found.available_bytes == 401 << 20
    assert found.available_bytes == min(b.available_bytes for b in machine_limits.bounds(tmp_path))
    (tmp_path / folder / limit).write_text("9223372036854771712\n")
    assert lowest_bound(tmp_path) == (512000 << 10, "MemAvailable")
    assert lowest_bound(tmp_path / "nothing").source == "no bound"


def test_memory_is_compared_before_each_step(tmp_path: Path) -> None:
    """A machine that runs out while the holder allocates ends the allocation, and frees it."""
    meminfo = tmp_path / "proc" / "meminfo"
    meminfo.parent.mkdir()
    meminfo.write_text(f"MemAvailable: {3 * STEP_BYTES >> 10} kB\n")
    folder = tmp_path / "holder"
    folder.mkdir()
    with closing(listen(folder)) as listener, socket.socket(*SEQPACKET) as owner:
        holder = DescriptorHolder(listener, grace_seconds=9, most_descriptors=9, root=tmp_path)
        owner.settimeout(30)
        owner.connect(str(folder / SOCKET_NAME))
        holder._accept()
        (connection,) = holder._connections.values()
        pidfd = os.pidfd_open(os.getpid())
        send(owner, HEADER.pack(VERSION, Verb.OWN, 0) + OWN.pack(1, 0), [pidfd])
        os.close(pidfd)
        holder._serve(connection)
        assert receive(owner)[0][1] == Result.DONE
        body = MAKE.pack(2 * STEP_BYTES, REQUIRED_SEALS) + b"kvstore-made"
        send(owner, HEADER.pack(VERSION, Verb.MAKE, 0) + body)
        holder._serve(connection)
        (allocation,) = holder._allocations
        holder._allocate(allocation)
        assert allocation.done_bytes == STEP_BYTES
        meminfo.write_text("MemAvailable: 8 kB\n")
        holder._allocate(allocation)
        answer, descriptors = receive(owner)
        assert (answer[1], descriptors, list(holder._allocations)) == (Result.NO_MEMORY, [], [])
        assert b"MemAvailable has 8192" in answer
        assert not open_descriptors("kvstore-made")
        holder._forget(connection)
        holder._watch(None)
