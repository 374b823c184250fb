"""The tests of the cache run on each kind of index."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.core_builders import Backend
from kvstore.core.index.hash_index import HashIndex
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex

# What these test is the same whatever finds the pages; the others are of one kind of index,
# or of what knows none.
ON_BOTH = {
    "test_cache",
    "test_cache_acquire",
    "test_cache_insert",
    "test_cache_insert_base",
    "test_cache_reserve",
    "test_checksums",
    "test_delete_namespace",
    "test_lifecycle",
    "test_lookup",
    "test_named_pins",
    "test_namespaces",
    "test_namespaces_that_go",
    "test_next_tokens",
    "test_partial_pages",
    "test_reclaim",
    "test_sources",
    "test_verify",
    "test_verify_meanwhile",
}
# A file that is renamed would run on one index alone, and nobody would see.
assert all((Path(__file__).parent / f"{name}.py").is_file() for name in ON_BOTH)
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
    """Let what a test makes have the index that it is to run on."""
    chosen: IndexFactory = getattr(request, "param", RadixIndex)
    before, Backend.index = Backend.index, chosen
    yield
    Backend.index = before


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests of the cache twice."""
    known = metafunc.module.__name__.rpartition(".")[2] in ON_BOTH
    if known and metafunc.function.__name__ not in OF_NODES:
        kinds = {"radix": RadixIndex, "hash": HashIndex}
        metafunc.parametrize("index_factory", kinds.values(), ids=kinds.keys(), indirect=True)
