"""Checks of kvstore-ctl doctor on the store's part of the machine's memory."""

from kvstore.v1 import store_pb2, types_pb2
from kvstore_ctl.doctor.findings import Finding, failed, ok, skipped, warning
from kvstore_ctl.doctor.host_checks import HostFacts
from kvstore_ctl.top.frame import mebibytes

# Shares of the machine's memory, or of a limit.
MUCH = 0.8
NEARLY_ALL = 0.95


def machine_memory_check(
    facts: HostFacts,
    stats: store_pb2.GetStatsResponse,
    *,
    on_device: bool,
    answered: bool = True,
) -> Finding:
    """Checks the arenas' part of the host's memory, and the memory that is left.

    Only a store that ``answered`` tells the size of its arenas.
    """
    name = "memory"
    total, available = facts.memory_bytes()
    if not total:
        return skipped(name, "/proc/meminfo cannot be read")
    taken = arena_bytes(stats, on_device=on_device)
    found = f"arenas take {mebibytes(taken)} of {mebibytes(total)}, {mebibytes(available)} left"
    if not answered:
        left = f"{mebibytes(available)} of {mebibytes(total)} left"
        found = f"no store tells the size of its arenas; {left}"
    if taken > total * MUCH:
        advice = "lower --tier1-bytes (or --tier2-bytes): engines need memory beside the store's"
        return warning(name, found, advice)
    if available < total * (1 - NEARLY_ALL):
        return warning(name, found, "the machine is nearly out of memory: find what uses it")
    return ok(name, found) if answered else skipped(name, found)


def limits_check(
    facts: HostFacts, stats: store_pb2.GetStatsResponse, pid: int | None, *, on_device: bool
) -> Finding:
    """Checks the memory limits of the server's cgroups and of this one's.

    The server's include its arenas, except those that a holder's process made.
    """
    name = "container limits"
    taken = arena_bytes(stats, on_device=on_device)
    by_holder = stats.succession.holder not in ("", "systemd")
    limits = {"this process": facts.memory_limits("self")}
    if pid is not None:
        limits = {"the server": facts.memory_limits(pid)} | limits
    for whose, found in limits.items():
        for each in found:
            said = (
                f"{whose}: {mebibytes(each.used_bytes)} of {mebibytes(each.limit_bytes)}"
                f" by {each.path}"
            )
            if each.used_bytes > each.limit_bytes * NEARLY_ALL:
                return failed(name, said, "raise the limit, or lower --tier1-bytes")
            elsewhere = by_holder and each.used_bytes < taken
            if whose == "the server" and taken > each.limit_bytes * MUCH and not elsewhere:
                advice = "raise the limit well above --tier1-bytes and --tier2-bytes together"
                return warning(name, f"{said}; arenas take {mebibytes(taken)}", advice)
            if each.killed_count:
                # Counted since the cgroup was made, so it does not tell the present state.
                advice = "raise the limit: it must suffice for the arenas and everything else in it"
                killed = f"{said}; {each.killed_count} processes were killed in it so far"
                return warning(name, killed, advice)
    seen = [
        f"{whose} {mebibytes(min(e.limit_bytes for e in f))}" for whose, f in limits.items() if f
    ]
    return ok(name, "limits: " + ", ".join(seen) if seen else "none")


def arena_bytes(stats: store_pb2.GetStatsResponse, *, on_device: bool) -> int:
    """Returns the bytes of all arenas in host memory."""
    return sum(
        each.slot_count * each.slot_bytes
        for each in stats.arenas
        if not (on_device and each.tier == types_pb2.TIER_1)
    )
