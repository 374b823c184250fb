"""The tests of the cache run on each kind of index."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.core_builders import Backend
from kvstore.core.index.hash_index import HashIndex
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex

HERE = Path(__file__).parent
# What these test is the same whatever finds the pages; the others are of one kind of index,
# or of what knows none.
ON_BOTH = {
    "pool/test_checksums.py",
    "verbs/namespaces/test_deletion.py",
    "verbs/namespaces/test_named_pins.py",
    "verbs/namespaces/test_namespaces.py",
    "verbs/namespaces/test_removal_in_parts.py",
    "verbs/test_acquire.py",
    "verbs/test_corrupt_subtrees.py",
    "verbs/test_insert.py",
    "verbs/test_insert_base.py",
    "verbs/test_lease_ends.py",
    "verbs/test_lease_lifecycle.py",
    "verbs/test_lookup.py",
    "verbs/test_match.py",
    "verbs/test_next_tokens.py",
    "verbs/test_partial_pages.py",
    "verbs/test_reclaim.py",
    "verbs/test_reserve.py",
    "verbs/test_sources.py",
    "verbs/test_verify.py",
    "verbs/test_verify_meanwhile.py",
}
# A file that is renamed would run on one index alone, and nobody would see.
assert all((HERE / name).is_file() for name in ON_BOTH)
# Those that look at nodes, which have one page each in the other index.
OF_NODES = {
    "test_a_base_deeper_than_what_may_match_is_cut",
    "test_a_match_names_the_slots_of_its_pages",
    "test_a_partial_page_is_superseded_by_a_fuller_partial_one",
    "test_a_path_ends_before_what_was_not_mapped",
    "test_chunks_grow_one_node",
}


@pytest.fixture(autouse=True)
def index_factory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes all caches of a test with the index that it is to run on."""
    chosen: IndexFactory = getattr(request, "param", RadixIndex)
    before, Backend.index = Backend.index, chosen
    yield
    Backend.index = before


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests of the cache twice."""
    name = metafunc.definition.path.relative_to(HERE).as_posix()
    if name in ON_BOTH and metafunc.function.__name__ not in OF_NODES:
        kinds = {"radix": RadixIndex, "hash": HashIndex}
        metafunc.parametrize("index_factory", kinds.values(), ids=kinds.keys(), indirect=True)
