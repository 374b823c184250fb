"""Dynamo's indexer on the events of a real store: it finds what the store has.

The indexer is NVIDIA's, unmodified. Between it and the store is a link that loses batches.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from kvstore_client import Client, Namespace
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import LAYOUT, open_client, write_and_insert
from routers.dynamo_indexer import DynamoIndexer, Found, dynamo_indexer
from routers.lossy_link import LossyLink, lossy_link

pytestmark = [pytest.mark.routers, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = LAYOUT.page_tokens
# Tier 1 has a tenth of what is inserted, and tier 2 a fifth: pages move and are evicted.
BLOCKS = 10_000
TIER_1, TIER_2 = BLOCKS // 10, BLOCKS // 5
PROMPTS = 1_000
INSTANCE = 7
# Seconds for events to arrive and to be applied.
PATIENCE = 60.0
# Differences after which a comparison ends.
MOST_WRONG = 8
SETTINGS = (
    *("--tier1-bytes", str(TIER_1 * LAYOUT.page_bytes)),
    *("--tier2-bytes", str(TIER_2 * LAYOUT.page_bytes)),
    *("--extent-bytes", str(250 * LAYOUT.page_bytes)),
)


class Prompts:
    """Random prompts that share beginnings, as branches of a few trees. The same on each run."""

    def __init__(self, seed: int) -> None:
        """Starts with a few roots."""
        self._random = Random(seed)
        self._known: list[list[int]] = [self._pages(4) for _ in range(8)]

    def next(self) -> list[int]:
        """Returns a prompt that branches off a known one at a random page."""
        stem = self._random.choice(self._known[-400:])
        cut = self._random.randrange(len(stem) // PAGE + 1) * PAGE
        prompt = stem[:cut] + self._pages(self._random.randrange(2, 12))
        self._known.append(prompt[: 40 * PAGE])
        return self._known[-1]

    def choose(self, count: int) -> list[list[int]]:
        """Returns known prompts, some of them followed by tokens that nobody inserted."""
        chosen = self._random.sample(self._known, count)
        return [each + (self._pages(1) if n % 3 == 0 else []) for n, each in enumerate(chosen)]

    def _pages(self, count: int) -> list[int]:
        return [self._random.randrange(1 << 20) for _ in range(count * PAGE)]


class Stage(NamedTuple):
    """A store with events, a link that loses batches, and an indexer behind it."""

    store: RunningStore
    link: LossyLink
    indexer: DynamoIndexer


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the number of the last batch in the test's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)


def address_of(store: RunningStore, kind: str) -> str:
    """Returns the address of the events of this user's namespaces, or of their replays."""
    return f"ipc://{store.runtime_dir}/kv-events/uid-{os.geteuid()}.{kind}"


@contextmanager
def stage(folder: Path, form: str, *settings: str) -> Iterator[Stage]:
    """Runs all three until the block ends."""
    with (
        running_store(*SETTINGS, "--kv-events", "--kv-events-format", form, *settings) as store,
        lossy_link(address_of(store, "pub")) as link,
        dynamo_indexer(folder) as indexer,
    ):
        indexer.register(INSTANCE, link.endpoint, address_of(store, "replay"), PAGE)
        assert link.subscribed.wait(PATIENCE), indexer.log
        yield Stage(store, link, indexer)


def memory_tokens(client: Client, namespace: Namespace, tokens: list[int]) -> tuple[int, int]:
    """Returns how many tokens the store has in tier 1 from the beginning on, and in both tiers.

    A peek leaves the last token of a prompt, so one more is sent that nobody inserts.
    """
    answer = client.admin.peek_prefix(namespace.namespace_id, [*tokens, 0])
    tiers = {each.tier: each.page_count for each in answer.tiers}
    return tiers.get(1, 0) * PAGE, answer.matched_token_count


def found_tokens(found: Found) -> int:
    """Returns the longest prefix in memory that the indexer knows."""
    return max(found.gpu, found.cpu)


class Follower:
    """Compares the indexer with the store, prompt by prompt."""

    def __init__(self, here: Stage, client: Client, namespace: Namespace) -> None:
        """Takes both ends."""
        self._here = here
        self._client = client
        self._namespace = namespace
        self.wrong: list[tuple[tuple[int, int], Found]] = []

    def agrees(self, prompts: list[list[int]]) -> bool:
        """Returns whether the indexer finds of each prompt what the store has in memory."""
        self.wrong = []
        for each in prompts:
            has = memory_tokens(self._client, self._namespace, each)
            found = self._here.indexer.find(INSTANCE, each)
            if (found.gpu, found_tokens(found)) != has:
                self.wrong.append((has, found))
            if len(self.wrong) == MOST_WRONG:
                break
        return not self.wrong

    def require(self, prompts: list[list[int]]) -> None:
        """Waits until both agree, since events and moves are on their way for a while."""
        agreed = wait_until(lambda: self.agrees(prompts), PATIENCE)
        assert agreed, f"store, indexer: {self.wrong}\n{self._here.indexer.log[-2000:]}"


def insert_blocks(namespace: Namespace, prompts: Prompts, blocks: int) -> None:
    """Inserts new prompts until the store inserted at least so many blocks."""
    inserted = 0
    while inserted < blocks:
        tokens = prompts.next()
        before = namespace.peek([*tokens, 0]) // PAGE
        write_and_insert(namespace, tokens)
        inserted += len(tokens) // PAGE - before


@pytest.mark.parametrize("form", ["map", "array"])
def test_the_indexer_finds_what_the_store_has(tmp_path: Path, form: str) -> None:
    """After 10,000 blocks with evictions and moves the longest prefixes of 1,000 prompts agree."""
    with stage(tmp_path, form) as here:
        client, namespace = open_client(here.store.runtime_dir)
        with client:
            prompts = Prompts(seed=1)
            insert_blocks(namespace, prompts, BLOCKS)
            counters = client.admin.stats().counters
            assert counters.evicted_page_count > BLOCKS // 4
            assert counters.demoted_page_count > TIER_1
            asked = prompts.choose(PROMPTS)
            Follower(here, client, namespace).require(asked)
            lengths = [memory_tokens(client, namespace, each)[1] for each in asked]
            # The comparison has hits of many lengths, and misses.
            assert len(set(lengths)) > 10
            assert 0 in lengths


def test_after_a_restart_the_indexer_knows_only_what_is_there(tmp_path: Path) -> None:
    """A killed store's blocks are gone from the indexer, and those of its successor are found."""
    with stage(tmp_path, "map") as here:
        first, second = Prompts(seed=2), Prompts(seed=3)
        client, namespace = open_client(here.store.runtime_dir)
        with client:
            insert_blocks(namespace, first, 500)
            Follower(here, client, namespace).require(first.choose(50))
        here.store.restart()
        client, namespace = open_client(here.store.runtime_dir)
        with client:
            insert_blocks(namespace, second, 500)
            asked = [*first.choose(50), *second.choose(50)]
            Follower(here, client, namespace).require(asked)
            assert all(namespace.peek(each) == 0 for each in asked[:50])


def test_lost_batches_are_replayed(tmp_path: Path) -> None:
    """The indexer asks the store for batches that were lost on their way."""
    with stage(tmp_path, "map") as here:
        client, namespace = open_client(here.store.runtime_dir)
        with client:
            prompts = Prompts(seed=4)
            for _ in range(5):
                insert_blocks(namespace, prompts, 100)
                here.link.lose(3)
                insert_blocks(namespace, prompts, 100)
            assert here.link.lost > 0
            Follower(here, client, namespace).require(prompts.choose(100))


def test_a_gap_beyond_the_replay_buffer_is_repaired(tmp_path: Path) -> None:
    """If the store no longer has lost batches, the indexer knows the whole tree again."""
    with stage(tmp_path, "map") as here:
        client, namespace = open_client(here.store.runtime_dir)
        with client:
            prompts = Prompts(seed=5)
            insert_blocks(namespace, prompts, 200)
            here.link.lose(inf)
            insert_blocks(namespace, prompts, BLOCKS)
            assert here.link.lost > 0
            here.link.lose(0)
            Follower(here, client, namespace).require(prompts.choose(200))
