"""The settings of SGLang's linker."""

import pytest

from kvstore_sglang.engine.settings import LinkerSettings


def test_every_setting_has_a_default() -> None:
    """An absent or empty configuration is valid."""
    assert LinkerSettings.read(None) == LinkerSettings.read({}) == LinkerSettings()
    assert LinkerSettings().lookup_timeout == 0.25


def test_settings_are_read() -> None:
    """A whole number is seconds too, and every other value has its field's type."""
    read = LinkerSettings.read({"runtime_dir": "/run/kvstore", "lookup_timeout": 1, "salt": "a"})
    assert read == LinkerSettings(runtime_dir="/run/kvstore", lookup_timeout=1.0, salt="a")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"socket": "/run"}, "linker_extra_config has socket.*it knows display_name, fault_load"),
        ({"lookup_timeout": "1"}, "lookup_timeout in linker_extra_config is '1': set a float"),
        ({"lookup_timeout": 0}, "lookup_timeout is 0.0: set more than 0 and at most 60 seconds"),
        ({"fault_load_fraction": 1.5}, "fault_load_fraction is 1.5: set 0 to 1"),
        ({"display_name": "é" * 129}, "display_name has at most 256 bytes"),
        ({"model_digest": "abc"}, "model_digest has 16 to 64 bytes in hexadecimal digits"),
    ],
)
def test_a_wrong_setting_is_named(extra: dict[str, object], message: str) -> None:
    """An error names the setting, its value, and what to set."""
    with pytest.raises(ValueError, match=message):
        LinkerSettings.read(extra)
