"""The operator's settings of an engine: the linker's ``linker_extra_config``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from kvstore_client.engines.setting_values import (
    read_settings,
    require_digest,
    require_lookup_timeout,
    require_name,
    require_share,
)

PLACE: Final = "linker_extra_config"


@dataclass(frozen=True, kw_only=True)
class LinkerSettings:
    """Settings of one engine's linker; each has a default.

    Raises ``ValueError`` for an invalid value, and names it.
    """

    runtime_dir: str | None = None
    """The folder with the store's sockets; None: the store's default folder."""

    lookup_timeout: float = 0.25
    """Longest time, in seconds, that a request waits for the store's answer; then it is a miss."""

    model_digest: str | None = None
    """Replaces the digest of weights that cannot be digested, in hexadecimal digits.

    The operator answers for it: two models under one digest share each other's pages.
    """

    salt: str = ""
    """The salt; engines of different salts share nothing within one tenant of the store."""

    display_name: str = ""
    """The namespace's name for people; empty: SGLang's served model name."""

    try_recurrent_state: bool = False
    """Accepts models with recurrent states, which are tested on a CPU and not on a GPU."""

    fault_load_fraction: float = 0.0
    """The share of loads that fail on purpose, for tests only. SGLang answers those with 503."""

    def __post_init__(self) -> None:
        require_lookup_timeout(self.lookup_timeout)
        require_share("fault_load_fraction", self.fault_load_fraction)
        require_name("display_name", self.display_name)
        if self.model_digest is not None:
            require_digest(self.model_digest, "model_digest")

    @classmethod
    def read(cls, extra: Mapping[str, object] | None) -> Self:
        """Reads SGLang's ``linker_extra_config``.

        Raises ``ValueError`` for an unknown key, with the known ones, and for a value of
        another type.
        """
        return read_settings(cls, extra or {}, PLACE)
