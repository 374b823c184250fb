"""``kvstore-worker generate``."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from inference_worker.commands.options import (
    Backend,
    Deterministic,
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
from inference_worker.engine.local_worker import LocalWorker, local_worker
from inference_worker.engine.request import SamplingOptions
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.names import CPU, GEMMA
from inference_worker.model.text import TextStream, terminal_text

OUTPUT_TOKENS = 64


def generate(  # noqa: PLR0913 - each is an option
    prompt: Annotated[str | None, typer.Argument(help="Default: all of standard input.")] = None,
    *,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    model: Model = GEMMA,
    runtime_dir: StoreDir = None,
    prefix_cache_backend: Backend = None,
    max_tokens: MaxTokens = OUTPUT_TOKENS,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    seed: Seed = None,
    page_tokens: PageTokens = PAGE_TOKENS,
    longest: Longest = None,
    threads: Threads = None,
    device: Device = CPU,
    dtype: Dtype = None,
    deterministic: Deterministic = False,
    as_json: Json = False,
) -> None:
    """Continues one prompt and prints the text; --json adds the reused tokens and times.

    The prompt is used as it is, without a chat format.
    """
    end_on_sigterm()
    notes = Console(stderr=True)
    with told_failures(notes):
        if file is not None:
            prompt = file.read_text(encoding="utf-8")
        elif prompt is None:
            prompt = sys.stdin.read().removesuffix("\n")
        if not prompt:
            raise typer.BadParameter("the prompt is empty")
        sampling = sampling_options(temperature, top_p, top_k, seed)
        use_threads(threads_for(model, threads))
        with local_worker(
            model,
            backend=prefix_cache_backend,
            runtime_dir=runtime_dir,
            name="generate",
            page_tokens=page_tokens,
            longest=longest,
            device=device,
            dtype=dtype,
            deterministic=deterministic,
        ) as worker:
            if worker.without_store is not None:
                notes.print(worker.without_store, markup=False, highlight=False)
            _print(worker, prompt, max_tokens, sampling, as_json=as_json)


def _print(
    worker: LocalWorker, prompt: str, max_tokens: int, sampling: SamplingOptions, *, as_json: bool
) -> None:
    """Prints a prompt's continuation as it comes, or complete as JSON."""
    tokenizer = worker.model.tokenizer
    pieces: list[str] = []

    def put(text: str) -> None:
        pieces.append(text)
        if not as_json:
            sys.stdout.write(terminal_text(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()

    stream = TextStream(tokenizer, put)
    found = worker.engine.generate(
        [*tokenizer.begin_ids, *tokenizer.encode(prompt)],
        max_tokens,
        sampling=sampling,
        stop_ids=worker.model.end_ids,
        on_token=stream.add,
    )
    stream.end()
    whole = json.dumps({"text": "".join(pieces), **found.plain()}) if as_json else ""
    sys.stdout.write(f"{whole}\n")
