"""The server's settings."""

import os
from pathlib import Path

import pytest
from pydantic_settings import SettingsError

from kvstore import __version__
from kvstore.config.loading import load_config
from kvstore.config.settings import Config
from kvstore.server import run

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("no_settings_around")


def test_every_setting_says_what_it_means_and_where_to_start() -> None:
    """Each setting has a description with a value to start with."""
    described = {name: field.description or "" for name, field in Config.model_fields.items()}
    assert [name for name, text in described.items() if "Start with: " not in text] == []


def test_every_setting_has_a_default() -> None:
    """A server starts without any setting."""
    assert load_config([]) == Config()
    assert Config.model_fields.keys() == load_config([]).model_dump().keys()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * MIB),
        ("2GiB", 2048 * MIB),
        ("64 KiB", 65536),
        ("1MB", 10**6),
        ("4096", 4096),
    ],
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    """Sizes are bytes, or have a binary or decimal unit."""
    assert load_config(["--tier1-bytes", text]).tier1_bytes == size


def test_an_extent_is_a_quarter_of_the_tier_unless_set() -> None:
    """An extent has a quarter of the tier's bytes by default."""
    assert load_config(["--tier1-bytes", "8MiB"]).bytes_of_an_extent == 2 * MIB
    assert load_config(["--tier1-bytes", "4096"]).bytes_of_an_extent == 1024
    set_by_flag = load_config(["--tier1-bytes", "8MiB", "--extent-bytes", "1MiB"])
    assert set_by_flag.bytes_of_an_extent == MIB


@pytest.mark.parametrize(("text", "number"), [("cpu", None), ("cuda:0", 0), ("cuda:11", 11)])
def test_pages_are_on_the_host_or_on_a_device(text: str, number: int | None) -> None:
    """A device is given as torch names it, by its number."""
    assert load_config(["--device", text]).cuda_device == number
    assert load_config([]).cuda_device is None


def test_flags_win_over_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags have priority over the environment, then the file, then defaults."""
    file = tmp_path / "kvstore.toml"
    file.write_text('tier1_bytes = "3MiB"\nextent_bytes = "2MiB"\ndrain_grace = 3.5\n')
    monkeypatch.setenv("KVSTORE_TIER1_BYTES", "5MiB")
    monkeypatch.setenv("KVSTORE_EXTENT_BYTES", "4MiB")
    monkeypatch.setenv("KVSTORE_LOG_LEVEL", "")
    config = load_config(["--config-file", str(file), "--tier1-bytes", "7MiB"])
    found = (config.tier1_bytes, config.extent_bytes, config.drain_grace, config.log_level)
    assert found == (7 * MIB, 4 * MIB, 3.5, "info")


def test_the_environment_can_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KVSTORE_CONFIG_FILE names the file as the flag does."""
    file = tmp_path / "kvstore.toml"
    file.write_text('log_format = "json"\n')
    monkeypatch.setenv("KVSTORE_CONFIG_FILE", str(file))
    assert load_config([]).log_format == "json"


def test_the_runtime_folder_is_the_session_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default folder is below XDG_RUNTIME_DIR, else a private one in /tmp."""
    assert load_config([]).runtime_dir.parent == Path("/tmp")  # noqa: S108 - it is only named
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert load_config([]).runtime_dir == Path("/run/user/7/kvstore")
    monkeypatch.setenv("KVSTORE_RUNTIME_DIR", "/srv/kvstore")
    assert load_config([]).runtime_dir == Path("/srv/kvstore")


@pytest.mark.parametrize(
    ("named", "flags"),
    [
        ("tier1_bytes", ["--tier1-bytes", "0"]),
        ("tier1_bytes", ["--tier1-bytes", "many"]),
        (r"at least 4KiB, and is 100 bytes: .* as in 512MiB", ["--tier1-bytes", "100"]),
        ("cpu or cuda:N", ["--device", "cuda:x"]),
        ("cpu or cuda:N", ["--device", "cuda:0\n"]),
        ("extent_bytes", ["--extent-bytes", "-1"]),
        ("device", ["--device", "cuda"]),
        ("device", ["--device", "gpu:0"]),
        ("default_ttl", ["--default-ttl", "0"]),
        ("max_ttl", ["--max-ttl", "inf"]),
        ("min_ttl", ["--min-ttl", "20"]),
        ("drain_grace", ["--drain-grace", "-1"]),
        ("reaper_interval", ["--reaper-interval", "nan"]),
        ("reaper_interval", ["--reaper-interval", "1e-300"]),
        ("log_level", ["--log-level", "loud"]),
        (
            "tier3_bytes is set and tier3_path is not: set both, or neither",
            ["--tier3-bytes", "1MiB"],
        ),
        ("tier3_path is set and tier3_bytes is 0: there would be no", ["--tier3-path", "/slab"]),
        ("tier3_path is set", ["--tier3-path", "/slab", "--tier3-bytes", "0"]),
        ("replace needs a folder as holder", ["--replace"]),
        ("holder is systemd", ["--replace", "--holder", "systemd"]),
        ("with a unit such as 512MiB, and is 'lots'", ["--tier1-bytes", "lots"]),
        ("with a unit such as 512MiB, and is '5 lots'", ["--tier2-bytes", "5 lots"]),
        ("with a unit such as 512MiB, and is '-1'", ["--extent-bytes", "-1"]),
        ("config_file", ["--config-file", "/nowhere/kvstore.toml"]),
    ],
)
def test_a_wrong_setting_is_named(named: str, flags: list[str]) -> None:
    """An impossible value is refused with the setting's name."""
    with pytest.raises(ValueError, match=named):
        load_config(flags)


@pytest.mark.parametrize(
    ("text", "named"),
    [("tier1_byte = 1", "kvstore.toml: no such setting: tier1_byte$"), ("x", "kvstore.toml")],
)
def test_a_file_with_anything_else_is_refused(tmp_path: Path, text: str, named: str) -> None:
    """An unknown setting, or a file that is not TOML, is refused."""
    file = tmp_path / "kvstore.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=named):
        load_config(["--config-file", str(file)])


def test_a_pipe_is_no_config_file(tmp_path: Path) -> None:
    """A pipe as config file is refused at once, because its writer may never come."""
    pipe = tmp_path / "kvstore.toml"
    os.mkfifo(pipe)
    with pytest.raises(SettingsError, match=r"config_file .*/kvstore.toml is no regular file$"):
        load_config(["--config-file", str(pipe)])


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The flag --version prints the name and version, and ends with status 0."""
    with pytest.raises(SystemExit) as caught:
        load_config(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"kvstore-server {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tier1-bites", "3"], "--tier1-bites 3: did you mean --tier1-bytes? usage: "),
        (["--tier1-bites=3"], "--tier1-bites=3: did you mean --tier1-bytes? usage: "),
        (["--tier-bytes", "3"], "--tier-bytes 3: did you mean --tier1-bytes? usage: "),
        (["x"], "unrecognized arguments: x; usage: "),
        (["--tier1-bytes"], "--tier1-bytes: expected one argument; usage: "),
    ],
)
def test_a_wrong_command_line_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """A wrong command line ends with status 2 and one line with the likely flag and --help."""
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvstore-server: ")
    assert told in line
    assert line.endswith("kvstore-server --help lists them")
