"""Names of models, devices and dtypes that a user may give. Needs no torch."""

from typing import Final, Literal, TypeAlias

DtypeName: TypeAlias = Literal["bfloat16", "float16", "float32"]

CPU: Final = "cpu"


GEMMA: Final = "gemma"
TINY: Final = "tiny"
