"""Pages that are found by their rows in an arena's address range."""

from typing import Any

from kvstore_client import Namespace, PageRef


class RowPages:
    """A namespace whose pages are the bytes at ``base + row * row_bytes``."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def page(self, page: PageRef) -> memoryview:
        """Returns a page's bytes; raises KeyError if its extent is not mapped."""
        arena = self._namespace.address_range
        assert arena is not None
        begin = arena.row(page) * arena.row_bytes
        return arena.view()[begin : begin + self._namespace.layout.page_bytes]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # all else is the namespace's
        return getattr(self._namespace, name)
