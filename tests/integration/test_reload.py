"""A server process that reloads its settings."""

import os
import signal
from pathlib import Path

from kvstore_client.testing import RunningStore, running_store, wait_until

JSON = 'log_format = "json"\n'
# Known by a line of the log that comes last, at every level.
OTHER_SIZE = 'tier1_bytes = "8MiB"\n'


def reload(store: RunningStore, event: str) -> str:
    """Sends SIGHUP. Returns the new log lines once ``event`` is among them."""
    before = len(store.log)
    os.kill(store.pid, signal.SIGHUP)
    assert wait_until(lambda: event in store.log[before:])
    return store.log[before:]


def test_settings_are_read_again(tmp_path: Path) -> None:
    """A reload changes what can change, in existing loggers too. A bad file changes nothing."""
    file = tmp_path / "kvstore.toml"
    file.write_text(JSON)
    with running_store("--config-file", str(file)) as store:
        file.write_text(f"{JSON}{OTHER_SIZE}reaper_interval = 0.05\nverify_rate = 1")
        said = reload(store, "config_needs_restart")
        assert '"changed": ["reaper_interval", "verify_rate"]' in said
        assert '"unchanged": ["tier1_bytes"]' in said

        file.write_text(f"{JSON}verify_rate = 2")
        said = reload(store, "config_not_read")
        assert "verify_rate: " in said
        assert "config_reloaded" not in said

        file.write_text(f'{OTHER_SIZE}log_level = "warning"\nverify_rate = 1')
        said = reload(store, "config_needs_restart")
        assert "config_reloaded" not in said
        assert '"event"' not in said

        file.write_text("verify_rate = 0.5")
        said = reload(store, "config_reloaded")
        assert "changed=['log_level', 'verify_rate']" in said
        assert store.stop() == 0


def test_without_a_file_a_server_goes_on() -> None:
    """A server without a config file notes SIGHUP and goes on."""
    with running_store() as store:
        reload(store, "nothing_to_reload")
        assert store.stop() == 0
