"""What the wheel carries, what importing it loads, and that its scripts exist."""

import re
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

import kvstore

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Package in the wheel -> its folder in the tree.
PACKAGES = {
    "kvstore": ROOT / "kvstore",
    "kvstore_client": ROOT / "clients" / "python" / "kvstore_client",
    "kvstore_transformers": ROOT / "clients" / "python" / "kvstore_transformers",
    "kvstore_vllm": ROOT / "clients" / "python" / "kvstore_vllm",
    "inference_worker": ROOT / "inference_worker",
}
SHIPPED = {".json", ".py", ".pyi", ".txt", ".typed"}


def run_python(*arguments: str) -> str:
    """Run this interpreter in the repository and return what it printed; raise if it failed."""
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def canonical(name: str) -> str:
    """Return the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_versions() -> dict[str, str]:
    """Return the version that constraints.txt pins each distribution to."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, version in pins}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel with the backend that is installed, without a network."""
    out = tmp_path_factory.mktemp("wheel")
    run_python("-m", "hatchling", "build", "--target", "wheel", "--directory", str(out))
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_carries_the_packages_whole(wheel: zipfile.ZipFile) -> None:
    """Every module, stub, marker and data file of the packages is in the wheel."""
    wanted = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.suffix in SHIPPED or path.name == "py.typed"
    }
    assert {f"{name}/py.typed" for name in PACKAGES} <= wanted
    assert wanted - set(wheel.namelist()) == set()


def test_the_wheel_carries_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Besides the packages there is the metadata alone: no tests, no docs, no stray folder."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {*PACKAGES, f"kvstore-{PROJECT['version']}.dist-info"}
    assert [name for name in wheel.namelist() if name.endswith((".md", ".proto", ".pyc"))] == []


def test_the_wheel_declares_the_scripts_and_the_licence(wheel: zipfile.ZipFile) -> None:
    """The three scripts are entry points of the wheel, and the licence's text is inside."""
    info = f"kvstore-{PROJECT['version']}.dist-info"
    parser = ConfigParser()
    parser.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert dict(parser["console_scripts"]) == PROJECT["scripts"]
    assert b"Apache License" in wheel.read(f"{info}/licenses/LICENSE")


@pytest.mark.parametrize("script", PROJECT["scripts"])
def test_a_script_leads_to_a_function(script: str) -> None:
    """What a script names can be imported and called."""
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
    assert {"torch", "cupy", "numpy", "transformers"} & set(loaded) == set()
    assert [name for name in ours if name != "kvstore" and not name.startswith("kvstore.v1")] == []


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
    """Each direct requirement of the extras that the Makefile installs has a pinned version."""
    extras = PROJECT["optional-dependencies"]
    direct = PROJECT["dependencies"] + [
        item for name, items in extras.items() if name != "cuda" for item in items
    ]
    names = {canonical(re.split(r"[^A-Za-z0-9._-]", item)[0]) for item in direct} - {"kvstore"}
    assert sorted(names - set(pinned_versions())) == []


def test_the_programs_say_the_project_s_version() -> None:
    """What --version prints is what is built."""
    assert kvstore.__version__ == PROJECT["version"]


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
