"""The wheel's files, the modules that importing it loads, and its scripts."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import kvstore

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Package in the wheel -> its folder in the tree.
PACKAGES = {
    "kvstore": ROOT / "kvstore",
    "kvstore_client": ROOT / "clients" / "python" / "kvstore_client",
    "kvstore_ctl": ROOT / "clients" / "python" / "kvstore_ctl",
    "kvstore_sglang": ROOT / "clients" / "python" / "kvstore_sglang",
    "kvstore_transformers": ROOT / "clients" / "python" / "kvstore_transformers",
    "kvstore_vllm": ROOT / "clients" / "python" / "kvstore_vllm",
    "inference_worker": ROOT / "inference_worker",
}
# What is for readers of the tree.
NOT_SHIPPED = {".md"}
# Any time will do, as long as it is the same: seconds since 1970.
EPOCH = "1700000000"


def load_script(path: Path) -> ModuleType:
    """Returns a script that is in no package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dist = load_script(ROOT / "deploy" / "dist.py")


def run_python(*arguments: str) -> str:
    """Runs this interpreter in the repository and returns what it printed; raises if it failed."""
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def canonical(name: str) -> str:
    """Returns the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_versions() -> dict[str, str]:
    """Returns the version that constraints.txt pins each distribution to."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, version in pins}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Builds the sdist, and of it the wheel, with the backend that is installed."""
    built: list[Path] = dist.build_both(ROOT, tmp_path_factory.mktemp("dist"), EPOCH)
    return built


@pytest.fixture(scope="module")
def wheel(archives: list[Path]) -> zipfile.ZipFile:
    """Returns the wheel."""
    return zipfile.ZipFile(archives[1])


def test_the_image_s_wheel_is_the_sdist_s(archives: list[Path], tmp_path: Path) -> None:
    """The files that go into images are enough to build the wheel, whatever their times."""
    ignored = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for name in (line.removeprefix("!") for line in ignored if line.startswith("!")):
        copied = tmp_path / "context" / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copied, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, copied)
            copied.chmod(0o600)
    own = dist.build("wheel", tmp_path / "context", tmp_path / "out", EPOCH)
    assert dist.digests([own]) == dist.digests([archives[1]])


def test_the_sdist_carries_what_is_built_and_tested_from(archives: list[Path]) -> None:
    """The contract, the tests, the pages and deploy/ are in it, and no cache or environment."""
    with tarfile.open(archives[0]) as sdist:
        names = {each.partition("/")[2] for each in sdist.getnames()}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("proto/**/*.proto", "deploy/**/*.yaml", "docs/*.md", "tests/**/test_*.py")
        for path in ROOT.glob(pattern)
    }
    assert wanted | {"Makefile", "constraints.txt", "PKG-INFO"} <= names
    assert [each for each in names if each.startswith((".venv", ".git/", "dist/"))] == []
    assert [each for each in names if "__pycache__" in each] == []


def test_the_wheel_carries_the_packages_whole(wheel: zipfile.ZipFile) -> None:
    """Every module, stub, marker and data file of the packages is in the wheel."""
    wanted = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in NOT_SHIPPED and path.parent.name != "__pycache__"
    }
    assert {f"{name}/py.typed" for name in PACKAGES} <= wanted
    assert wanted - set(wheel.namelist()) == set()


def test_the_wheel_carries_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Besides the packages there is the metadata alone: no tests, no docs, no stray folder."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {*PACKAGES, f"kvstore-{kvstore.__version__}.dist-info"}
    assert [name for name in wheel.namelist() if name.endswith((".md", ".proto", ".pyc"))] == []


def test_the_wheel_declares_the_scripts_and_the_licence(wheel: zipfile.ZipFile) -> None:
    """The three scripts are entry points of the wheel, and the licence's text is inside."""
    info = f"kvstore-{kvstore.__version__}.dist-info"
    parser = ConfigParser()
    parser.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert dict(parser["console_scripts"]) == PROJECT["scripts"]
    assert b"Apache License" in wheel.read(f"{info}/licenses/LICENSE")


def test_the_plugin_of_sglang_is_a_function(wheel: zipfile.ZipFile) -> None:
    """SGLang finds the plugin in the wheel's metadata, and calls what it names."""
    parser = ConfigParser()
    info = f"kvstore-{kvstore.__version__}.dist-info"
    parser.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    plugins = PROJECT["entry-points"]["sglang.srt.plugins"]
    assert dict(parser["sglang.srt.plugins"]) == plugins
    [target] = plugins.values()
    code = (
        "from importlib.metadata import EntryPoint; "
        f"print(callable(EntryPoint('kvstore', {target!r}, 'sglang.srt.plugins').load()))"
    )
    assert run_python("-c", code).strip() == "True"


@pytest.mark.parametrize("script", PROJECT["scripts"])
def test_a_script_leads_to_a_function(script: str) -> None:
    """A script's function can be imported and called."""
    target = PROJECT["scripts"][script]
    code = (
        "from importlib.metadata import EntryPoint; "
        f"print(callable(EntryPoint({script!r}, {target!r}, 'console_scripts').load()))"
    )
    assert run_python("-c", code).strip() == "True"


def test_importing_the_client_is_light() -> None:
    """Importing kvstore_client loads neither torch nor cupy nor any of the server."""
    code = "import kvstore_client, sys; print(*sorted(sys.modules))"
    loaded = run_python("-c", code).split()
    ours = [name for name in loaded if name.split(".")[0] == "kvstore"]
    assert "kvstore_client" in loaded
    assert {"torch", "cupy", "numpy", "transformers", "opentelemetry"} & set(loaded) == set()
    light = [name for name in ours if name not in {"kvstore", "kvstore.tracing"}]
    assert [name for name in light if not name.startswith("kvstore.v1")] == []


def test_the_client_and_the_probe_need_no_command_line() -> None:
    """Every module of kvstore_client and deploy/healthcheck.py import without typer and rich."""
    code = (
        "import importlib, pkgutil, sys; sys.modules.update(rich=None, typer=None); "
        "import kvstore_client; sys.path.insert(0, 'deploy'); import healthcheck; "
        "found = pkgutil.walk_packages(kvstore_client.__path__, 'kvstore_client.'); "
        "print(len([importlib.import_module(each.name) for each in found]))"
    )
    assert int(run_python("-c", code)) > 40
    assert {"rich", "typer"} & set(PROJECT["dependencies"]) == set()
    assert {"rich", "typer"} <= set(PROJECT["optional-dependencies"]["ctl"])


def test_the_generator_is_the_floor_of_the_runtime() -> None:
    """grpcio-tools is pinned exactly, and grpcio is required from the same version on."""
    development = PROJECT["optional-dependencies"]["dev"]
    (tools,) = (item for item in development if item.startswith("grpcio-tools"))
    assert re.fullmatch(r"grpcio-tools==\d+\.\d+\.\d+", tools)
    version = tools.removeprefix("grpcio-tools==")
    assert f"grpcio>={version}" in PROJECT["dependencies"]
    pins = pinned_versions()
    assert pins["grpcio-tools"] == pins["grpcio"] == version


def test_every_requirement_is_pinned() -> None:
    """Each direct requirement, of the extras too, has a pinned version."""
    extras = PROJECT["optional-dependencies"]
    direct = PROJECT["dependencies"] + [item for items in extras.values() for item in items]
    names = {canonical(re.split(r"[^A-Za-z0-9._-]", item)[0]) for item in direct} - {"kvstore"}
    assert sorted(names - set(pinned_versions())) == []


def test_the_version_stands_in_one_place() -> None:
    """The version of --version, of the build and of the chart is the same."""
    assert PROJECT["dynamic"] == ["version"]
    chart = yaml.safe_load((ROOT / "deploy/helm/kvstore/Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == kvstore.__version__


def test_nothing_says_to_install_us_from_a_registry() -> None:
    """This name belongs to another project there: ours is installed from a checkout."""
    paths = [
        path
        for pattern in ("*.md", "docs/**/*.md", "deploy/*", "clients/**/*.md", "clients/**/*.py")
        for path in ROOT.glob(pattern)
        if path.is_file()
    ] + [path for folder in PACKAGES.values() for path in folder.rglob("*.py")]
    told = re.compile(r"kvstore\[|install kvstore\b")
    assert [str(p) for p in paths if told.search(p.read_text(encoding="utf-8"))] == []
