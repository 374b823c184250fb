"""The snippets of a page of Markdown, and a reader who types them in.

A fence of ``python`` or ``console`` is run. What a reader cannot see is in comments:
``<!-- not run: WHY -->`` before a fence leaves it out, and ``<!-- python ... -->`` is code that is
run in its place, such as what a snippet takes for granted.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from kvstore_client import Client

ROOT = Path(__file__).parents[3]
RUN = ("python", "console")
NOT_RUN = "<!-- not run: "
OUTPUT = "text"
PROMPT = "$ "
EXPORT = re.compile(r"export (\w+)=")
# A command of a page is a program that starts in seconds, on a machine with other work.
COMMAND_SECONDS = 120.0


class Snippet(NamedTuple):
    """A fence of a page; ``line`` is that of its first line. ``output`` is the fence after it."""

    page: str
    line: int
    language: str
    text: str
    output: str | None = None


def snippets(page: Path) -> list[Snippet]:
    """Returns what is to be run of a page, in its order."""
    found: list[Snippet] = []
    before = ""
    for kind, line, text in _parts(page.read_text(encoding="utf-8").splitlines()):
        if kind in RUN and before != NOT_RUN:
            found.append(Snippet(page.name, line, kind, text))
        elif kind == OUTPUT and before == "python":
            found[-1] = found[-1]._replace(output=text)
        before = "" if before == NOT_RUN else kind
    return found


def _parts(lines: list[str]) -> Iterator[tuple[str, int, str]]:
    """Yields fences by their language, our comments, and prose, as (kind, line, text)."""
    start, kind, end = 0, "", ""
    for number, line in enumerate(lines):
        if end:
            if line == end:
                yield kind, start + 2, "\n".join(lines[start + 1 : number])
                end = ""
        elif line.startswith(NOT_RUN):
            yield NOT_RUN, number + 1, line
        elif line == "<!-- python":
            start, kind, end = number, "python", "-->"
        elif line.startswith("```"):
            start, kind, end = number, line[3:], "```"
        elif line:
            yield "prose", number + 1, line
    assert not end, f"line {start + 1} begins what never ends"


class Reader:
    """Types snippets in, one after the other, in one folder with a ``.venv`` and the benchmarks.

    Raises ``AssertionError`` where a snippet fails, or prints something else than the page says.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._exported = ExitStack()
        self._names: dict[str, object] = {"__name__": "snippet"}
        self._background: list[subprocess.Popen[bytes]] = []
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")

    def run(self, snippet: Snippet) -> None:
        """Runs one snippet; the names of Python's stay for the next."""
        if snippet.language == "python":
            self._run_python(snippet)
            return
        for line, command, output in console_commands(snippet):
            self._run_command(f"{snippet.page}:{line}", command, output)

    def close(self) -> None:
        """Ends what the snippets left running."""
        for each in self._names.values():
            if isinstance(each, Client):
                each.close()
        for process in self._background:
            process.terminate()
            process.wait(COMMAND_SECONDS)
        self._exported.close()

    def _run_python(self, snippet: Snippet) -> None:
        # In its place in the page, so that a traceback names the page's line.
        code = "\n" * (snippet.line - 1) + snippet.text
        printed = StringIO()
        with chdir(self._folder), redirect_stdout(printed):
            exec(compile(code, snippet.page, "exec"), self._names)  # noqa: S102 - our own pages
        if snippet.output is not None:
            require_output(f"{snippet.page}:{snippet.line}", snippet.output, printed.getvalue())

    def _run_command(self, place: str, command: str, output: str) -> None:
        if command.endswith("&"):
            with (self._folder / "background.log").open("ab") as log:
                # No shell: its process would outlive the reader. Exported variables are known.
                words = os.path.expandvars(command.removesuffix("&")).split()
                self._background.append(
                    subprocess.Popen(
                        words, cwd=self._folder, env=self._environment, stdout=log, stderr=log
                    )
                )
            return
        exported = EXPORT.match(command)
        if exported:
            command += f'; printf %s "${exported[1]}"'
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert result.returncode == 0, f"{place}: {command}\n{result.stdout}{result.stderr}"
        if exported:
            self._export(exported[1], result.stdout)
        elif output:
            require_output(place, output, result.stdout)

    def _export(self, name: str, value: str) -> None:
        """Set a variable for the commands that follow, and for code, until the reader is closed."""
        self._environment[name] = value
        self._exported.enter_context(mock.patch.dict(os.environ, {name: value}))


def console_commands(snippet: Snippet) -> Iterator[tuple[int, str, str]]:
    """Yields each command of a console with its line and the output that follows it."""
    lines = snippet.text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(PROMPT)]
    assert starts[:1] == [0], f"{snippet.page}:{snippet.line}: a console begins with a command"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        output = "\n".join(lines[start + 1 : end])
        yield snippet.line + start, lines[start].removeprefix(PROMPT), output


def require_output(place: str, expected: str, actual: str) -> None:
    """Raises unless each line of ``expected`` is what was printed; ``...`` stands for anything."""
    pattern = "".join(
        r".*" if part == "..." else re.escape(part)
        for part in re.split(r"(\.\.\.)", expected.strip())
    )
    shown = "\n".join(line.rstrip() for line in actual.strip().splitlines())
    assert re.fullmatch(pattern, shown, re.DOTALL), f"{place}: not {expected!r}, but {shown!r}"


@contextmanager
def reader(environment: dict[str, str], folder: Path) -> Iterator[Reader]:
    """Provides a reader in ``folder``, and end what it started."""
    with ExitStack() as stack:
        made = Reader(folder, environment)
        stack.callback(made.close)
        yield made
