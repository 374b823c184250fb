"""kvstore-ctl doctor: checks a store and its host, and gives advice."""

from collections.abc import Iterator
from typing import NamedTuple

import grpc
import typer

from kvstore.v1 import store_pb2, types_pb2
from kvstore_client.admin import connect_admin, connect_remote_admin
from kvstore_client.calls.health import LIVENESS, READINESS, SERVING, health_of
from kvstore_client.errors import StoreError
from kvstore_client.remote_store import RemoteStore
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_ctl.console import EXIT_REFUSED, EXIT_USAGE, AsJson, RuntimeDirOption, show, show_json
from kvstore_ctl.doctor import device_checks, host_checks, memory_checks, store_checks
from kvstore_ctl.doctor.findings import (
    Finding,
    Verdict,
    failed,
    findings_table,
    ok,
    plain_findings,
    skipped,
    worst,
)
from kvstore_ctl.doctor.host_checks import HostFacts
from kvstore_ctl.doctor.remote_checks import remote_checks
from kvstore_ctl.store_options import remote_of
from kvstore_ctl.terminal_text import counted

ANSWERS = "answers"
# Seconds for each call, so that a hung store is found soon.
TIMEOUT = 5.0


class Seen(NamedTuple):
    """The answers of a store."""

    stats: store_pb2.GetStatsResponse
    capabilities: store_pb2.GetCapabilitiesResponse


def doctor(*, runtime_dir: RuntimeDirOption = None, as_json: AsJson = False) -> None:
    """Checks the store, its host and its use by workers, and gives advice.

    Each check ends as ok, warning, failed, or skipped if it cannot be made from here. The exit
    status is 1 if a check failed, or if no store answers.
    """
    try:
        remote = remote_of()
        paths = RuntimeDir(runtime_dir)
        findings = list(_here(paths) if remote is None else _there(remote))
    except ValueError as error:
        typer.echo(f"kvstore-ctl: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    outcome = worst(findings)
    if as_json:
        show_json({"outcome": outcome.value, "checks": plain_findings(findings)})
    else:
        show(findings_table(findings))
        typer.echo(f"\n{_summary(findings)}")
    if outcome is Verdict.FAILED:
        raise typer.Exit(EXIT_REFUSED)


def _here(paths: RuntimeDir) -> Iterator[Finding]:
    facts = HostFacts()
    pid = host_checks.server_pid(facts, paths)
    socket, seen = host_checks.socket_check(paths), None
    yield socket
    if socket.outcome is Verdict.FAILED:
        for name in (LIVENESS, READINESS, ANSWERS):
            yield skipped(name, "no store runs here: see socket")
    else:
        with grpc.insecure_channel(paths.grpc_target) as channel:
            yield from _health(channel)
        seen, answer = _ask(paths)
        yield answer
    yield host_checks.kernel_check()
    yield host_checks.memfd_check()
    yield host_checks.descriptors_check(facts, pid)
    yield host_checks.clock_check(facts)
    uuid = None if seen is None else device_checks.device_of(seen.capabilities)
    stats = store_pb2.GetStatsResponse() if seen is None else seen.stats
    on_device, answered = uuid is not None, seen is not None
    yield memory_checks.machine_memory_check(facts, stats, on_device=on_device, answered=answered)
    yield memory_checks.limits_check(facts, stats, pid, on_device=on_device)
    yield device_checks.driver_check(facts, uuid, answered=answered)
    yield device_checks.ipc_check(facts, uuid, pid, answered=answered)
    if seen is not None:
        yield from _store(seen)


def _there(remote: RemoteStore) -> Iterator[Finding]:
    with remote.channel() as channel:
        yield from _health(channel)
    seen, answer = _ask(remote)
    yield answer
    yield skipped("host", f"{remote.address} is another host: run doctor there too")
    if seen is not None:
        yield from _store(seen)


def _health(channel: grpc.Channel) -> Iterator[Finding]:
    for service, advice in (
        (LIVENESS, "see the server's log; a supervisor restarts a store that is not live"),
        (READINESS, "the store starts, drains, or cannot allocate yet: see its log"),
    ):
        answer = health_of(channel, service, timeout=TIMEOUT)
        found = f"health says {answer}"
        yield ok(service, found) if answer == SERVING else failed(service, found, advice)


def _ask(where: RuntimeDir | RemoteStore) -> tuple[Seen | None, Finding]:
    """Returns the answers of the store, or None, and the finding."""
    try:
        with (
            connect_remote_admin(where, timeout=TIMEOUT)
            if isinstance(where, RemoteStore)
            else connect_admin(where.path, timeout=TIMEOUT)
        ) as admin:
            seen = Seen(admin.stats(), admin.capabilities())
    except StoreError as error:
        advice = "see the server's log, and check this user's, token's or certificate's permission"
        return None, failed(ANSWERS, str(error), advice)
    leases = counted(len(seen.stats.leases), "lease")
    found = f"as a store of epoch {seen.stats.store_epoch}, with {leases}"
    return seen, ok(ANSWERS, found)


def _store(seen: Seen) -> Iterator[Finding]:
    stats = seen.stats
    yield store_checks.versions_check(seen.capabilities)
    for check in store_checks.SNAPSHOT_CHECKS:
        yield check(stats)
    yield from remote_checks(stats)
    yield store_checks.kv_events_check(stats)
    # Only admins see the budgets.
    tiers = {each.tier for each in stats.arenas} | {each.tier for each in stats.tier_budgets}
    yield store_checks.holder_check(
        stats.succession,
        on_device=device_checks.device_of(seen.capabilities) is not None,
        has_tier_2=types_pb2.TIER_2 in tiers,
    )
    limit = seen.capabilities.limits.max_namespaces
    yield store_checks.namespaces_check(stats.namespaces, limit)
    yield store_checks.identities_check(stats.namespaces)


def _summary(findings: list[Finding]) -> str:
    counts = [
        f"{count} {outcome.value}"
        for outcome in Verdict
        if (count := sum(each.outcome is outcome for each in findings))
    ]
    return ", ".join(counts)
