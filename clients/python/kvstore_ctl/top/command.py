"""kvstore-ctl top: the current activity of a store, by namespace and by lease."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from threading import Event
from typing import Annotated, NamedTuple

import typer
from rich.live import Live

from kvstore_client.admin import Admin
from kvstore_client.errors import StoreError
from kvstore_ctl.console import (
    AsJson,
    RuntimeDirOption,
    StoreConnection,
    connected,
    show,
    store_failures,
)
from kvstore_ctl.top.frame import SORTS, Screen, plain_frame, rendered
from kvstore_ctl.top.rates import change_between
from kvstore_ctl.top.terminal_keys import keys

NAMES = ", ".join(SORTS)
LEAST_INTERVAL = 0.05
MOST_INTERVAL = 86_400.0


class _Display(NamedTuple):
    """The settings of a display: interval, number of frames (0: no end), sorting and rows."""

    interval: float
    frames: int
    sort: str
    rows: int


def top(  # each is an option
    *,
    interval: Annotated[
        float,
        typer.Option(min=LEAST_INTERVAL, max=MOST_INTERVAL, help="Seconds between two frames."),
    ] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="Number of frames. 0: until Ctrl-C or q.")] = 0,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="The same as --count 1.")
    ] = False,
    sort: Annotated[str, typer.Option(help=f"Sort rows by: {NAMES}.")] = "tokens",
    rows: Annotated[
        int, typer.Option(min=1, help="Largest number of namespaces, and of leases.")
    ] = 15,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows the store's current activity: hit rate, saved tokens, tiers, namespaces and leases.

    Each frame shows the change between two snapshots, by the store's own uptime. On a terminal
    the frame stays in place, also while a store restarts: q quits, s sorts by the next column.
    Elsewhere, and with --json, frames follow each other; JSON has one value a line.
    """
    if sort not in SORTS:
        raise typer.BadParameter(f"one of {NAMES}, not {sort!r}", param_hint="--sort")
    display = _Display(interval, 1 if once else count, sort, rows)
    try:
        if sys.stdout.isatty() and not as_json:
            with store_failures(), closing(StoreConnection(runtime_dir)) as store:
                _live(store, display)
        else:
            with connected(runtime_dir) as admin:
                _printed(admin, display, _print_json if as_json else _print_text)
    except KeyboardInterrupt:
        return


def _printed(admin: Admin, display: _Display, print_frame: Callable[[Screen], None]) -> None:
    never = Event()
    before, shown = admin.stats(), 0
    while not display.frames or shown < display.frames:
        never.wait(display.interval)
        after = admin.stats()
        print_frame(Screen(after, change_between(before, after), display.sort, display.rows))
        before, shown = after, shown + 1


def _live(store: StoreConnection, display: _Display) -> None:
    """Shows frames in place. A key acts at once, and the next snapshot comes an interval later.

    Raises ``StoreError`` if the first call fails. Later failures are shown, and retried.
    """
    sorts = list(SORTS)
    before, shown, trouble = store.ask(Admin.stats), 0, ""
    frame = Screen(before, change_between(before, before), display.sort, display.rows)
    # A bounded number of frames stays on the terminal, to be read afterwards.
    with keys() as wait_for_key, Live(auto_refresh=False, screen=not display.frames) as screen:
        while not display.frames or shown < display.frames:
            key = wait_for_key(display.interval)
            if key == "q":
                return
            if key == "s":
                following = sorts[(sorts.index(frame.sort) + 1) % len(sorts)]
                frame = frame._replace(sort=following)
            elif not key:
                try:
                    after = store.ask(Admin.stats)
                except StoreError as error:
                    trouble = f"no answer, trying again: {error}"
                else:
                    frame = frame._replace(stats=after, change=change_between(before, after))
                    before, shown, trouble = after, shown + 1, ""
            width = screen.console.width
            # The last frame stays on the terminal, so it does not name the keys.
            more = not display.frames or shown < display.frames
            shown_now = rendered(frame, width=width, trouble=trouble, keys=more)
            screen.update(shown_now, refresh=True)


def _print_json(frame: Screen) -> None:
    typer.echo(json.dumps(plain_frame(frame)))


def _print_text(frame: Screen) -> None:
    show(rendered(frame))
    typer.echo()
