"""`kvstore-server config`: its output and exit status."""

import json
import tomllib
from pathlib import Path

import pytest

from kvstore.config.loading import load_config
from kvstore.config.settings import Config
from kvstore.server import run

pytestmark = pytest.mark.usefixtures("no_settings_around")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provides a config file, and one setting in the environment."""
    path = tmp_path / "kvstore.toml"
    path.write_text('tier1_bytes = "3MiB"\ndrain_grace = 3.5\nverify_rate = 0.25\n')
    monkeypatch.setenv("KVSTORE_VERIFY_RATE", "0.5")
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns the command's output. It must end with status 0 and an empty stderr."""
    assert run(["config", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_the_table_says_whose_each_value_is(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    """The table has each setting's value, and the flag, variable or file that it comes from."""
    flags = ["--config-file", str(file), "--tier1-bytes", "8MiB"]
    rows = [line.split(None, 2) for line in printed(capsys, *flags).splitlines()]
    assert [row[0] for row in rows] == list(Config.model_fields)
    found = {name: (value, by) for name, value, by in rows}
    assert found["tier1_bytes"] == ("8MiB", "flag --tier1-bytes")
    assert found["extent_bytes"] == ("2MiB", "default")
    assert found["verify_rate"] == ("0.5", "environment KVSTORE_VERIFY_RATE")
    assert found["drain_grace"] == ("3.5", f"file {file}")
    assert found["tier2_match"] == ("in-place", "default")
    assert found["tenants_file"] == ("-", "default")


def test_a_flag_without_a_value_of_its_own_is_known_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A switch is named by the flag that was given, also when it is switched off."""
    told = json.loads(printed(capsys, "--json", "--no-debug-poison-freed-slots"))
    assert told["debug_poison_freed_slots"]["by"] == "--debug-poison-freed-slots"
    assert told["debug_poison_freed_slots"]["value"] is False


def test_json_has_all_that_is_known(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    """JSON has sizes in bytes, null for absent values, and the value in force beside them."""
    told = json.loads(printed(capsys, "--json", "--config-file", str(file)))
    assert list(told) == list(Config.model_fields)
    tier1, extent = told["tier1_bytes"], told["extent_bytes"]
    assert (tier1["value"], tier1["from"], tier1["by"]) == (3 << 20, "file", str(file))
    assert (extent["value"], extent["in_force"], extent["from"]) == (None, 768 << 10, "default")
    assert tier1["default"] == "1GiB"
    assert told["drain_grace"]["at_sighup"]
    assert not tier1["at_sighup"]
    assert "`evicted_page_count`" in tier1["look_at"]


@pytest.mark.parametrize("more", [[], ["--tier3-bytes", "1500MB", "--tier3-path", '/d/"q" ü\x7f']])
def test_the_file_that_it_writes_sets_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: list[str]
) -> None:
    """The file written by --toml sets the same as the flags it was made of."""
    flags = ["--tier1-bytes", "5000000", "--log-level", "debug", "--insecure-tcp"]
    flags = [*flags[:4], "--eviction-policy", "lru", *more]
    text = printed(capsys, "--toml", *flags)
    path = tmp_path / "written.toml"
    path.write_text(text)
    again = load_config(["--config-file", str(path)])
    assert again.model_copy(update={"config_file": None}) == load_config(flags)
    assert tomllib.loads(text)["tier1_bytes"] == "5000000B"
    assert "# From" not in text
    assert "From: flag --tier1-bytes." in text


@pytest.mark.parametrize("spelling", ["drain_grace", "drain-grace", "KVSTORE_DRAIN_GRACE"])
def test_a_setting_is_explained(capsys: pytest.CaptureFixture[str], spelling: str) -> None:
    """--explain shows a setting's meaning, unit, range and default, however it is spelt."""
    text = printed(capsys, "--explain", spelling, "--drain-grace", "4")
    assert text.startswith("drain_grace\n\nThe longest wait of a stop")
    for line in (
        "value    4.0, from: flag --drain-grace",
        "unit     seconds",
        "allowed  0 or more",
        "default  10.0",
        "counts   at SIGHUP",
        "look at  `drain_finished` in the log",
    ):
        assert f"\n  {line}\n" in text


def test_every_setting_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Every setting can be explained."""
    for name in Config.model_fields:
        assert printed(capsys, "--explain", name).startswith(f"{name}\n")


def test_settings_that_can_be_used_are_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    """`config check` of usable settings says so and ends with 0."""
    said = printed(capsys, "check", "--tier1-bytes", "1GiB")
    assert said == "kvstore-server: the settings can be used\n"


def test_the_help_says_what_the_check_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of `config` shows the line and the exit statuses of `check`."""
    with pytest.raises(SystemExit):
        run(["config", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "check` says in one line that the settings can be used and ends with 0, or what" in said


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("tier1_bytes: has to be at least 4KiB", ["check", "--tier1-bytes", "100"]),
        ("tier1_bytes: has to be at least 4KiB", ["--tier1-bytes", "100"]),
        ("settings: tier3_path is set and tier3_bytes is 0", ["check", "--tier3-path", "/slab"]),
        (
            "tier3_path /nowhere/slab: its folder: No such file or directory",
            ["check", "--tier3-path", "/nowhere/slab", "--tier3-bytes", "1GiB"],
        ),
        (
            "tier3_path /dev/null/slab: its folder: Not a directory",
            ["check", "--tier3-path", "/dev/null/slab", "--tier3-bytes", "1GiB"],
        ),
        ("tenants_file /nowhere: ", ["check", "--tenants-file", "/nowhere"]),
        ("config_file /nowhere: ", ["check", "--config-file", "/nowhere"]),
        ("no setting drain_grase: did you mean drain_grace?", ["--explain", "drain_grase"]),
        ("no setting x\n", ["--explain", "x"]),
    ],
)
def test_what_is_wrong_ends_with_2(
    capsys: pytest.CaptureFixture[str], said: str, arguments: list[str]
) -> None:
    """A wrong setting ends with status 2 and one line on stderr, and starts nothing."""
    assert run(["config", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert len(shown.err.splitlines()) == 1


def test_an_unknown_flag_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown flag ends with status 2, as for the server."""
    assert run(["config", "--tier9-bytes", "1"]) == 2
    assert "--tier9-bytes 1: did you mean --tier" in capsys.readouterr().err
