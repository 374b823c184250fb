"""Settings of an engine that cost hits or break promises, for ``kvstore-ctl doctor``."""

from enum import Enum
from typing import NamedTuple


class FindingKind(Enum):
    """The loss that a setting causes."""

    PROMISE = "promise"
    """A removal can be undone, or another promise of the tier fails."""
    HITS = "hits"
    """Pages are lost, or the engine is slow."""
    UNKNOWN = "unknown"
    """The engine does not tell the setting, so nobody can say."""


class EngineFinding(NamedTuple):
    """A setting with its value, the reason why it is wrong, and the way out, as sentences."""

    kind: FindingKind
    setting: str
    """The engine's own name of the setting, with its node behind ``at`` if there are several."""
    value: str
    reason: str
    remedy: str
