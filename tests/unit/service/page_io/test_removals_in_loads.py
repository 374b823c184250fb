"""Removals at each moment of a load from the remote tier: no page of before stays afterwards.

The stores, the remote stores and the engine are real. A test orders the steps: it removes pages
in a call that the load makes at that moment.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import pytest
from page_stores.layered_host import LayeredHost
from page_stores.remote_rig import wait_until

from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.storage.page_store import PageRead, ReadAnswer
from mutants.live import put_into_this_process
from mutants.mutant import Mutant

# Three runs of a load.
PAGES = 40
RUN = 16


class Stage:
    """Two hosts. ``one`` computed a path, and ``other`` loads it while somebody removes it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        values: dict[bytes, tuple[bytes, int]] = {}
        self.one, self.other = (LayeredHost(folder / name, values) for name in ("a", "b"))
        for each in (self.one, self.other):
            stack.callback(each.close)
        self.one.layers.publish(PAGES)
        self.one.keep()
        self.far = self.other.rig.store
        self.is_removed = False
        look = self.far.look
        # The store's clock stands still, and the engine's runs.
        self.far.look = lambda keys, _: look(keys, inf)  # type: ignore[method-assign,assignment]

    def remove_here(self) -> None:
        """Removes the path on the host that loads it."""
        self._remove(self.other)

    def remove_there(self) -> None:
        """Removes the path on the other host."""
        self._remove(self.one)

    def remove_there_and_hear(self) -> None:
        """Removes the path on the other host, of which the host that loads it hears at once."""
        self._remove(self.one)
        self.hear()

    def remove_without_report(self) -> None:
        """Removes the path here, and has not told the page stores yet."""
        layers = self.other.layers
        tokens = layers.sequence(1).tokens[:-4]
        layers.store._admin.evict_prefix(layers.caller.identity, layers.namespace_id, tokens)
        self.is_removed = True

    def _remove(self, host: LayeredHost) -> None:
        if not self.is_removed:
            self.is_removed = True
            layers = host.layers
            tokens = layers.sequence(1).tokens[:-4]
            who = layers.caller.identity, layers.namespace_id
            assert not layers.store.evict_prefix(*who, tokens).unsettled

    def hear(self) -> None:
        """Makes the host that loads look for a page that nobody has."""
        with self.far._worth._mutex:
            self.far._worth._missing.clear()
        assert self.far.look(self.other.layers.keys(PAGES, number=7), inf) == 0
        self.other.rig.settle()

    # The moments.

    def after_the_look(self, remove: Callable[[], None]) -> None:
        """Between the look and the load's begin."""
        look = self.far.look

        def wait(*asked: Any) -> int:  # noqa: ANN401
            count = look(*asked)
            if count:
                remove()
            return count

        self.far.look = wait  # type: ignore[method-assign,assignment]

    def between_runs(self, remove: Callable[[], None]) -> None:
        """Before the second run is asked for. The first one is published."""
        read, numbers = self.far.read, iter(range(1000))

        def wait(*asked: Any) -> None:  # noqa: ANN401
            if next(numbers) == 1:
                assert self.other.layers.cached == RUN
                remove()
            read(*asked)

        self.far.read = wait  # type: ignore[method-assign,assignment]

    def after_the_last_page(self, remove: Callable[[], None]) -> None:
        """Before the revisions are read again."""
        pages = self.far._reader._pages

        def wait(*asked: Any) -> Any:  # noqa: ANN401
            yield from pages(*asked)
            remove()

        self.far._reader._pages = wait  # type: ignore[method-assign,assignment]

    def before_the_publication(self, remove: Callable[[], None]) -> None:
        """After the revisions were read again."""
        read = self.far.read

        def wait(
            wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None], deadline: float
        ) -> None:
            def late(answer: ReadAnswer) -> None:
                remove()
                done(answer)

            read(wanted, late, deadline)

        self.far.read = wait  # type: ignore[method-assign]

    # The loads.

    def match(self) -> int:
        """Matches the path, and waits for the end of its load. Returns the pages."""
        with self.far._worth._mutex:
            self.far._worth._missing.clear()
        layers = self.other.layers
        count = layers.page_count(layers.match(PAGES, remaining=None))
        self.end()
        return count

    def prefetch(self) -> int:
        """Prefetches the path, and waits for the end of the load. Returns the cached pages."""
        layers = self.other.layers
        layers.store.prefetch(layers.caller, layers.namespace_id, layers.sequence(PAGES))
        self.end()
        return layers.cached

    def end(self) -> None:
        """Waits until no load is under way."""
        wait_until(lambda: not self.other.layers.world.cache.disk_reads)


Moment = Callable[[Stage, Callable[[], None]], None]
MOMENTS = [
    Stage.after_the_look,
    Stage.between_runs,
    Stage.after_the_last_page,
    Stage.before_the_publication,
]
LOADS = [Stage.match, Stage.prefetch]


def _removed_here(folder: Path, moment: Moment, load: Callable[[Stage], int]) -> None:
    with ExitStack() as stack:
        stage = Stage(folder, stack)
        moment(stage, stage.remove_here)
        brought = load(stage)
        assert stage.is_removed, "the moment did not come"
        assert [brought, stage.other.layers.cached, stage.match()] == [0, 0, 0]


def _removed_there(folder: Path, moment: Moment, load: Callable[[Stage], int]) -> None:
    """Pages that were compared before the answer may stay until the host hears of it."""
    with ExitStack() as stack:
        stage = Stage(folder, stack)
        moment(stage, stage.remove_there)
        brought = load(stage)
        assert stage.is_removed, "the moment did not come"
        is_before = moment in {Stage.between_runs, Stage.before_the_publication}
        assert brought in ({0, RUN} if is_before else {0})
        stage.hear()
        assert [stage.other.layers.cached, stage.match()] == [0, 0]


def _heard_before_the_publication(folder: Path, load: Callable[[Stage], int]) -> None:
    with ExitStack() as stack:
        stage = Stage(folder, stack)
        stage.before_the_publication(stage.remove_there_and_hear)
        assert [load(stage), stage.other.layers.cached, stage.match()] == [0, 0, 0]


def _not_reported(folder: Path, load: Callable[[Stage], int]) -> None:
    """The removal is in the index and not in the page store, and is answered after the load."""
    with ExitStack() as stack:
        stage = Stage(folder, stack)
        stage.after_the_look(stage.remove_without_report)
        load(stage)
        assert stage.other.layers.store.tier3.removals.settle()
        assert [stage.other.layers.cached, stage.match()] == [0, 0]


by_moment = pytest.mark.parametrize("moment", MOMENTS, ids=lambda each: each.__name__)
by_load = pytest.mark.parametrize("load", LOADS, ids=lambda each: each.__name__)


@by_moment
@by_load
def test_pages_removed_here_during_a_load_are_gone(
    tmp_path: Path, moment: Moment, load: Callable[[Stage], int]
) -> None:
    """The load publishes none of them after the removal, whatever it had read."""
    _removed_here(tmp_path, moment, load)


@by_moment
@by_load
def test_pages_removed_there_during_a_load_are_gone_once_it_is_heard(
    tmp_path: Path, moment: Moment, load: Callable[[Stage], int]
) -> None:
    """A read that compares its revisions after the removal brings none."""
    _removed_there(tmp_path, moment, load)


@by_load
def test_a_load_publishes_nothing_after_its_host_heard(
    tmp_path: Path, load: Callable[[Stage], int]
) -> None:
    """Its pages were read, and compared, before the removal by the other host."""
    _heard_before_the_publication(tmp_path, load)


@by_load
def test_no_load_begins_before_a_removal_is_reported(
    tmp_path: Path, load: Callable[[Stage], int]
) -> None:
    """The page store still has the pages."""
    _not_reported(tmp_path, load)


@by_load
def test_a_load_that_does_not_compare_removals_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[Stage], int]
) -> None:
    """It would publish what it had read."""
    monkeypatch.setattr(DiskRead, "is_stale", property(lambda _: False))
    with pytest.raises(AssertionError):
        _removed_here(tmp_path / "here", Stage.before_the_publication, load)
    with pytest.raises(AssertionError):
        _heard_before_the_publication(tmp_path / "heard", load)


UNREPORTED = Mutant(
    "load-before-the-report",
    "kvstore.core.tiers.disk_reads",
    "DiskReads.begin_read",
    "end <= located.end or namespace.removing[number]",
    "end <= located.end",
)
UNCOUNTED = Mutant(
    "revision-not-counted",
    "kvstore.core.pool.disk_state",
    "DiskState.revise",
    "namespace.removals += 1",
    "pass",
)
UNCOMPARED = Mutant(
    "no-second-revision",
    "kvstore.remote.transfers.reader",
    "Reader._read",
    "any(each is not None for each in checksums)",
    "False",
)


def test_a_load_before_the_report_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read the pages that are about to go."""
    put_into_this_process(monkeypatch, UNREPORTED)
    with pytest.raises(AssertionError):
        _not_reported(tmp_path, Stage.match)


def test_a_revision_that_no_load_sees_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load would go on after its host heard."""
    put_into_this_process(monkeypatch, UNCOUNTED)
    with pytest.raises(AssertionError):
        _heard_before_the_publication(tmp_path, Stage.match)


@pytest.mark.parametrize(
    "moment",
    [Stage.after_the_look, Stage.after_the_last_page],
    ids=lambda each: each.__name__,
)
def test_a_read_without_a_second_revision_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: Moment
) -> None:
    """It would bring what the other host removed."""
    put_into_this_process(monkeypatch, UNCOMPARED)
    with pytest.raises(AssertionError):
        _removed_there(tmp_path, moment, Stage.match)
