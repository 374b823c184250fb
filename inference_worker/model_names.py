"""Models by name, without loading torch."""

from typing import Final

GEMMA: Final = "gemma"
TINY: Final = "tiny"
