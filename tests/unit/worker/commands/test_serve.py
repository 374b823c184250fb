"""The options of ``kvstore-worker serve``, and what it refuses."""

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from inference_worker.commands.serve import app
from inference_worker.errors import StoreOptionsError
from inference_worker.fleet.server import unless_signalled
from inference_worker.model.names import GEMMA
from inference_worker.store.backend import PrefixCacheBackend
from inference_worker.store.own_store import StoreOptions

PAGE = Path(__file__).parents[4] / "docs" / "serving.md"
ROW = re.compile(r"^\| `(--[a-z-]+)` \| (.*?) \| .* \|$", flags=re.MULTILINE)


def options() -> dict[str, str]:
    """Returns each option's longest name and its default, as the page writes them."""
    group: Any = typer.main.get_command(app)
    found = {}
    for each in group.commands["serve"].params:
        default = each.default
        shown = "" if default is None or default is False else f"`{default}`"
        found[next(name for name in each.opts if name.startswith("--"))] = shown
    return found


def test_the_page_has_each_option_and_its_default() -> None:
    """docs/serving.md and --help agree."""
    page = dict(ROW.findall(PAGE.read_text(encoding="utf-8").split("## Settings")[1]))
    assert page == options()


def test_the_default_model_is_that_of_the_others() -> None:
    """The default model's name is known without torch, and it is that of the other commands."""
    assert options()["--model"] == f"`{GEMMA}`"


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (False, StoreOptions()),
        (True, StoreOptions(runtime_dir=Path("/run/store"))),
        (True, StoreOptions(start=True)),
        (False, StoreOptions(runtime_dir=Path("/run/store"), max_pages=0)),
        (False, StoreOptions(backend=PrefixCacheBackend.NONE, start=True)),
    ],
)
def test_a_store_that_was_named_is_waited_for(asked: bool, options: StoreOptions) -> None:  # noqa: FBT001
    """The program waits for a store that was named. Without a name it serves at once."""
    assert options.asked is asked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prefix-cache-max-pages", "5"), "kvstore-server --tier1-bytes"),
        (
            ("--prefix-cache-max-pages", "5", "--prefix-cache-backend", "none", "--start-store"),
            "leave one of them out",
        ),
        (("--workers", "0"), "--workers"),
        (("--prefix-cache-backend", "tree"), "--prefix-cache-backend"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments: tuple[str, ...], said: str) -> None:
    """Contradictory options are refused before anything starts, with the status of usage errors."""
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["serve", "--model", "tiny", *arguments])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_cap_of_no_pages_is_no_store() -> None:
    """Neither a cap of 0 pages nor the backend none uses a store; another cap needs its own."""
    assert StoreOptions().used
    assert not StoreOptions(max_pages=0).used
    assert not StoreOptions(backend=PrefixCacheBackend.NONE, start=True).used
    assert StoreOptions(max_pages=3, start=True).used
    with pytest.raises(StoreOptionsError):
        StoreOptions(max_pages=3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_ends_by_a_signal(number: signal.Signals) -> None:
    """A signal ends a start too, and what was begun is undone."""
    undone = []

    async def start() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            undone.append(number)

    with pytest.raises(typer.Exit) as raised:
        asyncio.run(unless_signalled(start()))
    assert raised.value.exit_code == 128 + number
    assert undone == [number]
