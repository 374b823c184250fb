"""kvstore-ctl health: the health of a store, for supervisors."""

from typing import Annotated

import grpc
import typer

from kvstore_client.calls.health import LIVENESS, READINESS, SERVING, health_of
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_ctl.console import (
    ADVICE,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    AsJson,
    RuntimeDirOption,
    show_json,
)
from kvstore_ctl.store_options import remote_of

MOST_SECONDS = 3_600.0
# The answers of a store that can be reached.
ANSWERS = (SERVING, "NOT_SERVING")


def health(
    *,
    live: Annotated[
        bool,
        typer.Option(
            "--live", metavar="", help="Check liveness instead of readiness for new work."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=MOST_SECONDS, help="Seconds to wait for an answer.")
    ] = 2.0,
    runtime_dir: RuntimeDirOption = None,
    as_json: AsJson = False,
) -> None:
    """Shows the store's health. Exit status: 0 it serves, 1 it does not, 3 it does not answer.

    A draining store is live, but not ready for new work. A supervisor replaces a store that is
    not live.
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
    typer.echo(f"kvstore-ctl: no answer from {where} within {timeout:g} s\n{ADVICE}", err=True)
    raise typer.Exit(EXIT_UNREACHABLE)
