"""Our wheel in an environment of its own, in a folder that has nothing else."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.snippets import RUN, console_commands, require_output, snippets

ROOT = Path(__file__).parents[3]
# What pip says where it reaches no index.
OFFLINE = ("Failed to establish a new connection", "NameResolutionError", "ConnectTimeoutError")
# Of one program: a model's first run reads all of torch from the disk.
PROGRAM_SECONDS = 280.0


def build_wheel(out: Path) -> Path:
    """Builds the wheel of this tree, and returns its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", str(out)], cwd=ROOT, capture_output=True, check=True)
    (made,) = out.glob("*.whl")
    return made


class InstalledWheel:
    """A wheel and what it asks for in ``folder/.venv``; ``folder`` is where programs run.

    Of this machine they see the system's programs and what pip kept, and no checkout.
    """

    def __init__(self, wheel: Path, extras: str, folder: Path) -> None:
        """Installs it with ``extras``, versions as constrained. Skips where no index is reached."""
        self.folder = folder
        self.bin = folder / ".venv" / "bin"
        self._background = folder / "background.log"
        self.environment = {
            "HOME": str(folder),
            "KVSTORE_RUNTIME_DIR": str(folder / "run"),
            "KVSTORE_METRICS_LISTEN": "127.0.0.1:0",
            "KVSTORE_TIER1_BYTES": "64MiB",
            "PATH": os.defpath,
            "TMPDIR": str(folder),
        }
        venv.create(folder / ".venv", with_pip=False)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        pip += ["--quiet", "--disable-pip-version-check", "--progress-bar", "off", "--no-compile"]
        pip += ["--constraint", str(ROOT / "constraints.txt"), f"{wheel}[{extras}]"]
        said = subprocess.run(pip, cwd=folder, capture_output=True, text=True, check=False)
        if said.returncode and any(each in said.stderr for each in OFFLINE):
            pytest.skip("needs a package index")
        assert said.returncode == 0, said.stdout + said.stderr

    def run(self, program: str, *arguments: str) -> str:
        """Runs a program of the environment and returns what it printed; it has to end well."""
        return self._say([str(self.bin / program), *arguments])

    def follow(self, page: Path, look: Callable[[str], None] = lambda _: None) -> int:
        """Does what a page tells a reader to type, and returns how many snippets that were.

        ``look`` is called before what runs in the background is ended, with what that printed.
        """
        found = snippets(page)
        background: list[subprocess.Popen[bytes]] = []
        try:
            for each in found:
                place = f"{each.page}:{each.line}"
                assert each.language in RUN, place
                if each.language == "python":
                    printed = self._say([str(self.bin / "python"), "-c", each.text])
                    require_output(place, each.output or "...", printed)
                    continue
                for line, command, output in console_commands(each):
                    self._type(f"{each.page}:{line}", command, output, background)
            look(self._background.read_text(encoding="utf-8"))
        finally:
            for process in background:
                process.terminate()
            ended = [process.wait(30) for process in background]
        assert ended == [0] * len(ended)
        return len(found)

    def _type(
        self, place: str, command: str, output: str, background: list[subprocess.Popen[bytes]]
    ) -> None:
        if not command.endswith("&"):
            require_output(place, output or "...", self._say(["bash", "-euc", command]))
            return
        with self._background.open("ab") as log:
            background.append(
                subprocess.Popen(
                    command.removesuffix("&").split(),
                    cwd=self.folder,
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                )
            )

    def _say(self, command: list[str]) -> str:
        said = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
        assert said.returncode == 0, f"{command}\n{said.stdout}{said.stderr}"
        return said.stdout
