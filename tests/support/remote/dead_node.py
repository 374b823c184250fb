"""A node of an engine in memory that does not answer, while the others do."""

from collections.abc import Callable, Iterator, Sequence

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import EngineUnreachable
from remote.memory_engine import MemoryEngine


def kill_node(engine: MemoryEngine, is_dead: Callable[[bytes], bool]) -> None:
    """Makes the node away that has the names for which ``is_dead`` is true.

    The engine does what the interface says of one with several nodes.
    """
    read, control, exist = engine.get_many, engine.control, engine.exists_many

    def get_many(
        names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        if all(map(is_dead, names)):
            raise EngineUnreachable("the only node is away")
        for each, buffer in zip(names, into, strict=True):
            if is_dead(each):
                yield ReadResult.AWAY
            else:
                yield from read([each], [buffer], deadline)

    def one(name: bytes, deadline: float) -> bytes | None:
        if is_dead(name):
            raise EngineUnreachable("its node is away")
        return control(name, deadline)

    def exists(names: Sequence[bytes], deadline: float) -> list[bool]:
        found = exist(names, deadline)
        return [not is_dead(name) and there for name, there in zip(names, found, strict=True)]

    engine.get_many = get_many  # type: ignore[method-assign]
    engine.control = one  # type: ignore[method-assign]
    engine.exists_many = exists  # type: ignore[method-assign]
