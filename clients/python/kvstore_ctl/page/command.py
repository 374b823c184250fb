"""kvstore-ctl page: a web page of a store, on loopback."""

import time
from contextlib import closing
from typing import Annotated

import typer

from kvstore_ctl.console import RuntimeDirOption, StoreConnection, store_failures


def page(
    *,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Loopback address of the page. Port 0: any that is free."
        ),
    ] = "127.0.0.1:7402",
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            metavar="",
            help="Show the first token ids of each prefix: they are content.",
        ),
    ] = False,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Serves a web page that shows the store, until Ctrl-C.

    It is read-only, and shows what this user may see: an admin sees all tenants. Every user of
    this host can open it.
    """
    # Other commands start sooner without a web server.
    from kvstore_ctl.page import page_server  # noqa: PLC0415
    from kvstore_ctl.page.store_feed import Feed  # noqa: PLC0415

    with (
        store_failures(),
        closing(StoreConnection(runtime_dir)) as store,
        closing(page_server.listen(listen)) as listener,
    ):
        feed = Feed(store, time.monotonic, shows_tokens=tokens)
        page_server.serve(feed, listener, lambda address: typer.echo(f"The page is at {address}"))
