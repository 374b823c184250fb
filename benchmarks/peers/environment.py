"""The environments of peers, `.venv-peers/NAME`, each set up once.

A peer's requirements are in NAME_requirements.txt, each version pinned.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".venv-peers"
# pip chooses the build of this distribution, and so its other requirements.
CHOSEN_BY_PIP = "torch=="
# Characters of pip's message that are shown after a failure.
SAID = 2_000
ADVICE = """\
{peer} cannot be installed here, so benchmarks skip it.
It needs Linux on x86-64, {python}, 2 GB, and an index with the packages of {file}.
For torch's CPU builds pass pip's options for their index in PIP_ARGS."""


def interpreter(name: str) -> Path | None:
    """Returns an environment's Python, or None if the environment is not complete."""
    stamp = _stamp(name)
    wanted = _requirements(name).read_text(encoding="utf-8")
    ready = stamp.exists() and stamp.read_text(encoding="utf-8") == wanted
    return FOLDER / name / "bin" / "python" if ready else None


def pip_arguments(about: str) -> list[str]:
    """Returns the command line's arguments, which are pip's, or prints our help and exits."""
    arguments = sys.argv[1:]
    if {"-h", "--help"}.intersection(arguments):
        print(f"usage: {Path(sys.argv[0]).name} [OPTION OF PIP ...]\n\n{about.strip()}")
        raise SystemExit
    return arguments


def set_up(name: str, peer: str, python: str, options: list[str]) -> bool:
    """Installs the pinned requirements. Returns whether all of them are installed.

    ``options`` are pip's. ``peer`` and ``python`` are named in the message of a failure.
    """
    if interpreter(name):
        return True
    folder, pins = FOLDER / name, _requirements(name)
    print(f"Setting up {folder}: takes a few minutes, once", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    wanted = pins.read_text(encoding="utf-8")
    torch = next(line for line in wanted.splitlines() if line.startswith(CHOSEN_BY_PIP))
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    pip += ["--progress-bar", "off", *options]
    for what in (["--constraint", str(pins), torch], ["--no-deps", "--requirement", str(pins)]):
        said = subprocess.run([*pip, *what], capture_output=True, text=True, check=False)  # noqa: S603
        if said.returncode:
            print((said.stdout + said.stderr)[-SAID:])
            print(ADVICE.format(peer=peer, python=python, file=pins.name))
            return False
    _stamp(name).write_text(wanted, encoding="utf-8")
    return True


def _requirements(name: str) -> Path:
    return HERE / f"{name}_requirements.txt"


def _stamp(name: str) -> Path:
    """Returns the file that has the installed requirements once all of them are installed."""
    return FOLDER / name / ".installed"
