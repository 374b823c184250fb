"""The engines that KvstoreHiCache refuses, each with one sentence."""

import json
from typing import Any, Final

# SGLang's setting with which it tells the pages before those that it asks for.
PREFIX_KEYS: Final = "hicache_storage_pass_prefix_keys"


def require_supported(config: Any) -> None:  # noqa: ANN401  # a HiCacheStorageConfig
    """Raises ``ValueError`` for an engine whose pages the store would get wrong."""
    for name, flag in (
        ("pp_size", "--pp-size"),
        ("attn_cp_size", "--attn-cp-size"),
        ("dcp_size", "--dcp-size"),
    ):
        size = getattr(config, name, None) or 1
        if size > 1:
            raise ValueError(
                f"{flag} is {size}, and KvstoreHiCache keeps a page of one rank whole: set it to 1"
            )
    if getattr(config, "should_split_heads", False):
        raise ValueError(
            "tp_lcm_size in hicache-storage-backend-extra-config splits the heads of a page, and "
            "KvstoreHiCache keeps a page whole: leave it out"
        )


def require_prefix_keys(extra_config: str | None) -> None:
    """Raises ``ValueError`` if SGLang passes no hashes of prefixes, by its configuration in JSON.

    Without them no page after the first ones of a prompt is found. A configuration in a file
    (``@name``) is not read.
    """
    if extra_config is None or extra_config.startswith("@"):
        return
    found = json.loads(extra_config).get(PREFIX_KEYS)
    if found is not True:
        raise ValueError(
            f"{PREFIX_KEYS} in hicache-storage-backend-extra-config is {found!r}: set it to true"
        )
