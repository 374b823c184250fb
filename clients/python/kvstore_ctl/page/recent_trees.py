"""The trees that the page shows, read again when they are old."""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from kvstore.v1 import store_pb2
from kvstore_ctl.page.tree_outline import Outline

# Seconds before a tree is read again. A tree that takes long to read is read less often: reading
# takes at most a twentieth of the time.
MAX_AGE: Final = 2.0
REST: Final = 19.0
# The number of trees kept. A tree of a million nodes takes about 200 MB.
MAX_COUNT: Final = 2


class NamespaceTree:
    """A namespace's tree, with the first tokens of each node where tokens are shown."""

    def __init__(self, page_tokens: int, prefixes: Iterable[store_pb2.PrefixInfo]) -> None:
        rows, self._tokens = array("q"), dict[int, bytes]()
        for each in prefixes:
            rows.extend(
                (
                    *(each.node_id, each.parent_node_id, each.start_page * page_tokens),
                    *(each.token_count, each.hit_count, each.pin_count),
                )
            )
            if each.tokens:
                self._tokens[each.node_id] = each.tokens
        self.outline = Outline(rows)

    def first_tokens(self, node_id: int) -> list[int]:
        """Returns the first token ids of a node; none if tokens are not shown."""
        return list(memoryview(self._tokens.get(node_id, b"")).cast("I"))


class RecentTree:
    """A tree that ``read`` returns, at most ``MAX_AGE`` seconds old. Thread-safe.

    One caller reads it while the others wait.
    """

    def __init__(self, read: Callable[[], NamespaceTree], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._mutex = Lock()
        self._tree: NamespaceTree | None = None
        self._due = clock()

    def get(self) -> NamespaceTree:
        """Returns the tree. An error of ``read`` is raised, and the next call reads again."""
        with self._mutex:
            began = self._clock()
            if self._tree is None or began >= self._due:
                self._tree = self._read()
                ended = self._clock()
                self._due = max(began + MAX_AGE, ended + REST * (ended - began))
            return self._tree


class Trees:
    """The trees used last, by namespace id. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mutex = Lock()
        self._kept: OrderedDict[bytes, RecentTree] = OrderedDict()

    def get(self, namespace_id: bytes, read: Callable[[], NamespaceTree]) -> NamespaceTree:
        """Returns a namespace's tree, by ``read`` if it is not known or old."""
        with self._mutex:
            if namespace_id not in self._kept:
                self._kept[namespace_id] = RecentTree(read, self._clock)
            self._kept.move_to_end(namespace_id)
            while len(self._kept) > MAX_COUNT:
                self._kept.popitem(last=False)
            kept = self._kept[namespace_id]
        return kept.get()
