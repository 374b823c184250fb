"""Readers for files of deploy/: sizes as each format spells them, and tools of others."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ByteSize, TypeAdapter

# What index and process may take beside the pages, and a holder beside those that it made.
LEAST_HEADROOM = 256 << 20
HOLDER_ROOM = 64 << 20


def size(text: str) -> int:
    """Returns bytes: systemd and compose write G and m for what the settings write GiB and MiB."""
    spelt = re.sub(r"([kmgKMG])$", lambda unit: unit[1].upper() + "iB", text)
    return TypeAdapter(ByteSize).validate_python(spelt)


def run(*command: str) -> str:
    """Runs a tool of this environment or the system and returns its output, or skips the test."""
    own = str(Path(sys.executable).parent)
    program = shutil.which(command[0], path=os.pathsep.join([own, os.environ.get("PATH", "")]))
    if program is None:
        pytest.skip(f"needs {command[0]}")
    result = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr
