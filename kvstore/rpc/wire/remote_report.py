"""The remote tier's counters as a message."""

from collections.abc import Mapping

from kvstore.remote.finding import FindingKind
from kvstore.remote.remote_use import LookAnswer, Refusal, Rejection, RemoteUse
from kvstore.rpc.wire.report import duration
from kvstore.service.page_io.remote_facts import RemoteFacts
from kvstore.service.page_io.slow_tier import TierState
from kvstore.service.page_io.tier3 import PageStoreUse
from kvstore.v1 import store_pb2

STATES = {
    TierState.OPEN: store_pb2.RemoteStats.STATE_OPEN,
    TierState.AWAY: store_pb2.RemoteStats.STATE_AWAY,
    TierState.FAILED: store_pb2.RemoteStats.STATE_FAILED,
}
KINDS = {
    FindingKind.PROMISE: store_pb2.EngineFinding.KIND_PROMISE,
    FindingKind.HITS: store_pb2.EngineFinding.KIND_HITS,
    FindingKind.UNKNOWN: store_pb2.EngineFinding.KIND_UNKNOWN,
}


def remote_message(
    use: PageStoreUse | None, about: RemoteFacts | None, *, whole: bool
) -> store_pb2.RemoteStats | None:
    """Returns the counters of the remote tier and the facts ``about`` it, or None without one.

    Has its state alone unless ``whole``, for all tenants share it.
    """
    if use is None:
        return None
    message = store_pb2.RemoteStats(state=STATES[use.tier.state])
    if not whole:
        return message
    if use.tier.remote is not None:
        _count(message, use.tier.remote)
    if about is not None:
        _describe(message, about)
    message.bytes_per_second = use.loads.bandwidth
    message.load_count = use.loads.load_count
    message.late_load_count = use.loads.late_count
    message.declined_load_count = use.loads.declined_count
    message.refreshed_pin_page_count = use.pins.refreshed_pages
    message.absent_pin_page_count = use.pins.absent_pages
    message.saved_prefill_time.CopyFrom(duration(use.loads.saved_prefill_seconds))
    return message


def _count(message: store_pb2.RemoteStats, use: RemoteUse) -> None:
    message.reason = use.why
    message.hit_look_count = use.looks[LookAnswer.HIT]
    message.partial_look_count = use.looks[LookAnswer.PARTIAL]
    message.missed_look_count = use.looks[LookAnswer.MISS]
    message.skipped_look_count = use.looks[LookAnswer.SKIPPED]
    message.failed_look_count = use.looks[LookAnswer.FAILED]
    message.look_time.CopyFrom(duration(use.look_seconds))
    message.read_page_count = use.read_pages
    message.read_byte_count = use.read_bytes
    message.read_time.CopyFrom(duration(use.read_seconds))
    message.written_page_count = use.written_pages
    message.written_byte_count = use.written_bytes
    message.refused_pages.extend(_reasons(use.refused_writes))
    message.rejected_pages.extend(_reasons(use.rejected_pages))
    message.away_count = use.breaker_opened
    message.lost_revision_count = use.revisions_lost
    message.forged_revision_count = use.revisions_forged
    message.pending_removal_count = use.removals_pending
    message.queued_byte_count = use.queue_bytes
    message.clock_skew_seconds = use.clock_skew
    message.look_seconds = use.latency
    message.writes_stopped = use.writes_stopped
    message.node_count = use.node_count
    message.nodes_away.extend(use.nodes_away)


def _describe(message: store_pb2.RemoteStats, about: RemoteFacts) -> None:
    message.address = about.address
    message.key_id = about.key_id
    message.write_policy = about.writes
    message.findings.extend(
        store_pb2.EngineFinding(
            kind=KINDS[each.kind],
            setting=each.setting,
            value=each.value,
            reason=each.reason,
            remedy=each.remedy,
        )
        for each in about.findings
    )


def _reasons(
    counts: Mapping[Refusal, int] | Mapping[Rejection, int],
) -> list[store_pb2.ReasonCount]:
    return [
        store_pb2.ReasonCount(reason=str(reason), count=count) for reason, count in counts.items()
    ]
