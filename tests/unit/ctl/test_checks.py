"""Checks of kvstore-ctl doctor on simulated machines."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.v1 import store_pb2
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_ctl.doctor import device_checks, host_checks, memory_checks, store_checks
from kvstore_ctl.doctor.findings import Finding, Verdict, failed, ok, skipped, warning, worst
from kvstore_ctl.doctor.host_checks import START, HostFacts

MIB = 1 << 20
DEVICE = bytes(range(16))
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
CGROUP = "sys/fs/cgroup/pod"
SERVER = 42
ARENAS = store_pb2.GetStatsResponse(
    arenas=[
        {"tier": 1, "slot_count": 80, "slot_bytes": MIB},
        {"tier": 2, "slot_count": 10, "slot_bytes": MIB},
    ]
)


def machine(root: Path, files: dict[str, str]) -> HostFacts:
    """Returns the facts of a machine that has these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return HostFacts(root)


def meminfo(total: int, available: int) -> dict[str, str]:
    """Returns a machine's memory, in MiB."""
    text = f"MemTotal: {total * 1024} kB\nMemAvailable: {available * 1024} kB\n"
    return {"proc/meminfo": text}


def cgroup(limit: int, used: int, killed: int = 0) -> dict[str, str]:
    """Returns the server's cgroup with its limit, in MiB."""
    return {
        "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        f"proc/{SERVER}/cgroup": "0::/pod\n",
        f"{CGROUP}/memory.max": f"{limit * MIB}\n",
        f"{CGROUP}/memory.current": f"{used * MIB}\n",
        f"{CGROUP}/memory.events.local": f"oom_kill {killed}\n",
    }


def says(finding: Finding, outcome: Verdict, *words: str) -> bool:
    """Returns whether a finding has this outcome and the words. A bad outcome needs advice."""
    text = f"{finding.found} {finding.advice}"
    assert bool(finding.advice) == (outcome in (Verdict.WARNING, Verdict.FAILED)), finding
    return finding.outcome is outcome and all(each in text for each in words)


@pytest.mark.parametrize(
    ("total", "available", "on_device", "outcome"),
    [
        (1000, 500, False, Verdict.OK),
        (100, 50, False, Verdict.WARNING),
        (100, 50, True, Verdict.OK),
        (1000, 20, False, Verdict.WARNING),
    ],
)
def test_arenas_are_weighed_against_the_machine(
    tmp_path: Path, total: int, available: int, *, on_device: bool, outcome: Verdict
) -> None:
    """Arenas are compared with the machine's memory, unless they are on a device."""
    facts = machine(tmp_path, meminfo(total, available))
    finding = memory_checks.machine_memory_check(facts, ARENAS, on_device=on_device)
    assert says(finding, outcome, f"of {total} MiB" if total > 100 else "100 MiB")


@pytest.mark.parametrize(("available", "outcome"), [(50, Verdict.SKIPPED), (2, Verdict.WARNING)])
def test_without_an_answer_nothing_is_said_of_arenas(
    tmp_path: Path, available: int, outcome: Verdict
) -> None:
    """Without an answer of the store, the machine's free memory is checked alone."""
    facts = machine(tmp_path, meminfo(100, available))
    nothing = store_pb2.GetStatsResponse()
    finding = memory_checks.machine_memory_check(facts, nothing, on_device=False, answered=False)
    assert says(finding, outcome, "no store tells", "of 100 MiB left")


def test_a_machine_that_says_nothing_is_skipped(tmp_path: Path) -> None:
    """A machine without meminfo gives no finding."""
    facts = HostFacts(tmp_path)
    finding = memory_checks.machine_memory_check(facts, ARENAS, on_device=False)
    assert says(finding, Verdict.SKIPPED)
    assert says(host_checks.clock_check(facts), Verdict.SKIPPED)


@pytest.mark.parametrize(
    ("limits", "outcome", "words"),
    [
        (cgroup(1000, 10), Verdict.OK, "the server 1000 MiB"),
        (cgroup(100, 50), Verdict.WARNING, "arenas take 90 MiB"),
        (cgroup(200, 199), Verdict.FAILED, "199 MiB of 200 MiB"),
        (cgroup(1000, 10, killed=2), Verdict.WARNING, "2 processes were killed"),
        ({}, Verdict.OK, "none"),
    ],
)
def test_limits_of_the_server_s_container_count(
    tmp_path: Path, limits: dict[str, str], outcome: Verdict, words: str
) -> None:
    """Arenas have to fit into the container's limit, and a kill for memory is reported."""
    facts = machine(tmp_path, limits)
    finding = memory_checks.limits_check(facts, ARENAS, SERVER, on_device=False)
    assert says(finding, outcome, words)


@pytest.mark.parametrize(
    ("holder", "used", "outcome"),
    [
        ("/run/kvstore-holder", 50, Verdict.OK),
        # Large pages, for example, are the server's own although there is a holder.
        ("/run/kvstore-holder", 92, Verdict.WARNING),
        ("systemd", 50, Verdict.WARNING),
    ],
)
def test_memory_that_a_holder_made_is_not_the_server_s(
    tmp_path: Path, holder: str, used: int, outcome: Verdict
) -> None:
    """A server whose holder made the arenas needs no room for them in its own container."""
    stats = store_pb2.GetStatsResponse(succession={"holder": holder})
    stats.MergeFrom(ARENAS)
    facts = machine(tmp_path, cgroup(100, used))
    assert says(memory_checks.limits_check(facts, stats, SERVER, on_device=False), outcome)


@pytest.mark.parametrize(
    ("succession", "on_device", "has_tier_2", "outcome", "words"),
    [
        ({}, False, False, Verdict.SKIPPED, ["older"]),
        ({"state": "STATE_OFF"}, False, True, Verdict.WARNING, ["all its pages", "--holder"]),
        ({"state": "STATE_OFF"}, True, False, Verdict.OK, ["GPU's memory"]),
        ({"state": "STATE_OFF"}, True, True, Verdict.WARNING, ["--holder"]),
        ({"state": "STATE_KEPT"}, False, False, Verdict.OK, ["has everything"]),
        ({"state": "STATE_KEPT"}, True, True, Verdict.OK, ["only tier 2 stays"]),
        ({"state": "STATE_KEPT"}, True, False, Verdict.WARNING, ["--tier2-bytes"]),
        (
            {"state": "STATE_BEHIND", "holder": "/run/h", "behind_count": 1},
            *(False, False, Verdict.WARNING, ["lacks 1 descriptor", "runs in /run/h"]),
        ),
        (
            {"state": "STATE_BEHIND", "failure_reason": "too many descriptors"},
            *(False, False, Verdict.WARNING, ["(too many descriptors)", "folder of --holder"]),
        ),
        (
            {"state": "STATE_GIVEN_UP", "failure_reason": "RingFull: 7"},
            *(False, False, Verdict.FAILED, ["(RingFull: 7)", "--journal-bytes"]),
        ),
    ],
)
def test_what_outlives_the_server_is_said(
    succession: dict[str, object],
    *,
    on_device: bool,
    has_tier_2: bool,
    outcome: Verdict,
    words: list[str],
) -> None:
    """The doctor says what a kill of the server costs, and which memory cannot outlive it."""
    message = store_pb2.SuccessionStats(**succession)  # type: ignore[arg-type]
    finding = store_checks.holder_check(message, on_device=on_device, has_tier_2=has_tier_2)
    assert says(finding, outcome, *words)


def test_kv_events_are_named_with_their_addresses() -> None:
    """Lost changes are a warning, and a store without events has nothing to check."""
    check = store_checks.kv_events_check
    stats = store_pb2.GetStatsResponse()
    assert says(check(stats), Verdict.SKIPPED, "--kv-events")
    stats.kv_events.add(tenant="uid-7", endpoint="ipc:///run/x.pub")
    stats.kv_events.add(tenant="team", endpoint="tcp://[::]:5557")
    assert says(check(stats), Verdict.OK, "uid-7 at ipc:///run/x.pub, team at tcp://[::]:5557")
    stats.kv_events[1].lost_change_count = 3
    assert says(check(stats), Verdict.WARNING, "3 changes")


def test_a_slow_clock_is_seen(tmp_path: Path) -> None:
    """A slow clock source gives a warning that names it and the fast one."""
    assert says(host_checks.clock_check(machine(tmp_path, {CLOCK: "tsc\n"})), Verdict.OK)
    slow = host_checks.clock_check(machine(tmp_path, {CLOCK: "hpet\n"}))
    assert says(slow, Verdict.WARNING, "hpet", "clocksource=tsc")


def test_descriptors_that_run_out_are_seen(tmp_path: Path) -> None:
    """The server's own descriptors are counted if they are visible."""
    limits = "Max open files  {}  {}  files\n"
    files = {f"proc/{SERVER}/fd/{each}": "" for each in range(9)}
    files |= {"proc/self/limits": limits.format(4096, 4096)}
    facts = machine(tmp_path, files | {f"proc/{SERVER}/limits": limits.format(10, 10)})
    assert says(host_checks.descriptors_check(facts, SERVER), Verdict.FAILED, "9 of 10")
    facts = machine(tmp_path, {f"proc/{SERVER}/limits": limits.format(512, 512)})
    assert says(host_checks.descriptors_check(facts, SERVER), Verdict.WARNING, "512")
    assert says(host_checks.descriptors_check(facts, None), Verdict.OK, "4096")
    machine(tmp_path, {"proc/self/limits": limits.format(256, 256)})
    assert says(host_checks.descriptors_check(facts, None), Verdict.WARNING, "process here")


@pytest.fixture
def no_descriptors() -> Iterator[None]:
    """Leaves this process no further descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_sealed_memory_is_tried() -> None:
    """The shm folder is not checked if the kernel has sealed memory."""
    assert says(host_checks.memfd_check(), Verdict.OK, "shm does not matter")


@pytest.mark.usefixtures("no_descriptors")
def test_sealed_memory_that_cannot_be_had_is_seen() -> None:
    """Missing sealed memory is reported with the kernel's own reason."""
    assert says(host_checks.memfd_check(), Verdict.FAILED, os.strerror(24))


def test_a_kernel_that_does_not_name_peers_is_seen() -> None:
    """A kernel before Linux 6.5 lacks the option that names peers, and is reported."""
    assert says(host_checks.kernel_check(option=9999), Verdict.WARNING, "Linux 6.5")
    assert host_checks.kernel_check().outcome is not Verdict.FAILED


def test_a_folder_without_a_store_is_seen(tmp_path: Path) -> None:
    """A folder that is missing, empty or has something else in it is reported."""
    assert says(host_checks.socket_check(RuntimeDir(tmp_path / "no")), Verdict.FAILED, START)
    paths = RuntimeDir(tmp_path)
    assert says(host_checks.socket_check(paths), Verdict.FAILED, "attach.sock", START)
    paths.attach_socket.touch()
    a_file = RuntimeDir(paths.attach_socket)
    assert says(host_checks.socket_check(a_file), Verdict.FAILED, START)
    assert says(host_checks.socket_check(paths), Verdict.FAILED, "no socket", "remove it")
    assert host_checks.server_pid(HostFacts(), paths) is None


def test_a_server_is_known_by_the_flock_that_it_holds(tmp_path: Path) -> None:
    """The server's pid is the one in the kernel's locks, unless it is of another pid namespace."""
    paths, check = RuntimeDir(tmp_path), host_checks.server_pid
    paths.flock_file.write_text("7\n", encoding="ascii")
    held = f"1: FLOCK  ADVISORY  WRITE {{}} fe:00:{paths.flock_file.stat().st_ino} 0 EOF\n"
    other = "2: POSIX  ADVISORY  WRITE 9 fe:00:1 0 EOF\n"
    assert check(machine(tmp_path, {"proc/locks": held.format(7) + other}), paths) == 7
    assert check(machine(tmp_path, {"proc/locks": held.format(4711) + other}), paths) == 4711
    assert check(machine(tmp_path, {"proc/locks": other}), paths) is None
    assert check(machine(tmp_path, {"proc/locks": ""}), paths) == 7


def loads(_: str) -> None:
    """Loads a driver."""


def fails(name: str) -> None:
    """Raises like a system without a driver."""
    raise OSError(name)


@pytest.mark.parametrize(
    ("uuid", "visible", "load", "outcome"),
    [
        (None, [], fails, Verdict.OK),
        (None, ["dev/nvidia0"], loads, Verdict.OK),
        (None, ["dev/nvidia0"], fails, Verdict.WARNING),
        (DEVICE, ["dev/nvidia0"], loads, Verdict.OK),
        (DEVICE, ["dev/nvidia0"], fails, Verdict.FAILED),
        (DEVICE, [], loads, Verdict.FAILED),
    ],
)
def test_a_device_is_looked_for(
    tmp_path: Path, uuid: bytes | None, visible: list[str], load: object, outcome: Verdict
) -> None:
    """A store on a device needs driver and device here. A store in host memory needs neither."""
    facts = machine(tmp_path, dict.fromkeys(visible, ""))
    words = "00010203-0405" if uuid else "host memory"
    assert says(device_checks.driver_check(facts, uuid, load=load), outcome, words)


@pytest.mark.parametrize(
    ("visible", "load", "outcome"),
    [
        ([], fails, Verdict.SKIPPED),
        (["dev/nvidia0"], loads, Verdict.SKIPPED),
        (["dev/nvidia0"], fails, Verdict.WARNING),
    ],
)
def test_without_an_answer_nothing_is_said_of_pages(
    tmp_path: Path, visible: list[str], load: object, outcome: Verdict
) -> None:
    """Without an answer of the store, only the devices and drivers of this host are checked."""
    facts = machine(tmp_path, dict.fromkeys(visible, ""))
    finding = device_checks.driver_check(facts, None, answered=False, load=load)
    assert says(finding, outcome, "no store tells where", "visible")
    assert says(device_checks.ipc_check(facts, None, None, answered=False), Verdict.SKIPPED)


def test_what_shares_a_device_s_memory_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ipc and pid namespaces have to be the server's, and MPS must not run."""
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    facts, check = HostFacts(tmp_path), device_checks.ipc_check
    for pid in ("self", str(SERVER)):
        folder = tmp_path / "proc" / pid / "ns"
        folder.mkdir(parents=True)
        for kind in ("ipc", "pid"):
            (folder / kind).symlink_to(f"{kind}:[1]")
    assert says(check(facts, None, SERVER, tmp_path), Verdict.SKIPPED)
    assert says(check(facts, DEVICE, None, tmp_path), Verdict.SKIPPED)
    assert says(check(facts, DEVICE, SERVER, tmp_path), Verdict.OK)
    other = tmp_path / "proc" / str(SERVER) / "ns" / "ipc"
    other.unlink()
    other.symlink_to("ipc:[2]")
    assert says(check(facts, DEVICE, SERVER, tmp_path), Verdict.FAILED, "docker --ipc")
    (other.parent / "pid").unlink()
    (other.parent / "pid").symlink_to("pid:[2]")
    other.unlink()
    other.symlink_to("ipc:[1]")
    assert says(check(facts, DEVICE, SERVER, tmp_path), Verdict.FAILED, "compose `pid: host`")
    (tmp_path / "control").touch()
    assert says(check(facts, DEVICE, SERVER, tmp_path), Verdict.FAILED, "MPS")


def test_the_worst_finding_is_the_outcome() -> None:
    """The worst finding is the outcome, and a skipped check counts as nothing."""
    found = [ok("a", ""), skipped("b", ""), warning("c", "", "do"), failed("d", "", "do")]
    assert [worst(found[:end]).value for end in range(5)] == ["ok", "ok", "ok", "warning", "failed"]


def test_a_store_on_a_device_is_known_by_its_extents() -> None:
    """A store's extents have the UUID of its device, and none in host memory."""
    message = store_pb2.GetCapabilitiesResponse(extents=[{"host": {}}])
    assert device_checks.device_of(message) is None
    message.extents.add(cuda_ipc={"device_uuid": DEVICE})
    assert device_checks.device_of(message) == DEVICE
