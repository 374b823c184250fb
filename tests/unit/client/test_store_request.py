"""What the calls of a request tell of the store, and what a request may take."""

from threading import Event

import pytest
from scripted_session import RELEASED, RENEWED, ScriptedSession, match, matched
from scripted_store import refusal

from kvstore.v1 import prefix_cache_pb2
from kvstore_client import errors
from kvstore_client.budget import StoreBudget
from kvstore_client.store_request import Sample
from kvstore_client.testing import wait_until

PEEKED = prefix_cache_pb2.PeekPrefixResponse()
MATCH = prefix_cache_pb2.MatchPrefixResponse(match=matched(0))


def test_after_a_timeout_the_store_is_not_asked_until_it_answers(
    hasty: ScriptedSession,
) -> None:
    """One request pays its deadline; later ones nothing, until a probe was answered."""
    slow, silent = Event(), Event()
    hasty.calls.answer("MatchPrefix", slow, MATCH, MATCH)
    hasty.calls.answer("RenewLease", silent, *[RENEWED] * 9)
    hasty.calls.answer("ReleasePins", RELEASED)
    with pytest.raises(errors.StoreTimedOut):
        match(hasty.session, 1)
    assert not hasty.session.usable
    with pytest.raises(errors.StoreUnavailable, match="not asked: the store did not answer"):
        match(hasty.session, 2)
    assert len(hasty.calls.requests["MatchPrefix"]) == 1
    slow.set()
    silent.set()
    assert wait_until(lambda: hasty.session.usable)
    match(hasty.session, 3)
    assert len(hasty.calls.requests["MatchPrefix"]) == 2


def test_a_probe_asks_for_what_was_asked(hasty: ScriptedSession) -> None:
    """A renewal is no answer to a match: the store is asked to peek, then one request passes."""
    session = hasty.session
    slow = Event()
    hasty.calls.answer("MatchPrefix", slow, MATCH, MATCH)
    hasty.calls.answer("ReleasePins", RELEASED)
    hasty.calls.answer("PeekPrefix", PEEKED)
    sample = Sample(b"space", b"1234")
    with (
        pytest.raises(errors.StoreTimedOut),
        session.request(pin_ids=(1,), sample=sample) as asking,
    ):
        asking.ask(session.lease.match, *sample, (1, 2), asking.remaining())
    assert wait_until(lambda: session.usable)
    (probe,) = hasty.calls.requests["PeekPrefix"]
    asked = prefix_cache_pb2.PeekPrefixRequest.FromString(probe)
    assert (asked.namespace_id, asked.tokens) == sample
    slow.set()
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


def test_calls_of_one_request_share_a_budget(hasty: ScriptedSession) -> None:
    """However many calls a request makes, all wait together no longer than its budget."""
    budget = StoreBudget(0.2)
    slow = Event()
    hasty.calls.answer("RenewLease", RENEWED, slow, *[RENEWED] * 9)
    session = hasty.session
    with session.request(budget) as asking:
        asking.ask(session.lease.renew, asking.remaining())
    assert 0 < budget.spent_seconds < 0.2
    left = 0.2 - budget.spent_seconds
    with session.request(budget) as asking:
        assert 0 < asking.remaining() <= left
        with pytest.raises(errors.StoreTimedOut):
            asking.ask(session.lease.renew, asking.remaining())
    slow.set()
    assert wait_until(lambda: session.usable)
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
