"""A namespace as the store named it."""

from typing import NamedTuple


class OpenedNamespace(NamedTuple):
    """A namespace as this session knows it."""

    namespace_id: bytes
    arena_id: int
    page_tokens: int
