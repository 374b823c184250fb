"""Faults in the engine, each with the tests that have to find it."""

from pathlib import Path

from mutants.mutant import UNCHANGED, Mutant

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


MUTANTS: list[tuple[Mutant, tuple[str, ...]]] = [
    (UNCHANGED, (PARTIAL, YOUNGEST)),
    (
        Mutant(
            "the-oldest-gives-way",
            "inference_worker.engine.scheduler",
            "Scheduler._provide",
            "max(self._running)",
            "min(self._running)",
        ),
        (YOUNGEST,),
    ),
    (
        Mutant(
            "the-longest-match-for-ever",
            "inference_worker.engine.scheduler",
            "WaitingQueue.next",
            "resumed or self._passes >= PATIENCE",
            "resumed",
        ),
        (OLDEST,),
    ),
    (
        Mutant(
            "sampled-token-stored-as-next-token",
            "inference_worker.engine.request_run",
            "RequestRun.chosen",
            "choice.argmax",
            "choice.token",
        ),
        (SAMPLE,),
    ),
    (
        Mutant(
            "partial-page-appended-in-place",
            "inference_worker.pages.sequence",
            "SequencePages._copy_source",
            "self._pool.copy_page(_place(self._source.page), self.table[len(self._matched)])",
            "self.table.replace(len(self._matched), _place(self._source.page))",
        ),
        (PARTIAL,),
    ),
    (
        Mutant(
            "source-kept-after-the-copy",
            "inference_worker.pages.sequence",
            "SequencePages._copy_source",
            "self._source.release()",
            "pass",
        ),
        (PIN,),
    ),
    (
        Mutant(
            "generations-not-compared",
            "inference_worker.pages.sequence",
            "SequencePages.require_current",
            "self._acquired.require_current(wait=False)",
            "pass",
        ),
        (RECYCLED,),
    ),
    (
        Mutant(
            "generation-of-the-source-not-compared",
            "inference_worker.pages.sequence",
            "SequencePages._copy_source",
            "self._source.require_current()",
            "pass",
        ),
        (COPIED,),
    ),
]
