"""The engines that KvstoreHiCache refuses, each with one sentence."""

from typing import Any


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
