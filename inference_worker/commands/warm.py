"""``kvstore-worker warm``."""

import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from inference_worker.chat.format import chat_format
from inference_worker.commands.local_worker import ATTACH_SECONDS, local_worker
from inference_worker.commands.options import (
    Backend,
    Deterministic,
    Device,
    Dtype,
    Json,
    Longest,
    Model,
    PageTokens,
    StoreDir,
    Threads,
    end_on_sigterm,
    told_failures,
)
from inference_worker.commands.warm_prompts import read_prompts
from inference_worker.commands.warming import Warmed, Warmer
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.http.api_keys import salt_of
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.names import CPU
from inference_worker.model.source import GEMMA
from kvstore_ctl.values import STDIN, span_of

PIN_PREFIX = "warm/"
# Where no terminal says how wide it is.
TABLE_WIDTH = 120


def warm(  # noqa: PLR0913 - each is an option
    file: Annotated[str, typer.Argument(help="JSON lines, or - for standard input.")],
    *,
    model: Model = GEMMA,
    runtime_dir: StoreDir = None,
    ttl: Annotated[
        str | None,
        typer.Option(help="How long pins live, such as 90s, 10m or 7d; default: until unpinned."),
    ] = None,
    pin_prefix: Annotated[str, typer.Option(help="Before each pin's name.")] = PIN_PREFIX,
    cache_salt: Annotated[
        str, typer.Option(help="Of the requests that are to find it; default: those without.")
    ] = "",
    user: Annotated[
        str | None, typer.Option(help="Whose requests, by the name of an API key of the server.")
    ] = None,
    prefix_cache_backend: Backend = None,
    page_tokens: PageTokens = PAGE_TOKENS,
    longest: Longest = None,
    threads: Threads = None,
    device: Device = CPU,
    dtype: Dtype = None,
    deterministic: Deterministic = False,
    as_json: Json = False,
) -> None:
    """Computes prompts and pin them at the store, so that the first who asks finds them cached.

    Each line of FILE is {"prompt": text}, {"messages": [...]} or {"prompt_ids": [...]}, and may
    have a "name" for its pin. Messages are rendered as by the HTTP server; where the last is not
    a user's, up to where the user's words begin. Again, it computes what is not cached any more
    and renews the pins. Exits 1 where a prompt could not be pinned, and says why.
    """
    end_on_sigterm()
    notes = Console(stderr=True)
    with told_failures(notes), ExitStack() as stack:
        seconds = None if ttl is None else span_of(ttl)
        text = sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
        use_threads(threads_for(model, threads))
        worker = stack.enter_context(
            local_worker(
                model,
                backend=prefix_cache_backend,
                runtime_dir=runtime_dir,
                name="warm",
                page_tokens=page_tokens,
                longest=longest,
                attach_seconds=ATTACH_SECONDS,
                device=device,
                dtype=dtype,
                deterministic=deterministic,
                cache_salt=salt_of(user, cache_salt),
            )
        )
        if worker.client is None or worker.namespace is None or worker.without_store is not None:
            raise ValueError(f"nothing can be pinned: {worker.without_store}")
        tokenizer = worker.model.tokenizer
        written = chat_format(tokenizer, worker.model.end_ids)
        prompts = read_prompts(text.splitlines(), tokenizer, written.message_ids, pin_prefix)
        warmer = Warmer(worker, worker.client.admin, worker.namespace.namespace_id, page_tokens)
        found = [warmer.warm(each, ttl=seconds) for each in prompts]
    _show(found, as_json=as_json)
    raise typer.Exit(1 if any(each.failure for each in found) else 0)


def _show(found: Iterable[Warmed], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"prompts": [asdict(each) for each in found]}) + "\n")
        return
    table = Table(box=SIMPLE_HEAD)
    for name in ("pin", "tokens", "computed", "pinned", "seconds", ""):
        table.add_column(name, justify="left" if name in {"pin", ""} else "right")
    for each in found:
        numbers = (each.tokens, each.computed_tokens, each.pinned_tokens)
        table.add_row(each.name, *map(str, numbers), f"{each.seconds:.2f}", each.failure or "")
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    console.print(table)
