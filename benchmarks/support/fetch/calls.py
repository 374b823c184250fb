"""The calls of a hit alone, without the work of the client around them."""

from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter_ns

from kvstore_client import NamespaceIdentity
from kvstore_client.values.namespace_key import NamespaceKey
from kvstore_client.values.page_runs import Pages
from support.fetch.workload import PAGE_TOKENS, ROW, SMALL_LAYOUT, Pace, Times, prompt_of, repeat
from support.rpc.worker import Worker, attached_worker

SMALL_NAME = b"small"
KEY = NamespaceKey(NamespaceIdentity(SMALL_NAME), SMALL_LAYOUT)


class CallsAlone:
    """A lease's calls on one thread, in a namespace whose prompts others publish."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def hit(self, pace: Pace, token_count: int) -> Times:
        """Times a whole hit: an acquire, its pages' places, and their release, each answered.

        ``caller`` is the acquire with the places, because a client does not wait for releases. The
        empty reservation is aborted untimed.
        """
        tokens = (prompt_of(token_count) + array("I", [0])).tobytes()
        worker, page_count = self._worker, token_count // PAGE_TOKENS

        def once() -> list[int]:
            began = perf_counter_ns()
            pin_id, reservation_id, answer = worker.acquired(tokens)
            places = [run.slots for run in Pages(answer.match.runs).runs]
            acquired = perf_counter_ns()
            worker.release(pin_id)
            ended = perf_counter_ns()
            worker.abort(reservation_id)
            assert sum(map(len, places)) == page_count, answer
            return [ended - began, acquired - began]

        return repeat(pace, ("whole", "caller"), once)

    def hits_in_a_row(self, pace: Pace, token_count: int) -> Times:
        """Times consecutive hits, each an acquire, its pages' places, and the release of both.

        Nothing waits for the releases' answers, but all are read within the time. The reservations,
        which have no slots, are aborted by one call at the end of a row, like in a client.
        ``whole`` is a hit's part of a row.
        """
        tokens = (prompt_of(token_count) + array("I", [0])).tobytes()
        worker, page_count = self._worker, token_count // PAGE_TOKENS
        posts = worker.posts
        assert posts is not None

        def once() -> list[int]:
            ended: list[int] = []
            began = perf_counter_ns()
            for _ in range(ROW):
                pin_id, reservation_id, answer = worker.acquired(tokens)
                places = [run.slots for run in Pages(answer.match.runs).runs]
                worker.give_back(pin_ids=[pin_id])
                ended.append(reservation_id)
                assert sum(map(len, places)) == page_count, answer
            worker.give_back(reservation_ids=ended)
            posts.end()
            return [(perf_counter_ns() - began) // ROW]

        return repeat(pace, ("whole",), once)


@contextmanager
def calls_alone(runtime_dir: Path, lanes: dict[str, bool]) -> Iterator[dict[str, CallsAlone]]:
    """Attaches a lease for each name until the end. Its calls use lanes or gRPC."""
    with ExitStack() as stack:
        yield {
            name: CallsAlone(
                stack.enter_context(attached_worker(runtime_dir, hot_lane=lane, key=KEY))
            )
            for name, lane in lanes.items()
        }
