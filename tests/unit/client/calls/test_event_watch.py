"""A watch's events, however many an answer of the store has."""

from collections.abc import Iterator
from typing import Any

from kvstore.v1 import store_pb2 as pb
from kvstore_client import EventWatch


class Answers:
    """The stream of a watch, which a test fills."""

    def __init__(self, *answers: pb.WatchEventsResponse) -> None:
        self._answers = iter(answers)
        self.cancelled = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> pb.WatchEventsResponse:
        return next(self._answers)

    def cancel(self) -> None:
        """Ends the call."""
        self.cancelled = True


BEGAN = pb.WatchEventsResponse(began=pb.WatchBegan(store_epoch=7))


def event(number: int) -> pb.WatchEventsResponse:
    """Returns an event with a number."""
    return pb.WatchEventsResponse(sequence_number=number, lease_changed=pb.LeaseEvent())


def batch(*numbers: int) -> pb.WatchEventsResponse:
    """Returns several events in one answer."""
    return pb.WatchEventsResponse(batch=pb.EventBatch(events=map(event, numbers)))


def test_events_of_a_batch_come_one_by_one() -> None:
    """Batches and single events, as of an older store, are the same to the reader."""
    watch = EventWatch(Answers(BEGAN, batch(1, 2, 3), event(4), batch(5)))
    assert watch.began.began.store_epoch == 7
    assert list(watch) == [event(number) for number in range(1, 6)]


def test_a_closed_watch_returns_nothing() -> None:
    """The rest of a batch is not read after the end."""
    answers = Answers(BEGAN, batch(1, 2))
    watch = EventWatch(answers)
    assert next(watch) == event(1)
    watch.close()
    assert answers.cancelled
    assert list(watch) == []
