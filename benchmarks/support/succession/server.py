"""kvstore-server for outlive.py: it waits at checkpoints, and may have a fault put into it."""

from pathlib import Path
from typing import Any

from kvstore import server
from kvstore.holder.holder_client import HolderClient
from kvstore.holder.holder_process import Former
from support.child import die_with_parent
from support.succession.checkpoints import OWNED, RECOVERED, wait_at
from support.succession.mutants import MUTANTS


def main(checkpoints: str, mutant: str, parent: int) -> int:
    """Runs the server with the command line of this process; ``mutant`` may be empty."""
    die_with_parent(parent)
    path = Path(checkpoints)
    own, start = HolderClient.own, server.start

    def owned(self: HolderClient, instance: int, *, wait_seconds: float = 0.0) -> Former:
        former = own(self, instance, wait_seconds=wait_seconds)
        wait_at(path, OWNED)
        return former

    def started(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  # as the function's
        wait_at(path, RECOVERED)
        return start(*arguments, **named)

    HolderClient.own = owned  # type: ignore[method-assign]
    server.start = started
    change = MUTANTS[mutant].in_server if mutant else None
    if change is not None:
        change()
    return server.run()
