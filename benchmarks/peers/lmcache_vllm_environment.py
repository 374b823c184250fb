"""Puts LMCache beside vLLM's environment, into `.venv-peers/lmcache-vllm`, once.

It is a folder for PYTHONPATH with the imports of LMCache that vLLM's environment lacks, because its
connector runs inside vLLM. Needs .venv-vllm. Arguments are passed to pip.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.environment import pip_arguments

TREE = Path(__file__).parents[2]
FOLDER = TREE / ".venv-peers" / "lmcache-vllm"
PYTHON = TREE / ".venv-vllm" / "bin" / "python"
PINS = Path(__file__).with_name("lmcache_requirements.txt")
THEIRS = TREE / "tests" / "vllm" / "vllm_requirements.txt"


def names(path: Path) -> dict[str, str]:
    """Returns the pins of a file by the normalised name of the distribution."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if "==" in line and line[:1] != "#"]
    return {pin.partition("==")[0].lower().replace("_", "-"): pin for pin in pins}


def main(options: list[str]) -> None:
    """Installs what is missing with pip's options, or says why it cannot."""
    if FOLDER.exists():
        return
    if not PYTHON.exists():
        print("LMCache beside vLLM is skipped: .venv-vllm is missing; make test-vllm sets it up")
        return
    ours, there = names(PINS), names(THEIRS)
    missing = [pin for name, pin in sorted(ours.items()) if name not in there]
    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    pip += ["--progress-bar", "off", "--target", str(FOLDER), *options, *missing]
    said = subprocess.run(pip, capture_output=True, text=True, check=False)  # noqa: S603
    if said.returncode:
        print((said.stdout + said.stderr)[-2_000:])
        print("LMCache beside vLLM is skipped: pip cannot install it here")


if __name__ == "__main__":
    main(pip_arguments(__doc__))
