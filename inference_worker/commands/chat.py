"""``kvstore-worker chat``."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Annotated

import typer
from rich.console import Console

from inference_worker.chat.chat import ANSWER_TOKENS, Chat
from inference_worker.chat.repl import COMMANDS, ChatRepl
from inference_worker.commands.options import (
    Backend,
    Device,
    Dtype,
    Json,
    Longest,
    MaxTokens,
    Model,
    PageTokens,
    Seed,
    StoreDir,
    Temperature,
    Threads,
    TopK,
    TopP,
    end_on_sigterm,
    sampling_options,
    told_failures,
)
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.local_worker import local_worker
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.names import CPU, GEMMA
from inference_worker.store.backend import PrefixCacheBackend, store_arguments
from kvstore_client.testing import running_store


def chat(  # noqa: PLR0913 - each is an option
    *,
    model: Model = GEMMA,
    runtime_dir: StoreDir = None,
    prefix_cache_backend: Backend = None,
    start_store: Annotated[
        bool,
        typer.Option(
            "--start-store", metavar="", help="Run a store of its own until the chat ends."
        ),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", metavar="", help="Time each first token without the cache too."),
    ] = False,
    max_tokens: MaxTokens = ANSWER_TOKENS,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = None,
    page_tokens: PageTokens = PAGE_TOKENS,
    longest: Longest = None,
    threads: Threads = None,
    device: Device = CPU,
    dtype: Dtype = None,
    json_lines: Json = False,
) -> None:
    """Chats with a model; each answer is followed by its reused tokens and times.

    Each line is a turn, from a terminal or a pipe. /new begins another chat, /quit ends, /help
    lists these. On a terminal Ctrl-C stops an answer, and at the prompt the chat.
    Without a store the chat works too, and attaches once a store starts.
    """
    end_on_sigterm()
    console, notes = Console(soft_wrap=True), Console(stderr=True)
    with told_failures(notes), ExitStack() as stack:
        sampling = sampling_options(temperature, top_p, top_k, seed)
        use_threads(threads_for(model, threads))
        if start_store and prefix_cache_backend is not PrefixCacheBackend.NONE:
            arguments = store_arguments(prefix_cache_backend)
            runtime_dir = stack.enter_context(running_store(*arguments)).runtime_dir
        worker = stack.enter_context(
            local_worker(
                model,
                backend=prefix_cache_backend,
                runtime_dir=runtime_dir,
                name="chat",
                page_tokens=page_tokens,
                longest=longest,
                device=device,
                dtype=dtype,
            )
        )
        if worker.without_store is not None:
            notes.print(worker.without_store, markup=False, highlight=False)
        talk = Chat(
            worker.engine,
            worker.model,
            sampling=sampling,
            answer_tokens=max_tokens,
            compare=compare,
        )
        interactive = sys.stdin.isatty()
        repl = ChatRepl(
            talk,
            console,
            as_json=json_lines,
            interactive=interactive,
            told_without_store=worker.without_store is not None,
        )
        if interactive:
            notes.print(f"{COMMANDS}; Ctrl-C stops an answer.", highlight=False)
            with suppress(KeyboardInterrupt):
                repl.run(_typed(notes))
        else:
            repl.run(sys.stdin)


def _typed(console: Console) -> Iterator[str]:
    """Yields lines from a terminal until its end."""
    with suppress(EOFError):
        while True:
            yield console.input("[bold]> [/bold]")
