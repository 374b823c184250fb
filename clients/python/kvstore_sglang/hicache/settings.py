"""The operator's settings of HiCache's storage on the store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from kvstore_client.engines.setting_values import (
    read_settings,
    require_digest,
    require_lookup_timeout,
    require_name,
)

# The key of SGLang's extra config that has ours.
KEY: Final = "kvstore"
PLACE: Final = f"{KEY} in hicache-storage-backend-extra-config"
# SGLang's own setting with which it copies pages in place.
IN_PLACE: Final = "interface_v1"


@dataclass(frozen=True, kw_only=True)
class HicacheSettings:
    """Settings of one engine's storage; each has a default.

    Raises ``ValueError`` for an invalid value, and names it.
    """

    runtime_dir: str | None = None
    """The folder with the store's sockets; None: the store's default folder."""

    lookup_timeout: float = 0.25
    """Longest time, in seconds, of each call to the store. A later answer is a miss.

    HiCache calls the store on threads of its own, so no step of the engine waits for it.
    """

    model_digest: str | None = None
    """Replaces the digest of weights that cannot be digested, in hexadecimal digits.

    The operator answers for it: two models under one digest share each other's pages.
    """

    salt: str = ""
    """The salt; engines of different salts share nothing within one tenant of the store."""

    display_name: str = ""
    """The namespace's name for people; empty: SGLang's served model name."""

    def __post_init__(self) -> None:
        require_lookup_timeout(self.lookup_timeout)
        require_name("display_name", self.display_name)
        if self.model_digest is not None:
            require_digest(self.model_digest, "model_digest")

    @classmethod
    def read(cls, extra: Mapping[str, Any] | None) -> Self:
        """Reads SGLang's ``--hicache-storage-backend-extra-config``.

        Raises ``ValueError`` if SGLang's own ``interface_v1`` there is not 1, and for an unknown
        key or a value of another type under ``kvstore``.
        """
        found = dict(extra or {})
        if found.get(IN_PLACE) != 1:
            raise ValueError(
                f"{IN_PLACE} in hicache-storage-backend-extra-config is {found.get(IN_PLACE)!r}: "
                "set it to 1"
            )
        ours = found.get(KEY, {})
        if not isinstance(ours, Mapping):
            raise ValueError(f"{PLACE} is {ours!r}: set an object")  # noqa: TRY004  # a user's value
        return read_settings(cls, ours, PLACE)
