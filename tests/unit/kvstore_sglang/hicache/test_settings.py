"""The settings of HiCache's storage, as an operator writes them."""

from typing import Any

import pytest

from kvstore_sglang.hicache.settings import IN_PLACE, HicacheSettings


def test_every_setting_has_a_default() -> None:
    """SGLang's own setting is enough, and its others are its own."""
    found = HicacheSettings.read({IN_PLACE: 1, "backend_name": "kvstore", "prefetch_threshold": 1})
    assert found == HicacheSettings()


def test_settings_are_read() -> None:
    """They are under one key, beside SGLang's."""
    ours = {"runtime_dir": "/run/kv", "lookup_timeout": 1, "salt": "s", "display_name": "n"}
    found = HicacheSettings.read({IN_PLACE: 1, "kvstore": {**ours, "model_digest": "ab" * 32}})
    assert found.runtime_dir == "/run/kv"
    assert found.lookup_timeout == 1.0
    assert (found.salt, found.display_name, found.model_digest) == ("s", "n", "ab" * 32)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (None, "interface_v1"),
        ({"interface_v1": 0}, "interface_v1 .* is 0: set it to 1"),
        ({IN_PLACE: 1, "kvstore": "x"}, "set an object"),
        ({IN_PLACE: 1, "kvstore": {"run_dir": "x"}}, "has run_dir, which kvstore does not know"),
        ({IN_PLACE: 1, "kvstore": {"lookup_timeout": 0}}, "lookup_timeout is 0"),
        ({IN_PLACE: 1, "kvstore": {"model_digest": "xy"}}, "model_digest has"),
        ({IN_PLACE: 1, "kvstore": {"display_name": "x" * 300}}, "display_name has at most"),
    ],
)
def test_a_wrong_setting_is_named(extra: dict[str, Any] | None, message: str) -> None:
    """The error says which setting, and what to set."""
    with pytest.raises(ValueError, match=message):
        HicacheSettings.read(extra)
