"""The faults that tests of the engine have to find in it."""

from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[2] / "unit" / "worker"
SAMPLE = "engine/test_reuse.py::test_a_sample_is_never_a_next_token"
PARTIAL = "pages/sequence/test_source_pages.py::test_a_partial_page_is_never_written_again"
RECYCLED = "engine/test_recycled_pages.py::test_pages_recycled_under_a_request_change_no_token"
YOUNGEST = "../scheduler/test_scheduler.py::test_the_youngest_gives_way_and_comes_back_first"
OLDEST = (
    "../scheduler/test_scheduler.py::test_most_cached_goes_first_and_one_in_so_many_is_the_oldest"
)
COPIED = "engine/test_recycled_pages.py::test_a_source_recycled_before_its_copy_changes_no_token"
PIN = "pages/sequence/test_source_pages.py::test_the_source_is_given_back_when_it_is_copied"


class Mutant(NamedTuple):
    """One fault: in ``file``, ``old`` (which stands there once) becomes ``new``."""

    name: str
    tests: tuple[str, ...]
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant(
        "unchanged",
        (PARTIAL, YOUNGEST),
        "engine/request_run.py",
        "",
        "",
    ),
    Mutant(
        "the-oldest-gives-way",
        (YOUNGEST,),
        "engine/scheduler.py",
        "self._preempt(max(self._running), supply, now)",
        "self._preempt(min(self._running), supply, now)",
    ),
    Mutant(
        "the-longest-match-for-ever",
        (OLDEST,),
        "engine/scheduler.py",
        "if resumed or self._passes >= PATIENCE:",
        "if resumed:",
    ),
    Mutant(
        "sampled-token-stored-as-next-token",
        (SAMPLE,),
        "engine/request_run.py",
        "best = {self._computed: choice.argmax}",
        "best = {self._computed: choice.token}",
    ),
    Mutant(
        "partial-page-appended-in-place",
        (PARTIAL,),
        "pages/sequence.py",
        "self._pool.copy_page(_place(self._source.page), self.table[len(self._matched)])",
        "self.table.replace(len(self._matched), _place(self._source.page))",
    ),
    Mutant(
        "source-kept-after-the-copy",
        (PIN,),
        "pages/sequence.py",
        "            self._source.release()\n            self._source = None\n",
        "            self._source = None\n",
    ),
    Mutant(
        "generations-not-compared",
        (RECYCLED,),
        "pages/sequence.py",
        "            self._acquired.require_current(wait=False)\n",
        "            pass\n",
    ),
    Mutant(
        "generation-of-the-source-not-compared",
        (COPIED,),
        "pages/sequence.py",
        "            self._source.require_current()\n",
        "",
    ),
]
