"""SGLang's counter of layers that landed, for tests that have no SGLang."""

from concurrent.futures import Future


class LayerWiseLoadCounter:
    """The methods that a linker and its test use."""

    def __init__(self, layer_count: int) -> None:
        self.futures: dict[int, list[Future[None]]] = {}
        self._layer_count = layer_count
        self._count = 0

    def update_producer(self) -> int:
        """Returns the index of a new batch."""
        self._count += 1
        self.futures[self._count] = [Future() for _ in range(self._layer_count)]
        return self._count

    def complete(self, index: int, layer: int) -> None:
        """Notes that a layer landed."""
        self.futures[index][layer].set_result(None)

    def fail(self, index: int, error: BaseException) -> None:
        """Notes that the others do not."""
        for future in self.futures[index]:
            if not future.done():
                future.set_exception(error)

    def finish(self, index: int) -> bool:
        """Waits for a batch."""
        landed = all(each.exception(30) is None for each in self.futures[index])
        del self.futures[index]
        return landed

    def reset(self) -> None:
        """Forgets all batches."""
        self.futures.clear()
