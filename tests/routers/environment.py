"""Sets up the environment of the routers, `.venv-routers`, once.

It has SGLang's router and Dynamo's indexer, which are programs of their own: the tests run in
`.venv` and start them. requirements.txt pins each distribution. Arguments are passed to pip.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
TREE = HERE.parents[1]
FOLDER = TREE / ".venv-routers"
PINS = HERE / "requirements.txt"
# Characters of pip's output that are shown if it fails.
SAID = 2_000
ADVICE = f"""\
The routers cannot be installed here. They need Linux on x86-64 or arm64, Python 3.11 to 3.13,
400 MB, and an index that has the distributions of tests/routers/{PINS.name}: set PIP_ARGS."""


def interpreter() -> Path | None:
    """Returns the environment's Python, or None if it does not match the present pins."""
    stamp = _stamp()
    ready = stamp.exists() and stamp.read_text(encoding="utf-8") == _wanted()
    return FOLDER / "bin" / "python" if ready else None


def set_up(pip_arguments: list[str]) -> bool:
    """Installs the pins; returns whether all of them are installed."""
    if interpreter():
        return True
    print(f"Setting up {FOLDER}: takes a minute, once", flush=True)
    venv.create(FOLDER, with_pip=True, clear=True)
    pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    pip += ["--progress-bar", "off", "--no-deps", *pip_arguments, "--requirement", str(PINS)]
    said = subprocess.run(pip, capture_output=True, text=True, check=False)
    if said.returncode:
        print((said.stdout + said.stderr)[-SAID:])
        return False
    _stamp().write_text(_wanted(), encoding="utf-8")
    return True


def _wanted() -> str:
    return PINS.read_text(encoding="utf-8")


def _stamp() -> Path:
    """Returns the file that holds the pins that were installed."""
    return FOLDER / ".installed"


def main() -> None:
    """Sets it up, or ends with status 1 and the reason."""
    if not set_up(sys.argv[1:]):
        sys.exit(ADVICE)


if __name__ == "__main__":
    main()
