"""Segments: the runs of a path's pages that lie in one place."""

from kvstore.core.values.segments import segment_start


def test_segments_double_until_they_are_longest() -> None:
    """Each page lies in one, and begins one or lies behind a page of the same."""
    starts = sorted({segment_start(page) for page in range(4000)})
    assert starts == [0, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072]
    for page in range(4000):
        assert segment_start(page) == max(start for start in starts if start <= page)
