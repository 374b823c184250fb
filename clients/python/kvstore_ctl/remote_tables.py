"""The remote tier as kvstore-ctl prints it: a table, and a line for top."""

from collections.abc import Iterable, Mapping

from rich.table import Table

from kvstore.v1 import store_pb2
from kvstore_ctl.terminal_text import counted, printable

MEBIBYTE = 1 << 20


def remote_state(remote: store_pb2.RemoteStats) -> str:
    """Returns the state of a remote tier in one word."""
    return store_pb2.RemoteStats.State.Name(remote.state).removeprefix("STATE_").lower()


def remote_table(remote: store_pb2.RemoteStats) -> Table:
    """Returns a table of the remote tier. Callers other than admins see only its state."""
    table = Table("remote tier", remote_state(remote), title_justify="left")
    if not remote.address:
        return table
    looks = f"{remote.hit_look_count}, {remote.partial_look_count}, {remote.missed_look_count}"
    unanswered = f"{remote.skipped_look_count}, {remote.failed_look_count}"
    rows: Mapping[str, object] = {
        "address": remote.address,
        "key id": remote.key_id.hex(),
        "writes": remote.write_policy,
        "lookups: all, some, no pages": looks,
        "lookups: not asked, not answered": unanswered,
        "a lookup takes, ms": f"{remote.look_seconds * 1e3:.1f}",
        "pages read, MiB": f"{remote.read_page_count}, {remote.read_byte_count // MEBIBYTE}",
        "pages written, MiB": (
            f"{remote.written_page_count}, {remote.written_byte_count // MEBIBYTE}"
        ),
        "pages not written": _reasons(remote.refused_pages),
        "pinned pages refreshed, absent": (
            f"{remote.refreshed_pin_page_count}, {remote.absent_pin_page_count}"
        ),
        "values rejected": _reasons(remote.rejected_pages),
        "loads, late, declined": (
            f"{remote.load_count}, {remote.late_load_count}, {remote.declined_load_count}"
        ),
        "loads, MiB a second": f"{remote.bytes_per_second / MEBIBYTE:.0f}",
        "prefill saved, s": f"{remote.saved_prefill_time.ToTimedelta().total_seconds():.1f}",
        "nodes": _with(str(remote.node_count), _away(remote.nodes_away)),
        "times away": _with(str(remote.away_count), remote.reason),
        "removals not confirmed": remote.pending_removal_count,
    }
    for name, value in rows.items():
        table.add_row(name, printable(str(value)))
    return table


def remote_line(remote: store_pb2.RemoteStats) -> str:
    """Returns a line for top: the state, the pages read and written, and an alarm."""
    state = remote_state(remote)
    if not remote.address:
        return state
    answered = remote.hit_look_count + remote.partial_look_count
    asked = answered + remote.missed_look_count + remote.failed_look_count
    parts = [
        _with(state, "" if remote.state == store_pb2.RemoteStats.STATE_OPEN else remote.reason),
        f"{answered} of {counted(asked, 'lookup')} found pages",
        f"read {counted(remote.read_page_count, 'page')}",
        f"wrote {remote.written_page_count}",
    ]
    if remote.pending_removal_count:
        parts.append(f"{counted(remote.pending_removal_count, 'removal')} not confirmed")
    return "; ".join(parts)


def is_alarm(remote: store_pb2.RemoteStats) -> bool:
    """Returns True if the remote tier does not work, or does not keep a promise."""
    usable = remote.state == store_pb2.RemoteStats.STATE_OPEN
    return not usable or remote.pending_removal_count > 0 or remote.writes_stopped


def _reasons(counts: Iterable[store_pb2.ReasonCount]) -> str:
    return ", ".join(f"{each.reason} {each.count}" for each in counts if each.count) or "0"


def _away(nodes: Iterable[str]) -> str:
    names = ", ".join(nodes)
    return f"away: {names}" if names else ""


def _with(word: str, reason: str) -> str:
    return f"{word} ({reason})" if reason else word
