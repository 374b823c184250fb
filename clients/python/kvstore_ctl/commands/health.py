"""The command of kvstore-ctl that says how a store is."""

from typing import Annotated

import grpc
import typer

from kvstore_client.calls.health import LIVENESS, READINESS, SERVING, health_of
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_ctl.console import (
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    AsJson,
    RuntimeDirOption,
    show_json,
)
from kvstore_ctl.options import remote_of

MOST_SECONDS = 3_600.0
# What a store says that can be asked.
ANSWERS = (SERVING, "NOT_SERVING")


def health(
    *,
    live: Annotated[
        bool,
        typer.Option(
            "--live", metavar="", help="Ask whether it lives, not whether it takes new work."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=MOST_SECONDS, help="Seconds to wait for an answer.")
    ] = 2.0,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Says how the store is: status 0 if it serves, 1 if it says no, 3 if it says nothing.

    While it drains it lives and takes no new work. A supervisor replaces a store
    that does not live.
    """
    asked = LIVENESS if live else READINESS
    try:
        remote = remote_of()
        target = RuntimeDir(runtime_dir).grpc_target
        opened = grpc.insecure_channel(target) if remote is None else remote.channel()
    except ValueError as error:
        typer.echo(f"kvstore-ctl: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    with opened as channel:
        answer = health_of(channel, asked, timeout=timeout)
    where = target if remote is None else remote.address
    if as_json:
        show_json({asked: answer})
    else:
        typer.echo(f"{asked}: {answer}")
    if answer == SERVING:
        return
    if answer in ANSWERS:
        raise typer.Exit(EXIT_REFUSED)
    typer.echo(f"kvstore-ctl: nothing is heard from {where} within {timeout:g} s", err=True)
    raise typer.Exit(EXIT_UNREACHABLE)
