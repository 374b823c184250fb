"""A node of an engine in memory that does not answer, while the others do."""

from collections.abc import Callable, Iterator, Sequence

from kvstore.remote.engine import EngineNodes, ReadResult
from kvstore.remote.errors import NodeAway, RemoteError
from remote.memory_engine import MemoryEngine


class DeadNode:
    """The node of an engine that has the names for which ``has`` is true.

    It is away while ``is_away`` is True. The engine then does what the interface says of one with
    several nodes, and counts the calls that needed the node alone.
    """

    def __init__(self, engine: MemoryEngine, has: Callable[[bytes], bool]) -> None:
        self.is_away = True
        self.changes = 0
        self.calls = 0
        self._has = has
        self._engine = engine
        self._put, self._refresh = engine.put_many, engine.refresh_many
        self._read, self._delete, self._exist = (
            engine.get_many,
            engine.delete_many,
            engine.exists_many,
        )
        self._control, self._set_control = engine.control, engine.set_control
        for name in ("get_many", "put_many", "refresh_many", "delete_many", "exists_many"):
            setattr(engine, name, getattr(self, name))
        for name in ("control", "set_control", "nodes"):
            setattr(engine, name, getattr(self, name))

    def come_back(self) -> None:
        """Ends its being away."""
        self.is_away = False
        self.changes += 1

    def nodes(self) -> EngineNodes:
        """Returns three nodes, of which this one may be away."""
        return EngineNodes(3, ("dead:1",) if self.is_away else (), self.changes)

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Reads values, except those of the node."""
        for each, buffer in zip(names, into, strict=True):
            if self._lacks(each):
                yield ReadResult.AWAY
            else:
                yield from self._read([each], [buffer], deadline)

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Writes values, except those of the node."""
        for name, value, life in zip(names, values, lives_ms, strict=True):
            if self._lacks(name):
                yield NodeAway("its node is away")
            else:
                yield from self._put([name], [value], [life], deadline)

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Finds no value of the node."""
        found = self._exist(names, deadline)
        return [there and not self._lacks(name) for name, there in zip(names, found, strict=True)]

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Raises at the end if a name is the node's."""
        lives = dict(zip(names, lives_ms, strict=True))
        left = {name: life for name, life in lives.items() if not self._lacks(name)}
        self._refresh(list(left), list(left.values()), deadline)
        self._require(len(left) == len(lives))

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Raises at the end if a name is the node's."""
        left = [name for name in names if not self._lacks(name)]
        self._delete(left, deadline)
        self._require(len(left) == len(names))

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Reads a value of another node."""
        self._require(not self._lacks(name))
        return self._control(name, deadline)

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Writes a value of another node."""
        self._require(not self._lacks(name))
        return self._set_control(name, value, life_ms, deadline, only_if_absent=only_if_absent)

    def _lacks(self, name: bytes) -> bool:
        return self.is_away and self._has(name)

    def _require(self, is_served: bool) -> None:  # noqa: FBT001  # a finding
        if not is_served:
            self.calls += 1
            raise NodeAway("its node is away")
