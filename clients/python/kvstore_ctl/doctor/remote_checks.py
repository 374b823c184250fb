"""Checks of kvstore-ctl doctor on the remote tier."""

from collections.abc import Iterator

from kvstore.v1 import store_pb2
from kvstore_ctl.doctor.findings import Finding, failed, ok, skipped, warning
from kvstore_ctl.remote_tables import remote_state
from kvstore_ctl.terminal_text import counted

NAME = "remote tier"
# Lookups below which a share means nothing.
FEW = 50
# A share of the lookups that the engine may leave unanswered.
MANY_FAILED = 0.02
# Seconds between two clocks.
MUCH_SKEW = 60.0


def remote_checks(stats: store_pb2.GetStatsResponse) -> Iterator[Finding]:
    """Yields the findings about a remote tier; one that says so without a tier."""
    if not stats.HasField("remote"):
        yield ok(NAME, "none: hosts share no pages")
        return
    remote = stats.remote
    if not remote.address:
        yield skipped(NAME, f"{remote_state(remote)}; only an admin sees more")
        return
    yield _state(remote)
    yield _removals(remote)
    yield _lookups(remote)
    yield _values(remote)
    yield _revisions(remote)
    yield _clock(remote)
    yield from _settings(remote)


def _state(remote: store_pb2.RemoteStats) -> Finding:
    where = f"{remote.address}, key id {remote.key_id.hex()}, writes {remote.write_policy}"
    if remote.writes_stopped:
        found = f"{where}: this host stopped its writes, since many of its pages are corrupt"
        return failed(NAME, found, "test the host's memory, then restart the server")
    if remote.state == store_pb2.RemoteStats.STATE_AWAY:
        found = f"{where}: away: {remote.reason or 'it has not answered yet'}"
        return warning(NAME, found, _advice(remote.reason))
    return ok(NAME, f"{where}: {remote_state(remote)}; other hosts have to show the same key id")


def _advice(reason: str) -> str:
    """Returns what to do about an engine that does not answer, by the words of its error."""
    if any(word in reason for word in ("NOAUTH", "WRONGPASS", "NOPERM")):
        return (
            "see the engine's ACL and --remote-credential-file, which is read again by itself:"
            " docs/remote-engines.md has the rights"
        )
    if "CERTIFICATE" in reason.upper():
        return "see --remote-ca-file, and that the address has the certificate's name"
    return "see the engine and the network; requests are served without it meanwhile"


def _removals(remote: store_pb2.RemoteStats) -> Finding:
    name = "remote removals"
    if not remote.pending_removal_count:
        return ok(name, "all confirmed")
    found = f"{counted(remote.pending_removal_count, 'namespace')} with a removal not confirmed"
    advice = (
        "other hosts may still find the removed pages: bring the engine back, and this host"
        " repeats them; keep --remote-state-dir until then"
    )
    return failed(name, found, advice)


def _lookups(remote: store_pb2.RemoteStats) -> Finding:
    name = "remote lookups"
    found = remote.hit_look_count + remote.partial_look_count
    asked = found + remote.missed_look_count + remote.failed_look_count
    seen = f"{found} of {counted(asked, 'lookup')} found pages, {remote.failed_look_count} failed"
    if asked < FEW:
        return ok(name, f"{seen}: too few to judge")
    if remote.failed_look_count > asked * MANY_FAILED:
        return warning(name, seen, "the engine is slow or far: see its load, or --remote-timeout")
    if not found and remote.write_policy != "off":
        advice = "compare the key id, --remote-producer and the tenants' names on all hosts"
        return warning(name, seen, advice)
    return ok(name, f"{seen}, {remote.look_seconds * 1e3:.1f} ms each")


def _values(remote: store_pb2.RemoteStats) -> Finding:
    name = "remote pages"
    counts = {each.reason: each.count for each in remote.rejected_pages if each.count}
    if not counts:
        return ok(name, f"{counted(remote.read_page_count, 'page')} read, all correct")
    found = ", ".join(f"{count} by {reason}" for reason, count in counts.items()) + " rejected"
    if counts.keys() <= {"format", "secret"}:
        advice = "hosts have other keys or versions: compare the key id and the versions"
        return warning(name, found, advice)
    advice = "nothing wrong was served: look for bad memory, and for who may write to the engine"
    return warning(name, found, advice)


def _revisions(remote: store_pb2.RemoteStats) -> Finding:
    name = "remote revisions"
    if remote.forged_revision_count:
        found = f"{remote.forged_revision_count} were not made with this secret"
        return warning(name, found, "see who else may write to the engine")
    if remote.lost_revision_count:
        found = f"{remote.lost_revision_count} were lost: their namespaces began anew"
        return warning(name, found, "set maxmemory-policy to volatile-ttl, and see its restarts")
    return ok(name, "none lost")


def _clock(remote: store_pb2.RemoteStats) -> Finding:
    name, skew = "remote clock", remote.clock_skew_seconds
    found = f"the engine's is {abs(skew):.1f} s {'ahead' if skew >= 0 else 'behind'}"
    if abs(skew) > MUCH_SKEW:
        return warning(name, found, "set the clock of this host or of the engine by NTP")
    return ok(name, found)


def _settings(remote: store_pb2.RemoteStats) -> Iterator[Finding]:
    name = "engine settings"
    for each in remote.findings:
        found = f"{each.setting} {each.value}: {each.reason}"
        if each.kind == store_pb2.EngineFinding.KIND_UNKNOWN:
            yield skipped(name, found)
        else:
            breaks = each.kind == store_pb2.EngineFinding.KIND_PROMISE
            yield (failed if breaks else warning)(name, found, each.remedy)
    if not remote.findings:
        yield ok(name, "nothing found, as far as the engine shows them")
