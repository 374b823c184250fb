"""The fixture of tests that read settings."""

import pytest

from kvstore.config.settings import Config


@pytest.fixture
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the settings of the user who runs the tests."""
    for name in Config.model_fields:
        monkeypatch.delenv(f"KVSTORE_{name.upper()}", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
