"""Where a page is."""

from kvstore.v1 import types_pb2
from kvstore_client.page_ref import PageRef, pages_of


def test_runs_become_pages_in_prefix_order() -> None:
    """Runs of several extents are taken apart in their order, and none are no pages."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3]),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    assert pages_of(runs) == [PageRef(2, 7), PageRef(2, 3), PageRef(1, 0)]
    assert pages_of([]) == []
