"""What the calls of a request tell of the store, and what a request may take."""

from threading import Event

import grpc
import pytest

from kvstore.v1 import prefix_cache_pb2
from kvstore_client import errors
from kvstore_client.calls.breaker import Sample
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.testing import wait_until
from wire.scripted_session import RELEASED, RENEWED, ScriptedSession, match, matched
from wire.scripted_store import refusal

PEEKED = prefix_cache_pb2.PeekPrefixResponse()
# What a client's own clock says too, once a deadline passed.
TOO_LATE = grpc.StatusCode.DEADLINE_EXCEEDED
MATCH = prefix_cache_pb2.MatchPrefixResponse(match=matched(0))


def test_after_a_timeout_the_store_is_not_asked_until_it_answers(
    attached: ScriptedSession,
) -> None:
    """One request pays its deadline; later ones nothing, until a probe was answered."""
    silent, session = Event(), attached.session
    attached.calls.answer("MatchPrefix", TOO_LATE, MATCH)
    attached.calls.answer("RenewLease", silent, RENEWED)
    attached.calls.answer("ReleasePins", RELEASED)
    with pytest.raises(errors.StoreTimedOut):
        match(session, 1)
    assert not session.usable
    with pytest.raises(errors.StoreUnavailable, match="not asked: the store did not answer"):
        match(session, 2)
    assert len(attached.calls.requests["MatchPrefix"]) == 1
    silent.set()
    assert wait_until(lambda: session.usable)
    match(session, 3)
    assert len(attached.calls.requests["MatchPrefix"]) == 2


def test_a_probe_asks_for_what_was_asked(attached: ScriptedSession) -> None:
    """A renewal is no answer to a match: the store is asked to peek, then one request passes."""
    session = attached.session
    attached.calls.answer("MatchPrefix", TOO_LATE, MATCH)
    attached.calls.answer("ReleasePins", RELEASED)
    attached.calls.answer("PeekPrefix", PEEKED)
    sample = Sample(b"space", b"1234")
    with (
        pytest.raises(errors.StoreTimedOut),
        session.request(pin_ids=(1,), sample=sample) as asking,
    ):
        asking.ask(session.lease.match, *sample, (1, 2), asking.remaining())
    assert wait_until(lambda: session.usable)
    (probe,) = attached.calls.requests["PeekPrefix"]
    asked = prefix_cache_pb2.PeekPrefixRequest.FromString(probe)
    assert (asked.namespace_id, asked.tokens) == sample
    with session.request():
        assert not session.usable
        with pytest.raises(errors.StoreUnavailable, match="one request tries"):
            match(session, 3)
    match(session, 4)


def test_a_refusal_for_a_time_is_not_asked_again_before(attached: ScriptedSession) -> None:
    """Calls of a kind that was refused until later are not sent; others are."""
    attached.calls.answer("MatchPrefix", refusal("QUOTA_EXCEEDED", retry_after_s=1000), MATCH)
    attached.calls.answer("RenewLease", RENEWED)
    with pytest.raises(errors.QuotaExceeded):
        match(attached.session, 1)
    with pytest.raises(errors.StoreUnavailable, match="QUOTA_EXCEEDED"):
        match(attached.session, 2)
    with attached.session.request() as asking:
        asking.ask(attached.session.lease.renew, asking.remaining())
    assert len(attached.calls.requests["MatchPrefix"]) == 1
    assert attached.session.usable


def test_calls_of_one_request_share_a_budget(attached: ScriptedSession) -> None:
    """However many calls a request makes, all wait together no longer than its budget."""
    budget = StoreBudget(20.0)
    slow, session = Event(), attached.session
    attached.calls.answer("RenewLease", RENEWED, slow, RENEWED)
    with session.request(budget) as asking:
        asking.ask(session.lease.renew, asking.remaining())
    assert 0 < budget.spent_seconds < 20
    left = budget.left
    with session.request(budget) as asking:
        assert 0 < asking.remaining() <= left
    # As if it had waited for most of it.
    budget.spent_seconds = 19.9
    with pytest.raises(errors.StoreTimedOut), session.request(budget) as asking:
        asking.ask(session.lease.renew, asking.remaining())
    slow.set()
    with (
        pytest.raises(errors.StoreUnavailable, match="this request waited"),
        session.request(budget),
    ):
        pass


def test_a_budget_that_runs_out_says_little_of_the_store(attached: ScriptedSession) -> None:
    """A call that had next to no time keeps no other request from the store."""
    slow, session = Event(), attached.session
    attached.calls.answer("MatchPrefix", slow, *[MATCH] * 9)
    attached.calls.answer("ReleasePins", *[RELEASED] * 9)
    spent = StoreBudget(0.05)
    with (
        pytest.raises(errors.StoreTimedOut),
        session.request(spent, pin_ids=(1,)) as asking,
    ):
        asking.ask(session.lease.match, b"space", b"", (1, 2), asking.remaining())
    assert session.usable
    slow.set()
    match(session, 3)
