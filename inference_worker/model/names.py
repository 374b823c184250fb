"""A device and a type of numbers as a user names them, without loading torch."""

from typing import Final, Literal, TypeAlias

DtypeName: TypeAlias = Literal["bfloat16", "float16", "float32"]

CPU: Final = "cpu"


GEMMA: Final = "gemma"
TINY: Final = "tiny"
