"""Nodes of an engine that die and come back: the pages of the others are found all the time."""

from concurrent.futures import Future
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from page_stores.numbered_pages import LIMIT, NAMESPACE, key
from page_stores.remote_rig import wait_until

from kvstore.storage.page_store import PageKey, PageRead, PageWrite, ReadAnswer, StoreState
from remote.dead_node import DeadNode
from remote.hosts import RemoteHost

PAGES = 24
NODES = 3
BYTES = 256
# Each example is a store with its threads.
SHARE = 0.2


def apart(number: int) -> PageKey:
    """Returns the key of a page that is its own segment, so its shard is its own."""
    plain = key(number)
    return plain._replace(segment=plain.digest)


class NodesMachine(RuleBasedStateMachine):
    """A host on an engine of three nodes, and the pages that it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory(prefix="kv-")
        self._host = RemoteHost(Path(self._folder.name))
        store = self._host.store
        store.there([apart(each) for each in range(PAGES)])
        tag = {store._names.control(NAMESPACE, each)[4:]: each for each in range(64)}

        def node_of(name: bytes) -> int:
            return tag.get(name.split(b"/")[1], name[5]) % NODES

        def node(number: int) -> DeadNode:
            return DeadNode(self._host.engine, lambda name: node_of(name) == number)

        self._nodes = [node(number) for number in range(NODES)]
        for each in self._nodes:
            each.come_back()
        self._shards = [store._page_names.shard(apart(each)) for each in range(PAGES)]
        self._written: set[int] = set()

    def teardown(self) -> None:
        """Ends the host."""
        self._host.close()
        self._folder.cleanup()

    def _is_alive(self, number: int) -> bool:
        return not self._nodes[self._shards[number] % NODES].is_away

    @precondition(lambda self: sum(each.is_away for each in self._nodes) < NODES - 1)
    @rule(number=st.integers(0, NODES - 1))
    def kill(self, number: int) -> None:
        """One node of those that are left dies, but not the last one."""
        self._nodes[number].is_away = True

    @rule(number=st.integers(0, NODES - 1))
    def come_back(self, number: int) -> None:
        """A node answers again, with its values."""
        self._nodes[number].come_back()

    @rule(number=st.integers(0, PAGES - 1))
    def write(self, number: int) -> None:
        """A page is written if its node answers."""
        self._host.settle()
        self._host.store.there([apart(number)])
        done: Future[bool] = Future()
        page = PageWrite(apart(number), NAMESPACE, 1)
        content = [memoryview(bytes([number]) * BYTES)]
        is_taken = self._host.store.write(page, content, done.set_result, checksum=None)
        is_written = is_taken and done.result(LIMIT)
        if number not in self._written:
            assert is_written == self._is_alive(number)
        if is_written:
            self._written.add(number)

    @rule(numbers=st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=6, unique=True))
    def look(self, numbers: list[int]) -> None:
        """Exactly the leading pages are found that were written, and whose nodes answer."""
        self._host.settle()
        with self._host.store._worth._mutex:
            self._host.store._worth._missing.clear()
        found = self._host.store.look([apart(each) for each in numbers], inf)
        expected = [each in self._written and self._is_alive(each) for each in numbers]
        assert found == [*expected, False].index(False)

    @rule(numbers=st.lists(st.integers(0, PAGES - 1), min_size=1, max_size=6, unique=True))
    def read(self, numbers: list[int]) -> None:
        """Exactly the pages come that were written, and whose nodes answer."""
        self._host.settle()
        into = [bytearray(BYTES) for _ in numbers]
        wanted = [
            PageRead(apart(number), [memoryview(buffer)])
            for number, buffer in zip(numbers, into, strict=True)
        ]
        answer: Future[ReadAnswer] = Future()
        self._host.store.read(wanted, answer.set_result, inf)
        came = [each is not None for each in answer.result(LIMIT).checksums]
        assert came == [each in self._written and self._is_alive(each) for each in numbers]
        for number, buffer, is_there in zip(numbers, into, came, strict=True):
            assert not is_there or bytes(buffer) == bytes([number]) * BYTES

    @precondition(lambda self: any(each.is_away for each in self._nodes))
    @rule()
    def remove(self) -> None:
        """A removal waits for the nodes that are away, and holds once they are back."""
        removed: Future[bool] = Future()
        self._host.store.remove_namespace(NAMESPACE, removed.set_result)
        assert self._host.store.look([apart(0)], inf) == 0
        assert not removed.done()
        for each in self._nodes:
            each.come_back()
        assert removed.result(LIMIT)
        self._written.clear()

    @rule()
    def stays_open(self) -> None:
        """No death of a node closes the whole tier."""
        wait_until(lambda: not self._host.hidden)
        use = self._host.store.remote_use()
        assert (use.state, use.breaker_opened) == (StoreState.OPEN, 0)


def test_pages_of_nodes_that_answer_are_found_all_the_time() -> None:
    """A breaker of each node leaves the tier open for the others."""
    examples = max(int(settings().max_examples * SHARE), 5)
    chosen = settings(stateful_step_count=40, max_examples=examples, deadline=None)
    run_state_machine_as_test(NodesMachine, settings=chosen)
