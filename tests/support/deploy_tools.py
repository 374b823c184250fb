"""How tests read files of deploy/: sizes as each format spells them, and tools of others."""

import re
import shutil
import subprocess

import pytest
from pydantic import ByteSize, TypeAdapter

# What index and process may take beside the pages.
LEAST_HEADROOM = 256 << 20


def size(text: str) -> int:
    """Return bytes: systemd and compose write G and m for what the settings write GiB and MiB."""
    spelt = re.sub(r"([kmgKMG])$", lambda unit: unit[1].upper() + "iB", text)
    return TypeAdapter(ByteSize).validate_python(spelt)


def run(*command: str) -> str:
    """Run a tool and return what it said; skip where this machine has not got it."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr
