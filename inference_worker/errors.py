"""The worker's own errors.

::

    WorkerError
    ├── UnsupportedModelError       the model's keys and values do not fit a page pool
    │   └── SelfCheckError          they fit, but the logits differ from the plain forward's
    ├── LayoutMismatchError         an extent's tensor is not what the page layout says
    ├── UnknownExtentError          a page names an extent that is not mapped here
    ├── ArenaExhaustedError         the private arena has too few slots left
    ├── RequestTooLongError         prompt and output exceed what the engine was made for
    ├── BadRequestError             what no engine of this model can continue (a ValueError)
    │   ├── BadPromptError          a prompt without tokens, or with an id that the model lacks
    │   ├── BadLengthError          no token to give
    │   └── BadSaltError            a salt that is no Unicode
    ├── EngineBusyError             as many requests wait as may
    ├── EngineGoneError             the engine ended, or is about to
    ├── ProcessEndedError           a process that was to answer a line ended
    ├── ContinuationError           a request whose process died comes out otherwise elsewhere
    ├── StoreOptionsError           options about the store that contradict each other
    └── BackendMismatchError        the store finds prefixes by another index than was asked for

    DeviceLostError                 the process has to end (a BaseException)
"""

from typing import ClassVar, Final

# EX_IOERR of sysexits.h. Only a process that lost its device ends with it.
DEVICE_LOST_STATUS: Final = 74


class DeviceLostError(BaseException):
    """The device has failed for good in this process, which has to end.

    CUDA repeats an error such as an illegal address or an ECC error at every later call of the
    process. The process then cannot wait for its kernels, so it cannot give pages back: the store
    takes its pins back once it is dead. Raised from the error of CUDA. Like ``SystemExit`` it is no
    ``Exception``, so that no handler of one request's errors catches it.
    """


class WorkerError(Exception):
    """Any failure that the reference engine itself reports."""


class UnsupportedModelError(WorkerError):
    """The model cannot be served from a page pool; ``reason`` says why in one sentence."""

    def __init__(self, model_type: str, reason: str) -> None:
        """Keeps the model's type and the reason for whoever prints it."""
        super().__init__(f"model type {model_type!r} cannot be served from pages: {reason}")
        self.model_type = model_type
        self.reason = reason


class SelfCheckError(UnsupportedModelError):
    """At load the paged forward gave other logits than the model's plain forward."""


class LayoutMismatchError(WorkerError):
    """A tensor offered as an extent, or keys and values to write, do not fit the layout."""


class UnknownExtentError(WorkerError):
    """A block table names an extent that the page pool does not have (any more)."""

    def __init__(self, extent: int) -> None:
        """Keeps the extent's key."""
        super().__init__(f"extent {extent} is not mapped in this page pool")
        self.extent = extent


class ArenaExhaustedError(WorkerError):
    """The private arena has fewer unused slots than were asked for; nothing was allocated."""

    def __init__(self, wanted: int, left: int) -> None:
        """Keeps both numbers of slots."""
        super().__init__(f"{wanted} slots wanted in the private arena, {left} left")
        self.wanted = wanted
        self.left = left


class RequestTooLongError(WorkerError):
    """Prompt and output together are longer than the engine's longest sequence."""

    def __init__(self, prompt: int, output: int, longest: int) -> None:
        """Keeps the numbers of tokens: of the prompt, of what may follow, and of the engine."""
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
    """A request that makes no sense to an engine, which took nothing of it.

    ``param`` is the field of a request over HTTP that it is about.
    """

    param: ClassVar[str]


class BadPromptError(BadRequestError):
    """A prompt without tokens, or with an id that the model does not have."""

    param = "prompt"


class BadLengthError(BadRequestError):
    """Fewer than one token to give."""

    param = "max_tokens"


class BadSaltError(BadRequestError):
    """A salt that cannot be written as UTF-8."""

    param = "cache_salt"


class EngineBusyError(WorkerError):
    """As many requests wait for the engine as may; another may be taken a moment later."""


class EngineGoneError(WorkerError):
    """The engine ended, or takes no more requests because it is about to."""


class ProcessEndedError(WorkerError):
    """A process that was to answer a line of JSON ended instead."""

    def __init__(self, name: str, status: int) -> None:
        """Keeps the process's name and its exit status (negative: a signal)."""
        super().__init__(f"{name} ended with status {status}")
        self.name = name
        self.status = status


class BackendMismatchError(WorkerError):
    """The store was started with another index than this worker was told."""

    def __init__(self, wanted: str, found: str) -> None:
        """Keeps both names."""
        super().__init__(
            f"--prefix-cache-backend is {wanted}, and the store was started with {found}: leave it "
            f"out to take what the store has, or restart kvstore-server with {wanted}"
        )
        self.wanted = wanted
        self.found = found


class ContinuationError(WorkerError):
    """Another process draws other tokens for a request than the one that died under it."""

    def __init__(self, given: int) -> None:
        """Keeps how many tokens were given before."""
        super().__init__(
            f"the engine process ended after {given} tokens, and another one draws others from the "
            "same seed: the request cannot go on"
        )
        self.given = given


class StoreOptionsError(WorkerError):
    """Options about the store contradict each other."""
