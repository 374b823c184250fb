"""Runs the four scripts on a machine without a GPU: ``make gpu-dry-run``.

It installs the packages of ``machine.txt``, and nothing else, into ``.venv-gpu``, packs the bundle
for that Python, and runs each script out of the bundle, as on the GPU machine. The exit status is 0
only if every step ended with its result or with "no CUDA device", and none with an ImportError or a
traceback. The environment takes 5 GB; ``make clean`` removes it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_machine.bundle import PYTHON, ROOT, SCRIPTS
from gpu_machine.results import entries
from gpu_machine.steps import FAILED, LEFT_OUT, MISSING, TIMED_OUT

HERE: Final = Path(__file__).resolve().parent
ENVIRONMENT: Final = ROOT / ".venv-gpu"
BUNDLE: Final = ROOT / "gpu-bundle"
OUT: Final = ROOT / "build" / "gpu-dry-run"
WRONG: Final = {FAILED, LEFT_OUT, MISSING, TIMED_OUT}
FELL_OVER: Final = re.compile(
    r"Traceback \(most recent call last\)|ImportError|ModuleNotFoundError"
)


def set_up(version: str, pip_arguments: list[str]) -> Path:
    """Makes the environment if none fits and returns its Python. Exits if something is missing."""
    python = ENVIRONMENT / "bin" / "python"
    stamp, wanted = ENVIRONMENT / ".installed", HERE / "machine.txt"
    made_of = f"{version}\n{wanted.read_text(encoding='utf-8')}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == made_of:
        return python
    print(f"Setting up {ENVIRONMENT}: takes a few minutes and 5 GB, once", flush=True)
    interpreter = shutil.which(f"python{version}")
    # pyenv's commands run the version that this variable names.
    asked = {**os.environ, "PYENV_VERSION": version}
    made = interpreter is not None and subprocess.run(  # noqa: S603 - our own arguments
        [interpreter, "-m", "venv", "--clear", str(ENVIRONMENT)], env=asked, check=False
    )
    if not made or made.returncode != 0:
        sys.exit(f"python{version} cannot be run: install it, or set GPU_PYTHON to another version")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-compile", "--requirement", str(wanted), *pip_arguments]
    if subprocess.run(command, check=False).returncode != 0:  # noqa: S603 - as above
        sys.exit("pip cannot install the packages of machine.txt here: see its message above.")
    stamp.write_text(made_of, encoding="utf-8")
    return python


def faults(script: str) -> Iterator[str]:
    """Yields a line for each fault in the results of a script."""
    folder = OUT / script
    steps = [each for each in entries(folder) if each["kind"] == "step"]
    if not steps:
        yield f"{script}: no step ran"
    for each in steps:
        if each["verdict"] in WRONG:
            yield f"{script}: {each['step']}: {each['verdict']}: {each['why']}"
    log = folder / f"{script}.log"
    for line in log.read_text(encoding="utf-8").splitlines():
        if FELL_OVER.search(line):
            yield f"{script}: {line}"


def main() -> int:
    """Runs all four and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=PYTHON, help=f"version (default: {PYTHON})")
    options, pip_arguments = parser.parse_known_args()
    python = set_up(options.python, pip_arguments)
    bundle = [sys.executable, str(HERE / "bundle.py"), "--python", options.python]
    if (status := subprocess.run([*bundle, *pip_arguments], check=False).returncode) != 0:  # noqa: S603
        return status
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.rmtree(BUNDLE / "earlier", ignore_errors=True)
    names = ("HOME", "LANG", "USER")
    environment = {
        **{name: os.environ[name] for name in names if name in os.environ},
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        # The default of 8 GiB would be half of a small machine's memory.
        "KVSTORE_TOUCH_GIB": "1",
    }
    found: list[str] = []
    # Outside this checkout, since the bundle has its own.
    with tempfile.TemporaryDirectory(prefix="kvstore-gpu-") as work:
        for script in SCRIPTS:
            print(f"\n== {script}", flush=True)
            command = [str(BUNDLE / script), str(OUT / script)]
            given = {**environment, "KVSTORE_GPU_WORK": work}
            subprocess.run(command, env=given, check=True)  # noqa: S603 - our own script
            found += faults(script)
    print()
    for line in found:
        print(line)
    verdict = (
        f"{len(found)} faults" if found else "every step ended with a result or no CUDA device"
    )
    print(f"gpu-dry-run: {verdict}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
