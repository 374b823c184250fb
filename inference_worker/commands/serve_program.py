"""``kvstore-worker serve`` alone: a serving process needs no torch, which the others load."""

import typer

# Imported here, so that a missing starlette or uvicorn is reported before the command runs.
import inference_worker.fleet.server  # noqa: F401
from inference_worker.commands.serve import serve

app = typer.Typer(name="kvstore-worker", add_completion=False)
app.command()(serve)


@app.callback()
def program() -> None:
    """Have the command keep its name."""
