"""The environment that an engine runs in beside the project's own, set up once.

An engine asks for other versions than the project does, so it never shares its environment. Only
the standard library is imported here: whatever Python runs it sets the environment up.
"""

import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).parents[3]
# pip chooses the build of this distribution, and with it its further requirements.
CHOSEN_BY_PIP = "torch=="
PYTHON = (3, 11)
CPU_FACTS = Path("/proc/cpuinfo")
# Characters of pip's output that are shown after a failure.
SAID = 2_000
ADVICE = """\
{engine} cannot be installed here. It needs Linux on x86-64, Python 3.11, {gigabytes} GB, and an
index with the packages of {pins}; for torch's CPU builds pass pip's options in PIP_ARGS."""


def nothing(_: Path) -> None:
    """Completes an environment that needs nothing besides its packages."""


@dataclass(frozen=True)
class EngineEnvironment:
    """An environment of pinned packages, with kvstore from this tree beside them.

    ``pins`` names a version of each package, and torch is installed first: pip takes its CPU
    build wherever an index offers one. ``complete`` gets the environment's Python at the end.
    """

    engine: str
    folder: Path
    pins: Path
    gigabytes: int
    complete: Callable[[Path], None] = nothing

    @property
    def python(self) -> Path:
        """Its interpreter, which exists once it is set up."""
        return self.folder / "bin" / "python"

    def is_ready(self) -> bool:
        """Returns whether everything that is pinned now is installed."""
        stamp = self._stamp
        return stamp.exists() and stamp.read_text(encoding="utf-8") == self._wanted()

    def why_not(self) -> str | None:
        """Returns why the engine cannot run on this machine with this Python; None if it can."""
        if sys.version_info[:2] != PYTHON:
            version = ".".join(map(str, sys.version_info[:2]))
            return f"{self.engine}'s tests need Python 3.11, and this is {version}: set PYTHON"
        if " avx2 " not in (CPU_FACTS.read_text(encoding="utf-8") if CPU_FACTS.exists() else ""):
            return f"{self.engine} needs Linux on x86-64 with AVX2, which this machine lacks"
        return None

    def set_up(self, pip_arguments: Sequence[str]) -> bool:
        """Installs what is pinned, and kvstore beside it. Returns whether all of it is there."""
        if self.is_ready():
            self.complete(self.python)
            return True
        size = f"{self.gigabytes} GB"
        print(f"Setting up {self.folder}: takes a few minutes and {size}, once", flush=True)
        venv.create(self.folder, with_pip=True, clear=True)
        wanted = self._wanted()
        torch = next(line for line in wanted.splitlines() if line.startswith(CHOSEN_BY_PIP))
        pip = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check"]
        pip += ["--progress-bar", "off", *pip_arguments]
        for what in (
            ["--constraint", str(self.pins), torch],
            ["--no-deps", "--requirement", str(self.pins)],
            ["--no-deps", "--no-build-isolation", "--editable", str(TREE)],
        ):
            said = subprocess.run([*pip, *what], capture_output=True, text=True, check=False)
            if said.returncode:
                print((said.stdout + said.stderr)[-SAID:])
                return False
        self.complete(self.python)
        self._stamp.write_text(wanted, encoding="utf-8")
        return True

    def main(self) -> None:
        """Sets it up with pip's options from the command line, or exits with the reason."""
        reason = self.why_not()
        if reason is not None:
            sys.exit(reason)
        if not self.set_up(sys.argv[1:]):
            names = {"engine": self.engine, "gigabytes": self.gigabytes, "pins": self.pins.name}
            sys.exit(ADVICE.format(**names))

    @property
    def _stamp(self) -> Path:
        """The file that has the installed requirements, once all of them are installed."""
        return self.folder / ".installed"

    def _wanted(self) -> str:
        return self.pins.read_text(encoding="utf-8")
