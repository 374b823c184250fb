"""Fetches that wait: they count what came from where, and end in time."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client.prefix_fetch import MOST_IN_VAIN, PATIENCE, FetchedPrefix, fetch_prefix


class LoadingStore:
    """A store with so many tokens of one prefix in memory, and more on its disk and elsewhere.

    Each call ends the load before it, and begins another one of ``room`` tokens at most.
    """

    def __init__(self, memory: int, disk: int, remote: int, room: int) -> None:
        self.memory = memory
        self.disk_end = memory + disk
        self.end = memory + disk + remote
        self.room = room
        self.loading = 0
        self.now = 0.0
        self.call_count = 0

    def __call__(self) -> pb.PrefetchPrefixResponse:
        """Answers a prefetch."""
        self.call_count += 1
        self.memory += self.loading
        left = self.end - self.memory
        self.loading = min(left, self.room)
        return pb.PrefetchPrefixResponse(
            memory_token_count=self.memory,
            loading_token_count=self.loading,
            declined_token_count=left - self.loading,
            remote_token_count=min(left, self.end - self.disk_end),
        )

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += max(seconds, 0.001)

    def fetch(self, seconds: float = 60.0) -> FetchedPrefix:
        """Fetches the prefix."""
        return fetch_prefix(self, self.end, seconds, clock=lambda: self.now, sleep=self.sleep)


@given(
    memory=st.integers(0, 50),
    disk=st.integers(0, 50),
    remote=st.integers(0, 50),
    room=st.integers(1, 60),
)
def test_everything_comes_and_is_counted_by_its_source(
    memory: int, disk: int, remote: int, room: int
) -> None:
    """For any size of a load, and also if two sources have a part of the prefix each."""
    found = LoadingStore(memory, disk, remote, room).fetch()
    assert found == FetchedPrefix(memory, disk, remote, 0)


def test_what_is_in_memory_costs_one_call() -> None:
    """Nothing waits, and nothing counts as loaded."""
    store = LoadingStore(8, 0, 0, 4)
    assert store.fetch() == FetchedPrefix(8, 0, 0, 0)
    assert (store.call_count, store.now) == (1, 0.0)


@pytest.mark.parametrize("seconds", [0.0, 0.05, 1.5])
def test_a_fetch_ends_in_time(seconds: float) -> None:
    """The rest is missed."""
    store = LoadingStore(0, 0, 1000, 1)
    found = store.fetch(seconds)
    assert store.now <= seconds
    assert found.memory_token_count == 0
    assert found.remote_token_count + found.missed_token_count == 1000
    assert found.missed_token_count > 0


def test_a_store_without_room_is_asked_for_a_while() -> None:
    """Nothing is loaded, and the fetch does not wait for its whole time."""
    store = LoadingStore(4, 4, 4, 0)
    assert store.fetch() == FetchedPrefix(4, 0, 0, 8)
    assert PATIENCE <= store.now < PATIENCE + 0.5


def test_room_that_comes_later_is_used() -> None:
    """Another fetch of the tenant ended meanwhile."""
    store = LoadingStore(0, 0, 8, 0)
    pause = store.sleep

    def sleep(seconds: float) -> None:
        pause(seconds)
        if store.now > PATIENCE / 2:
            store.room = 4

    found = fetch_prefix(store, 8, 60.0, clock=lambda: store.now, sleep=sleep)
    assert found == FetchedPrefix(0, 0, 8, 0)


def test_a_prefix_that_tier_3_lacks_is_asked_for_a_few_times() -> None:
    """A store that was busy the first time has it then, and nobody waits for long."""
    store = LoadingStore(4, 0, 0, 4)
    found = fetch_prefix(store, 12, 60.0, clock=lambda: store.now, sleep=store.sleep)
    assert found == FetchedPrefix(4, 0, 0, 0)
    assert (store.call_count, store.now < 1.0) == (MOST_IN_VAIN, True)
    pause = store.sleep

    def sleep(seconds: float) -> None:
        pause(seconds)
        store.end = 12

    found = fetch_prefix(store, 12, 60.0, clock=lambda: store.now, sleep=sleep)
    assert found == FetchedPrefix(4, 0, 8, 0)


def test_tokens_that_a_worker_computed_meanwhile_did_not_come_from_tier_3() -> None:
    """Only pages that were being loaded count."""
    answers: Iterator[pb.PrefetchPrefixResponse] = iter(
        [
            pb.PrefetchPrefixResponse(
                memory_token_count=4, loading_token_count=8, remote_token_count=8
            ),
            pb.PrefetchPrefixResponse(memory_token_count=40),
        ]
    )
    found = fetch_prefix(lambda: next(answers), 40, 60.0, sleep=lambda _: None)
    assert found == FetchedPrefix(4, 0, 8, 0)
