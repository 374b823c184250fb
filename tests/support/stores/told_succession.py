"""A succession that says what it was told, for servers of one store in one process."""

from kvstore.succession.store_succession import Succession


class ToldSuccession(Succession):
    """Has no carrier. ``outlives`` is what it was told, since the store itself goes on."""

    def __init__(self, *, outlives: bool) -> None:
        super().__init__()
        self._outlives = outlives

    @property
    def outlives(self) -> bool:
        """What it was told."""
        return self._outlives
