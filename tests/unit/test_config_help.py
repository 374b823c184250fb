"""The help texts of the settings."""

import re

import pytest

from kvstore.config.about import default_text
from kvstore.config.loading import load_config
from kvstore.config.settings import Config


def test_the_help_shows_defaults_as_one_would_write_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The help shows each flag with its default, and no Python values or links."""
    with pytest.raises(SystemExit):
        load_config(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    flags = {f"--{name.replace('_', '-')}" for name in Config.model_fields}
    assert [each for each in flags if each not in shown] == []
    assert "all tenants together" in shown
    assert "(default: 1GiB)" in shown
    assert "(default: 10.0)" in shown
    assert "/tmp/kvstore-UID" in shown  # noqa: S108 - it is only named
    wrong = ("null", "None", "factory", str(1 << 30), "](")
    assert [each for each in wrong if each in shown] == []


def test_the_help_says_what_each_flag_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names the kind of each flag's value in plain words, not by Python's types."""
    with pytest.raises(SystemExit):
        load_config(["--help"])
    shown = capsys.readouterr().out
    for flag in (
        *("--tier1-bytes BYTES", "--drain-grace SECONDS", "--listen HOST:PORT", "--device DEVICE"),
        *("--config-file PATH", "--verify-rate SHARE", "--socket-group GROUP"),
        *("--log-format {console,json}", "--insecure-tcp, --no-insecure-tcp"),
    ):
        assert f"  {flag}" in shown
    words = set(re.findall(r"--[a-z0-9-]+ ([A-Z:]+|[A-Za-z]+)", shown.partition("options:")[2]))
    assert [each for each in words if each in ("Path", "str", "float", "ByteSize", "int")] == []


def test_a_default_is_shown_as_one_would_write_it() -> None:
    """A default is shown with its unit. One that the description states is not repeated."""
    shown = {name: default_text(field) for name, field in Config.model_fields.items()}
    assert (shown["tier1_bytes"], shown["max_ttl"], shown["log_format"]) == (
        "1GiB",
        "300.0",
        "console",
    )
    assert shown["insecure_tcp"] == "false"
    assert (shown["config_file"], shown["runtime_dir"], shown["extent_bytes"]) == ("", "", "")


def test_what_has_no_default_to_show_says_what_then_holds() -> None:
    """A setting without a default to show says in its description what applies if it is absent."""
    fields = Config.model_fields.items()
    silent = [name for name, field in fields if not default_text(field)]
    descriptions = {name: field.description or "" for name, field in fields}
    assert [name for name in silent if "Absent: " not in descriptions[name]] == []
