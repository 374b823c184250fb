"""Calls over a channel."""

from threading import Event, Thread

import pytest

from kvstore.v1 import store_pb2
from kvstore_client import errors
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.runtime_dir import RuntimeDir
from wire.scripted_store import ScriptedCalls

REQUEST = store_pb2.GetStatsRequest()
ANSWER = store_pb2.GetStatsResponse(pin_count=7)


def test_a_call_carries_its_credential(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> None:
    """Every call has the credential, and the lease's secret if there is a lease."""
    scripted.answer("GetStats", ANSWER, ANSWER)
    for secret in (b"", b"\x00secret"):
        calls = StoreCalls(runtime_dir.grpc_target, "me", secret)
        assert calls.call(calls.store.GetStats, REQUEST, 30).pin_count == 7
        assert scripted.metadata["authorization"] == "Bearer me"
        assert scripted.metadata.get("kvstore-lease-secret-bin", b"") == secret
        calls.close()


def test_without_a_store_a_call_fails_soon(runtime_dir: RuntimeDir) -> None:
    """A missing socket raises StoreUnavailable long before the timeout."""
    calls = StoreCalls(runtime_dir.grpc_target, "me")
    with pytest.raises(errors.StoreUnavailable):
        calls.call(calls.store.GetStats, REQUEST, 3600)
    calls.close()


def test_a_call_ends_at_its_timeout(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> None:
    """A store that does not answer raises StoreTimedOut."""
    slow = Event()
    scripted.answer("GetStats", slow, ANSWER)
    calls = StoreCalls(runtime_dir.grpc_target, "me")
    with pytest.raises(errors.StoreTimedOut):
        calls.call(calls.store.GetStats, REQUEST, 0.05)
    slow.set()
    calls.close()


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_call_under_way_can_be_ended(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir, how: str
) -> None:
    """Cancelling or closing ends a cancellable call of another thread."""
    slow = Event()
    scripted.answer("GetStats", slow, ANSWER)
    calls = StoreCalls(runtime_dir.grpc_target, "me")
    raised: list[errors.StoreUnavailable] = []

    def call() -> None:
        try:
            calls.call_cancellably(calls.store.GetStats, REQUEST, 3600)
        except errors.StoreUnavailable as error:
            raised.append(error)

    thread = Thread(target=call)
    thread.start()
    assert scripted.came.wait(30)
    getattr(calls, how)()
    thread.join(30)
    assert len(raised) == 1
    slow.set()
    calls.close()


def test_after_cancelling_no_cancellable_call_is_made(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """After a cancellation no cancellable call is made, and other calls are."""
    scripted.answer("GetStats", ANSWER, ANSWER, ANSWER)
    calls = StoreCalls(runtime_dir.grpc_target, "me")
    assert calls.call_cancellably(calls.store.GetStats, REQUEST, 30) == ANSWER
    calls.cancel()
    with pytest.raises(errors.StoreUnavailable):
        calls.call_cancellably(calls.store.GetStats, REQUEST, 30)
    assert calls.call(calls.store.GetStats, REQUEST, 30) == ANSWER
    calls.close()


def test_a_closed_channel_is_unavailable(runtime_dir: RuntimeDir) -> None:
    """After closing, even twice, both kinds of calls raise StoreUnavailable."""
    calls = StoreCalls(runtime_dir.grpc_target, "me")
    calls.close()
    calls.close()
    for call in (calls.call, calls.call_cancellably):
        with pytest.raises(errors.StoreUnavailable):
            call(calls.store.GetStats, REQUEST, 30)
