"""A naive consumer of blocks: dictionaries that do what each change says."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvstore.core.values.change_log import NO_PARENT, CopiesStored, CopyChange
from kvstore.core.values.group_pages import is_group_page


@dataclass
class NaiveBlocks:
    """The blocks that a consumer knows: the parent and the tokens of each, and who has it where.

    A place is a medium or a tier. A block without a place is forgotten.
    """

    known: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    places: dict[object, set[int]] = field(default_factory=dict)

    def store(self, place: object, parent: int, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Notes blocks of one path, each by its name and its tokens."""
        for name, tokens in blocks:
            self.known[name] = parent, tokens
            self.places.setdefault(place, set()).add(name)
            parent = name

    def remove(self, place: object, names: Iterable[int]) -> None:
        """Notes that blocks are in a place no more. It need not have known them."""
        for name in names:
            self.places.get(place, set()).discard(name)
            if not any(name in there for there in self.places.values()):
                self.known.pop(name, None)

    def clear(self) -> None:
        """Forgets all blocks."""
        self.known.clear()
        self.places.clear()

    def apply(self, change: CopyChange) -> None:
        """Does what a change of the core says."""
        ids = [each for part in change.ids for each in part]
        if isinstance(change, CopiesStored):
            width = change.space.layout.page_tokens * 4
            pages = [change.tokens[n * width : (n + 1) * width] for n in range(len(ids))]
            assert all(len(each) == width for each in pages), "a block lacks tokens"
            self.store(change.tier, change.parent_id, zip(ids, pages, strict=True))
        else:
            self.remove(change.tier, ids)

    def prefixes(self, place: object) -> set[bytes]:
        """Returns the tokens of the path through each block in a place."""
        names = self.places.get(place, set())
        found = {self._path(name) for name in names}
        assert len(found) == len(names), "two blocks have one path"
        return found

    def _path(self, name: int) -> bytes:
        parts: list[bytes] = []
        while name != NO_PARENT:
            name, tokens = self.known[name]
            parts.append(tokens)
        return b"".join(reversed(parts))


def whole_paths(prefixes: Iterable[bytes], width: int) -> set[bytes]:
    """Returns those of some prefixes that end with a whole page of a path."""
    return {
        each
        for each in prefixes
        if each and not len(each) % width and not is_group_page(each[-width:])
    }
