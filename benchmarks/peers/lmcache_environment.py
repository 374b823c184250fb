"""Sets up the environment that LMCache runs in, `.venv-peers/lmcache`, once.

What it needs is in lmcache_requirements.txt, each version pinned: LMCache and what its server
imports on a machine without a GPU. Arguments are handed to pip.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "lmcache_requirements.txt"
FOLDER = HERE.parents[1] / ".venv-peers" / "lmcache"
# Holds the requirements that were installed, once all of them are.
STAMP = FOLDER / ".installed"
# Of this distribution pip chooses the build, and with it what else it needs.
CHOSEN_BY_PIP = "torch"
ADVICE = """\
LMCache cannot be had here, and is left out: benchmarks say so and measure ours alone.
It needs Linux on x86-64, Python 3.11 to 3.13, 2 GB, and an index that has what {file} names;
torch's CPU builds do, where pip is offered them: give pip's options for that in PIP_ARGS."""


def interpreter() -> Path | None:
    """Return the environment's Python, or None where it is not set up as it should be."""
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    ready = STAMP.exists() and STAMP.read_text(encoding="utf-8") == wanted
    return FOLDER / "bin" / "python" if ready else None


def set_up(pip_arguments: list[str]) -> bool:
    """Install what is pinned; return whether it is all there."""
    if interpreter():
        return True
    print(f"Setting up {FOLDER}: takes a few minutes, once", flush=True)
    venv.create(FOLDER, with_pip=True, clear=True)
    python, pins = str(FOLDER / "bin" / "python"), str(REQUIREMENTS)
    torch = next(
        line
        for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines()
        if line.startswith(CHOSEN_BY_PIP)
    )
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    for what in (["--constraint", pins, torch], ["--no-deps", "--requirement", pins]):
        command = [*pip, *pip_arguments, *what]
        said = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if said.returncode:
            print((said.stdout + said.stderr)[-2000:], ADVICE.format(file=REQUIREMENTS.name))
            return False
    STAMP.write_text(REQUIREMENTS.read_text(encoding="utf-8"), encoding="utf-8")
    return True


if __name__ == "__main__":
    set_up(sys.argv[1:])
