"""A small part of `make test-vllm`, if its environment exists."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "vllm"
ENVIRONMENT = ROOT / ".venv-vllm"
TIMEOUT = 290


def set_up() -> bool:
    """Returns whether the environment matches its present requirements."""
    stamp = ENVIRONMENT / ".installed"
    wanted = (FOLDER / "vllm_requirements.txt").read_text(encoding="utf-8")
    return stamp.exists() and stamp.read_text(encoding="utf-8") == wanted


@pytest.mark.slow
@pytest.mark.skipif(not set_up(), reason="needs .venv-vllm, which make test-vllm sets up")
def test_two_vllm_engines_share_a_prefix() -> None:
    """Cold, hit, partial hit and a second engine's hit have the tokens of vLLM alone."""
    command = [ENVIRONMENT / "bin" / "python", FOLDER / "run.py", "--small"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "8 cases, 0 wrong" in ended.stdout
