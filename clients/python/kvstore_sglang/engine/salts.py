"""The salts of requests: the operator's, SGLang's extra key and salt, and one after each flush."""

import secrets
from collections.abc import Mapping
from typing import Final

from kvstore_client.engines.canonical import mixed_salt, text_bytes

SALT_BYTES: Final = 16


class RequestSalts:
    """Salts of one engine's requests. The scheduler's thread uses it.

    Each distinguishes namespaces of one model. After :meth:`renew` all salts are others, which no
    other engine has: what the engine had computed before is out of its reach.
    """

    def __init__(self, operator_salt: str, adapters: Mapping[str, bytes] | None = None) -> None:
        """``adapters`` are the digests of adapters by SGLang's ids, which end an extra key."""
        self._adapters = adapters or {}
        self._operator = mixed_salt(engine=text_bytes(operator_salt))
        self._since_flush = b""

    @property
    def plain(self) -> bytes:
        """The salt of requests without an extra key; ``b""`` is none."""
        return self.of(None, None)

    def of(self, extra_key: str | None, cache_salt: str | None) -> bytes:
        """Returns the salt of a request; ``extra_key`` names its adapter too."""
        key = extra_key or ""
        adapter = next((each for each in self._adapters if key.endswith(each)), "")
        return mixed_salt(
            base=self._operator,
            flush=self._since_flush,
            adapter=self._adapters.get(adapter, b""),
            extra=text_bytes(key.removesuffix(adapter)),
            user=text_bytes(cache_salt or ""),
        )

    def renew(self) -> None:
        """Changes all salts, to ones of chance."""
        self._since_flush = secrets.token_bytes(SALT_BYTES)
