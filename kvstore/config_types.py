"""What values the server's settings may have, beyond their Python types."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from kvstore.config_about import Values

# A page of the machine's own memory: who sets less has forgotten the unit. Not more, since
# tests fill stores of some pages of small models.
SMALLEST_TIER = 4 << 10
NUMA_NODE = re.compile(r"auto|off|\d{1,4}", re.ASCII)
DEVICE = re.compile(r"cpu|cuda:\d+")
# As gRPC takes it, and as people write it: an IPv6 address stands in brackets.
ADDRESS = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.%]+\]):(?P<port>\d{1,5})")
MOST_PORT = 65_535


def _read_size(value: object, read: ValidatorFunctionWrapHandler) -> object:
    try:
        return read(value)
    except ValidationError:
        raise ValueError(f"has to be {SIZE}, and is {value!r}") from None


def _positive_size(value: ByteSize) -> ByteSize:
    if value <= 0:
        raise ValueError("has to be positive")
    return value


def _tier_size(value: ByteSize) -> ByteSize:
    if value < SMALLEST_TIER:
        raise ValueError(
            f"has to be at least {SMALLEST_TIER >> 10}KiB, and is {value} bytes: "
            "sizes have a unit, as in 512MiB"
        )
    return value


def _device(value: str) -> str:
    if not DEVICE.fullmatch(value):
        raise ValueError(f"has to be cpu or cuda:N, such as cuda:0, and is {value!r}")
    return value


def _numa_node(value: str) -> str:
    if not NUMA_NODE.fullmatch(value):
        raise ValueError(f"has to be auto, off or a node's number such as 0, and is {value!r}")
    return value


def _address(value: str) -> str:
    found = ADDRESS.fullmatch(value)
    if found is None or int(found["port"]) > MOST_PORT:
        raise ValueError(f"has to be HOST:PORT, such as 127.0.0.1:7400, and is {value!r}")
    return value


SIZE = "bytes, or with a unit such as 512MiB"
SECONDS = "seconds"
BYTES = "BYTES"

ReadSize = Annotated[ByteSize, WrapValidator(_read_size)]
Size = Annotated[ReadSize, AfterValidator(_positive_size), Values(SIZE, "more than 0", BYTES)]
OptionalTierSize = Annotated[
    ReadSize,
    AfterValidator(lambda size: size and _tier_size(size)),
    Values(SIZE, "0, or 4KiB or more", BYTES),
]
TierSize = Annotated[ReadSize, AfterValidator(_tier_size), Values(SIZE, "4KiB or more", BYTES)]
Seconds = Annotated[
    float, Field(gt=0, allow_inf_nan=False), Values(SECONDS, "more than 0", "SECONDS")
]
# A thread that goes round more often than that has no time for anything else.
Interval = Annotated[
    float, Field(ge=0.001, allow_inf_nan=False), Values(SECONDS, "0.001 or more", "SECONDS")
]
Grace = Annotated[float, Field(ge=0, allow_inf_nan=False), Values(SECONDS, "0 or more", "SECONDS")]
Share = Annotated[float, Field(ge=0, le=1), Values("of one", "from 0 to 1", "SHARE")]
Device = Annotated[
    str, AfterValidator(_device), Values("", "cpu, or cuda:N with N from 0", "DEVICE")
]
NumaNode = Annotated[
    str,
    BeforeValidator(str),
    AfterValidator(_numa_node),
    Values("", "auto, off, or the number of a node from 0", "NODE"),
]
ListenAddress = Annotated[
    str,
    AfterValidator(_address),
    Values("HOST:PORT", "a name or an address, a port below 65536", "HOST:PORT"),
]
FilePath = Annotated[Path, Values("path", "a file", "PATH")]
FolderPath = Annotated[Path, Values("path", "a folder", "PATH")]
GroupName = Annotated[str, Values("group", "a name or a number of a group of this host", "GROUP")]
