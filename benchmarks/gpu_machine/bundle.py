"""Packs ``gpu-bundle/``, the folder that travels to a GPU machine: ``make gpu-bundle``.

``checkout.tar.gz`` has the tracked files as they are, committed or not. ``wheels/`` has the
distributions of ``wheels.txt`` in the versions of ``constraints.txt``. The scripts are ``look``,
``prove``, ``measure`` and ``again``, and ``manifest.json`` describes the bundle. Results that came
back go to ``earlier/``, which this program does not change. It does not download a wheel again.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
from gzip import GzipFile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
MOST_BYTES: Final = 40_000_000
PYTHON: Final = "3.12"
SCRIPTS: Final = ("look", "prove", "measure", "again")
# pip accepts only the platforms in its arguments, and does not add older ones.
PLATFORMS: Final = (
    *("manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux_2_27", "manylinux_2_24"),
    *("manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010", "manylinux_2_5"),
    "manylinux1",
)
SCRIPT: Final = """\
#!/usr/bin/env bash
# {script}: see docs/gpu.md in the checkout. usage: {script} FOLDER-OF-RESULTS [--minutes N]
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
work=${{KVSTORE_GPU_WORK:-/tmp/kvstore-gpu}}
tree=$work/checkout-{digest}
if [ ! -e "$tree/.unpacked" ]; then
    mkdir -p "$tree"
    tar -xzf "$here/checkout.tar.gz" -C "$tree"
    touch "$tree/.unpacked"
fi
exec python3 "$tree/benchmarks/gpu_machine/run.py" {script} "$@" \\
    --work "$work" --wheels "$here/wheels" --earlier "$here/earlier"
"""


def canonical(name: str) -> str:
    """Returns the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names(path: Path) -> list[str]:
    """Returns the names in a list of distributions, without comments and versions."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = (re.split(r"[=<>!~;\[ ]", line)[0] for line in lines if not line.startswith("#"))
    return [name for name in found if name]


def pins() -> dict[str, str]:
    """Returns the versions of constraints.txt by the canonical names."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parts = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, version in parts}


def fits(path: Path, name: str, version: str, python: str) -> bool:
    """Returns whether a wheel is of a version, and for a Python as "3.12"."""
    parts = path.stem.split("-")
    tag = f"cp{python.replace('.', '')}"
    runs = any(each in {tag, "py3"} for each in parts[-3].split(".")) or parts[-2] == "abi3"
    return canonical(parts[0]) == canonical(name) and parts[1] == version and runs


def fetch(folder: Path, python: str, pip_arguments: list[str]) -> list[Path]:
    """Downloads missing wheels, removes others and returns the paths. Exits with pip's error."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = pins()
    wanted = {name: versions[canonical(name)] for name in names(HERE / "wheels.txt")}
    platforms = [part for each in PLATFORMS for part in ("--platform", f"{each}_x86_64")]
    for name, version in wanted.items():
        if any(fits(path, name, version, python) for path in folder.glob("*.whl")):
            continue
        print(f"  {name} {version}", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
        command += [*platforms, "--dest", str(folder), *pip_arguments, f"{name}=={version}"]
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"{name} {version} cannot be downloaded for Python {python}:\n{done.stderr}")
    paths = []
    for path in sorted(folder.iterdir()):
        if any(fits(path, name, version, python) for name, version in wanted.items()):
            paths.append(path)
        else:
            path.unlink()
    return paths


def git(*arguments: str) -> str:
    """Returns the output of git for our tree; raises ``CalledProcessError``."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def pack(path: Path) -> int:
    """Packs the tracked files that exist and returns the number of untracked files."""
    tracked = [name for name in git("ls-files", "-z").split("\0") if name]
    # Without the time of packing: the same files have the same digest.
    with GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name in tracked:
            if (ROOT / name).exists():
                archive.add(ROOT / name, arcname=name, recursive=False)
    return len(git("ls-files", "--others", "--exclude-standard").splitlines())


def main() -> int:
    """Writes the bundle, prints its size and returns 1 if it is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-bundle")
    parser.add_argument("--python", default=PYTHON, help=f"of the machine (default: {PYTHON})")
    options, pip_arguments = parser.parse_known_args()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    print(f"Wheels for Python {options.python} into {out / 'wheels'}:", flush=True)
    wheels = fetch(out / "wheels", options.python, pip_arguments)
    checkout = out / "checkout.tar.gz"
    left_out = pack(checkout)
    digest = hashlib.sha256(checkout.read_bytes()).hexdigest()[:12]
    for script in SCRIPTS:
        path = out / script
        path.write_text(SCRIPT.format(script=script, digest=digest), encoding="utf-8")
        path.chmod(0o755)
    commit = git("rev-parse", "HEAD").strip()
    changed = bool(git("status", "--porcelain", "--untracked-files=no").strip())
    manifest = {
        "commit": commit,
        "changed_since": changed,
        "python": options.python,
        "checkout": digest,
        "wheels": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels},
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    files = [path for path in out.rglob("*") if path.is_file() and "earlier" not in path.parts]
    size = sum(path.stat().st_size for path in files)
    if left_out:
        print(f"{left_out} untracked files are left out: git add those that the machine needs.")
    print(
        f"{out}: {size / 1e6:.1f} MB of at most {MOST_BYTES / 1e6:.0f}, {len(wheels)} wheels, "
        f"commit {commit[:12]}{' and changes since' if changed else ''}"
    )
    if size > MOST_BYTES:
        print("It is too large: remove files from the tree, or names from wheels.txt.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
