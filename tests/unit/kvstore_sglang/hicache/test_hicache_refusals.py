"""Engines that HiCache's storage refuses at the start."""

from types import SimpleNamespace

import pytest

from kvstore_sglang.hicache.refusals import require_prefix_keys, require_supported

PLAIN = {"pp_size": 1, "attn_cp_size": 1, "dcp_size": 1, "should_split_heads": False}


def test_a_plain_engine_is_supported() -> None:
    """Any number of tensor-parallel ranks is."""
    require_supported(SimpleNamespace(**PLAIN, tp_size=4))
    require_supported(SimpleNamespace())


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"pp_size": 2}, "--pp-size is 2.*set it to 1"),
        ({"attn_cp_size": 2}, "--attn-cp-size is 2"),
        ({"dcp_size": 4}, "--dcp-size is 4"),
        ({"should_split_heads": True}, "tp_lcm_size"),
    ],
)
def test_a_page_in_parts_is_refused(facts: dict[str, object], message: str) -> None:
    """The sentence names the setting."""
    with pytest.raises(ValueError, match=message):
        require_supported(SimpleNamespace(**{**PLAIN, **facts}))


@pytest.mark.parametrize(
    "config", [None, "@file.json", '{"hicache_storage_pass_prefix_keys": true}']
)
def test_an_engine_that_passes_prefixes_is_supported(config: str | None) -> None:
    """A configuration in a file is not read."""
    require_prefix_keys(config)


@pytest.mark.parametrize("config", ["{}", '{"hicache_storage_pass_prefix_keys": false}'])
def test_an_engine_that_passes_no_prefixes_is_refused(config: str) -> None:
    """The sentence says what to set."""
    with pytest.raises(ValueError, match="set it to true"):
        require_prefix_keys(config)
