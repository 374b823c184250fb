"""PrefetchPrefix over a real server, under a lease, without one, and in a step."""

from typing import Any

import pytest

from kvstore.v1 import prefix_cache_pb2 as pb
from stores.rpc_world import ADMIN_UID, PAGE_TOKENS, Refused, Server, Worker, tokens

# Three pages, and one token to run. The first two are cached.
PROMPT = tokens(*range(13))
CACHED = PROMPT[: 8 * 4]
pytestmark = pytest.mark.parametrize("over", ["grpc", "lane"], indirect=True)


def prefetch(worker: Worker, namespace_id: bytes, /, **changes: Any) -> pb.PrefetchPrefixResponse:  # noqa: ANN401 - any field
    """Prefetches the prompt under the worker's lease, with some fields changed."""
    fields: dict[str, Any] = {
        "caller": worker.caller(),
        "namespace_id": namespace_id,
        "sequence": pb.Sequence(tokens=PROMPT),
    }
    request = pb.PrefetchPrefixRequest(**(fields | changes))
    answer = worker.ask(worker.prefix_cache.PrefetchPrefix, request)
    assert isinstance(answer, pb.PrefetchPrefixResponse)
    return answer


def test_a_prefetch_says_what_is_in_memory(server: Server) -> None:
    """The whole pages that a match would find, with a lease and without one."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, CACHED, 1)
    wanted = pb.PrefetchPrefixResponse(memory_token_count=2 * PAGE_TOKENS)
    assert prefetch(worker, namespace_id) == wanted
    assert prefetch(worker, namespace_id, caller=None) == wanted


def test_a_prefetch_may_follow_a_base(server: Server) -> None:
    """The counts begin with the sequence."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, CACHED, 1)
    match = pb.MatchPrefixRequest(
        caller=worker.caller(),
        namespace_id=namespace_id,
        sequence=pb.Sequence(tokens=PROMPT),
        pin_id=5,
    )
    worker.ask(worker.prefix_cache.MatchPrefix, match)
    rest = pb.Sequence(tokens=PROMPT[4 * PAGE_TOKENS :], position=PAGE_TOKENS, base_pin_id=5)
    found = prefetch(worker, namespace_id, sequence=rest)
    assert found.memory_token_count == 2 * PAGE_TOKENS


@pytest.mark.parametrize(
    "base",
    [{"base_pin_id": 5}, {"base_reservation_id": 5}, {"position": PAGE_TOKENS}],
    ids=lambda base: next(iter(base)),
)
def test_without_a_lease_there_is_no_base(server: Server, base: dict[str, int]) -> None:
    """A sequence that names a hold is refused by its field."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    sequence = pb.Sequence(tokens=PROMPT, **base)
    with pytest.raises(Refused) as caught:
        prefetch(worker, namespace_id, caller=None, sequence=sequence)
    assert caught.value.reason == "INVALID_FIELD"
    assert caught.value.metadata["field"] == "sequence.base"


def test_an_admin_prefetches_for_any_tenant(server: Server) -> None:
    """Another tenant finds no such namespace, and an admin does, without a lease."""
    owner = server.worker(uid=2)
    namespace_id = owner.open_namespace()
    owner.publish(namespace_id, CACHED, 1)
    stranger, admin = server.worker(uid=3), server.worker(uid=ADMIN_UID)
    with pytest.raises(Refused) as caught:
        prefetch(stranger, namespace_id, caller=None)
    assert caught.value.reason == "NAMESPACE_NOT_FOUND"
    found = prefetch(admin, namespace_id, caller=None)
    assert found.memory_token_count == 2 * PAGE_TOKENS
    with pytest.raises(Refused) as caught:
        prefetch(admin, namespace_id)
    assert caught.value.reason == "NAMESPACE_NOT_FOUND"


def test_a_step_prefetches_under_its_caller(server: Server) -> None:
    """The result is that of the single call, and an operation has no caller of its own."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, CACHED, 1)
    asked = pb.PrefetchPrefixRequest(sequence=pb.Sequence(tokens=PROMPT))
    named = pb.PrefetchPrefixRequest(caller=worker.caller(), sequence=pb.Sequence())
    request = pb.RunStepRequest(
        caller=worker.caller(),
        namespace_id=namespace_id,
        operations=[pb.StepOperation(prefetch=each) for each in (asked, named)],
    )
    first, second = worker.ask(worker.prefix_cache.RunStep, request).results
    assert first.prefetch == prefetch(worker, namespace_id)
    assert second.error.details
