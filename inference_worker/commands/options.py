"""Options that the commands of ``kvstore-worker`` share, and how a command ends."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

import kvstore_client
from inference_worker.engine.request import SamplingOptions
from inference_worker.errors import RequestTooLongError, StoreOptionsError, WorkerError
from inference_worker.model.names import DtypeName
from inference_worker.store.backend import PrefixCacheBackend

Model = Annotated[
    str,
    typer.Option(
        help="gemma, tiny (tiny-qwen3), tiny-llama, tiny-gemma3, or a transformers model folder"
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads of each process; default: one for a tiny model, else its share of cores.",
    ),
]
StoreDir = Annotated[
    Path | None,
    typer.Option("--runtime-dir", "--store", help="The store's folder. Default: the server's."),
]
Backend = Annotated[
    PrefixCacheBackend | None,
    typer.Option(
        "--prefix-cache-backend",
        help="The index that the store must have, checked at the start; none: use no store. "
        "Default: any.",
    ),
]
PageTokens = Annotated[int, typer.Option(help="Tokens in a page.", min=1)]
Longest = Annotated[
    int | None,
    typer.Option(
        help="Longest sequence in tokens; the engine keeps private memory for one. Default: the "
        "model's. On a GPU the default is bounded: its memory is at most 4 GiB, and at most a "
        "sixteenth of the GPU's.",
        min=1,
    ),
]
Device = Annotated[str, typer.Option(help="cpu, or cuda:N, the --device of the store.")]
Dtype = Annotated[
    DtypeName | None,
    typer.Option(
        metavar="DTYPE",
        help="bfloat16, float16 or float32, of weights, keys and values; default: float32 on a "
        "CPU, else bfloat16.",
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        metavar="",
        help="The same bits in any batch; slower, and with pages of its own.",
    ),
]
MaxTokens = Annotated[int, typer.Option(help="Largest number of tokens of an answer.", min=1)]
Temperature = Annotated[float, typer.Option(help="Sampling temperature. 0: always the best token.")]
TopP = Annotated[
    float, typer.Option(help="Draw from the best tokens whose probabilities add up to this.")
]
TopK = Annotated[int, typer.Option(help="Draw from this many of the best tokens. 0: all.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON on standard output.")]


@contextmanager
def told_failures(console: Console) -> Iterator[None]:
    """Ends the program with one line, without a traceback, for an expected error.

    The status is 2 if other options would help, otherwise 1.
    """
    try:
        yield
    except (
        WorkerError,
        kvstore_client.errors.StoreError,
        OSError,
        ValueError,
    ) as error:
        console.print(str(error), markup=False, highlight=False)
        raise typer.Exit(
            2 if isinstance(error, RequestTooLongError | StoreOptionsError) else 1
        ) from None


def sampling_options(
    temperature: float, top_p: float, top_k: int, seed: int | None
) -> SamplingOptions:
    """Returns a request's sampling; raises ``typer.BadParameter``, status 2."""
    try:
        return SamplingOptions(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def end_on_sigterm() -> None:
    """Makes SIGTERM raise ``SystemExit``, so that started processes are ended too."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
