"""Sets up the environment that SGLang's prefix caches run in, `.venv-peers/sglang`, once.

What it needs is in sglang_requirements.txt, each version pinned: SGLang's wheel, which has the
Python tree and the Rust core, and what those modules import. Arguments are handed to pip.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "sglang_requirements.txt"
FOLDER = HERE.parents[1] / ".venv-peers" / "sglang"
# Holds the requirements that were installed, once all of them are.
STAMP = FOLDER / ".installed"
# Of this distribution pip chooses the build, and with it what else it needs.
CHOSEN_BY_PIP = "torch=="
ADVICE = """\
SGLang cannot be had here, and is left out: benchmarks say so and measure ours alone.
It needs Linux on x86-64, Python 3.11, 2 GB, and an index that has what {file} names;
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
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    torch = next(line for line in wanted.splitlines() if line.startswith(CHOSEN_BY_PIP))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for what in (["--constraint", pins, torch], ["--no-deps", "--requirement", pins]):
        if subprocess.run([*pip, *pip_arguments, *what], check=False).returncode:  # noqa: S603
            print(ADVICE.format(file=REQUIREMENTS.name))
            return False
    STAMP.write_text(wanted, encoding="utf-8")
    return True


if __name__ == "__main__":
    set_up(sys.argv[1:])
