"""The reload at SIGHUP: all changes of a valid file apply, and none of an invalid one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.assembly.reload import Reloader, changes
from kvstore.config.about import about
from kvstore.config.loading import load_config
from kvstore.config.settings import Config
from kvstore.service.store import KVStore
from wire.own_logs import own_logs

CAN_CHANGE = frozenset(changes(KVStore.__new__(KVStore), ()))
pytestmark = pytest.mark.usefixtures("no_settings_around")


class Stage:
    """Settings from a file, and the changes that were reported."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.told: dict[str, Config] = {}
        self.tenants_usable = True
        self._file = folder / "kvstore.toml"
        self.write("")
        arguments = ["--config-file", str(self._file), *flags]
        self.reloader = Reloader(
            load_config(arguments),
            {name: self._teller(name) for name in CAN_CHANGE},
            read=lambda: load_config(arguments),
            read_tenants=lambda: self.tenants_usable,
        )

    def write(self, text: str) -> None:
        """Replaces the file's text."""
        self._file.write_text(text)

    def reload(self) -> list[dict[str, object]]:
        """Reloads the settings and returns the log's lines."""
        with own_logs() as lines:
            self.reloader.reload()
        return [{k: v for k, v in line.items() if k != "log_level"} for line in lines]

    def _teller(self, name: str) -> Callable[[Config], None]:
        def tell(config: Config) -> None:
            self.told[name] = config

        return tell


def test_what_is_said_to_change_at_sighup_does() -> None:
    """The settings documented to change at SIGHUP are exactly those that do."""
    fields = Config.model_fields.items()
    promised = {name for name, field in fields if about(name, field).reload.at_sighup}
    assert promised == CAN_CHANGE


def test_what_changed_is_told_and_named(tmp_path: Path) -> None:
    """A reload reports each setting that changed, and no other."""
    stage = Stage(tmp_path)
    stage.write("drain_grace = 3.0\nverify_rate = 0.5")
    assert stage.reload() == [
        {"event": "config_reloaded", "changed": ["drain_grace", "verify_rate"]}
    ]
    assert sorted(stage.told) == ["drain_grace", "verify_rate"]
    assert stage.told["verify_rate"].verify_rate == 0.5
    assert stage.reloader.config.drain_grace == 3.0
    assert stage.reload() == [{"event": "config_reloaded", "changed": []}]
    stage.write("")
    assert stage.reload()[0]["changed"] == ["drain_grace", "verify_rate"]
    assert stage.reloader.config.drain_grace == 10.0


def test_what_cannot_change_is_named_and_stays(tmp_path: Path) -> None:
    """A change that needs a restart is logged at each reload and not applied."""
    stage = Stage(tmp_path)
    stage.write('tier1_bytes = "5MiB"\nlog_level = "error"\nmax_ttl = 100')
    for changed in (["log_level"], []):
        assert stage.reload() == [
            {"event": "config_reloaded", "changed": changed},
            {"event": "config_needs_restart", "unchanged": ["max_ttl", "tier1_bytes"]},
        ]
    assert stage.reloader.config.tier1_bytes == 1 << 30


def test_a_flag_wins_over_the_file_as_before(tmp_path: Path) -> None:
    """A flag of the command line has priority over the file, also at a reload."""
    stage = Stage(tmp_path, "--drain-grace", "7")
    stage.write("drain_grace = 3.0")
    assert stage.reload() == [{"event": "config_reloaded", "changed": []}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("drain_grace = 3.0\nverify_rate = 7", "verify_rate: "),
        ("drain_grace = 3.0\nx = 1", "no such setting: x"),
        ("drain_grace = 3.0\n[", "kvstore.toml: "),
        (f"drain_grace = 3.0\nx = {'[' * 5000}", "kvstore.toml: "),
    ],
)
def test_a_bad_file_changes_nothing(tmp_path: Path, text: str, why: str) -> None:
    """A bad file changes nothing, and the log has the reason."""
    stage = Stage(tmp_path)
    stage.write(text)
    (line,) = stage.reload()
    assert line["event"] == "config_not_read"
    assert why in str(line["why"])
    assert stage.told == {}
    assert stage.reloader.config.drain_grace == 10.0


def test_tenants_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    """Settings stay as they are, without a new message, while the tenants file is unusable."""
    stage = Stage(tmp_path)
    stage.write("drain_grace = 3.0")
    stage.tenants_usable = False
    assert stage.reload() == []
    assert stage.told == {}


def test_a_bug_ends_no_store(tmp_path: Path) -> None:
    """An unexpected error in a reload is logged, and the settings stay."""
    stage = Stage(tmp_path)

    def fail() -> Config:
        raise RuntimeError

    reloader = Reloader(stage.reloader.config, {}, read=fail, read_tenants=lambda: True)
    with own_logs() as lines:
        reloader.reload()
    assert [each["event"] for each in lines] == ["reload_failed"]
    assert reloader.config is stage.reloader.config


def test_without_a_file_there_is_nothing_to_read() -> None:
    """A reload without a file logs that there is nothing to reload."""
    reloader = Reloader(Config(), {}, read=Config, read_tenants=lambda: True)
    with own_logs() as lines:
        reloader.reload()
    assert [each["event"] for each in lines] == ["nothing_to_reload"]
