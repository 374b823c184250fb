"""Matches that are kept back, looked at, and answered or asked for again: steps of unit tests."""

from core.core_builders import NAMESPACE_ID, Worker
from kvstore.core.values.requests import Match, MatchOptions
from kvstore.core.verbs.verify import Inspection, PageCheck


def everything(page_count: int) -> range:
    """Pick all pages."""
    return range(page_count)


def publish(worker: Worker, letters: str, reservation_id: int = 900) -> None:
    """Cache ``letters``, each page's checksum its letter's number, and hold nothing of them."""
    match, grant = worker.acquire(letters, reservation_id, reservation_id)
    assert grant is not None
    known = match.matched_token_count // worker.world.page_tokens
    base = {"base_pin_id": reservation_id} if known else {}
    checksums = [ord(each) for each in letters[known:]]
    worker.insert(reservation_id, letters[known:], known, checksums=checksums, **base)
    worker.abort(reservation_id)
    worker.release(reservation_id)


def ask(worker: Worker, letters: str, pin_id: int = 1) -> tuple[Match, Inspection]:
    """Match ``letters`` to be verified; return the answer kept back, and what to look at."""
    sequence, options = worker.sequence(letters), MatchOptions(pin_id)
    now = worker.world.now
    match, inspection = worker.cache.match_with_checks(
        worker.caller, NAMESPACE_ID, sequence, options, now, everything
    )
    assert inspection is not None
    return match, inspection


def found_bad(inspection: Inspection, letters: str) -> list[PageCheck]:
    """Returns the checks of the pages of ``letters``."""
    return [each for each in inspection.pages if chr(each.checksum) in letters]


def conclude(worker: Worker, inspection: Inspection, bad: str = "") -> bool:
    """Tell that the pages of ``bad`` are corrupt; return whether the answer may be given."""
    corrupt = found_bad(inspection, bad)
    worker.cache.remove_corrupt(inspection, corrupt, len(inspection.pages))
    return worker.cache.settle(inspection, corrupt)
