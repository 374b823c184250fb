"""What a client is told: names and times, each with its meaning and its reason."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

# The longest deadline that a store allows; its tombstones live longer than that.
MAX_CALL_TIMEOUT = 60.0


# Where a control daemon of CUDA MPS has its pipes unless the environment says otherwise.
DEFAULT_MPS_PIPES = Path("/tmp/nvidia-mps")  # noqa: S108  # NVIDIA's choice


def declared_cuda_mps(default_pipes: Path = DEFAULT_MPS_PIPES) -> bool:
    """Returns whether CUDA makes this process a client of MPS, or may yet.

    CUDA decides as it is initialised: it connects to a control daemon by the pipes
    in ``$CUDA_MPS_PIPE_DIRECTORY``, else in ``default_pipes``, and goes without
    where none answers. Nothing tells afterwards, so this says yes when in doubt:
    where the variable is set, whether a daemon runs already or not, and where the
    default folder has a ``control`` pipe, which a daemon that was killed leaves
    behind. A daemon that starts in the default folder later is not seen.
    """
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        return True
    return (default_pipes / "control").exists()


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings of one client; all times in seconds.

    Raises ``ValueError`` for a time that is not positive, or out of order.
    """

    display_name: str = ""
    """A name for people: lists of leases, logs."""

    ttl: float = 10.0
    """Time to live asked for the lease; the store decides.

    After it without a renewal the client stops using the store. Longer than any
    pause of the process that should not cost it its place (a collection, a
    large kernel compilation); shorter means that a hung worker is seen sooner.
    """

    call_timeout: float = 1.0
    """Deadline of every call on the request path, after which it is a miss.

    The most that a store that hangs can add to one request, once: afterwards it
    is not asked until it answers what is asked in the background. Far above what a
    call takes (under a millisecond) and below what a user of a model would call slow.
    """

    request_budget: float | None = None
    """Longest time that all calls of one request may take together.

    Once it is spent the request goes on without the store. Absent: as much as
    ``call_timeout``, so that a store that hangs or is slow adds that to a request,
    however many calls it makes. Longer where outputs have tens of thousands of
    tokens: a store that is well takes about 5 ms of it for 64 tokens of output.
    """

    longest_open: float = 30.0
    """Longest time without requests to a store that is too slow for them again and again.

    While it answers what is asked in the background, requests are tried after one
    ``call_timeout``, then after twice that, and so on up to this: one of them may wait
    for its deadline each time.
    """

    connect_timeout: float = 5.0
    """Longest time for one attempt to attach, in the background.

    Attaching maps memory that the store may have to allocate first.
    """

    first_backoff: float = 0.05
    """Wait after the first failed attempt; doubled by each one after it."""

    longest_backoff: float = 1.0
    """Longest wait between attempts: how long a store that is back goes unused."""

    close_timeout: float = 2.0
    """Longest wait of ``close()`` for open holds to end, then again for the store.

    What was not released by then goes back when this process ends.
    """

    wait_for_device: Callable[[], None] | None = None
    """Waits until the device work on the caller's pages completed, or raises.

    The client calls it on the caller's thread before an insert and before a release, and on a
    thread of its own before it unmaps memory of a device. So it must name its streams itself:
    ``torch.cuda.current_stream().synchronize``, read on the thread whose stream does all the
    work. None: the client waits for all work of this process on the devices whose pages are
    mapped, and host pages are only touched by code that has returned by then. CUDA refuses
    that wait while any stream of the process captures a graph, and the capture fails. An
    engine with CUDA graphs must set its own wait, for events or streams without a capture.
    If it raises, nothing is inserted or released.
    """

    page_checksums: bool | None = None
    """Whether an insert tells the store what its pages' bytes come to.

    The store reads some pages before it hands them out, and by that finds those that
    somebody wrote over. Absent: of pages in host memory, which takes a worker 0.6 ms for
    128 pages of 64 KiB, 7 ms for as many of 1 MiB; not of a device's, which would be
    copied to the host for it. True: of all. False: of none.
    """

    hot_lane: bool = True
    """Whether the calls of the request path go over the attach socket, where the store offers it.

    The same calls with the same answers, in a third of the time or half of it. What cannot go
    there goes over gRPC: where the store is older, where more than four threads call at
    the same time, after a lane broke.
    """

    cuda_mps: bool = field(default_factory=declared_cuda_mps)
    """Declares a client of CUDA MPS, which a store refuses.

    As :func:`declared_cuda_mps` finds it. To say False of a process that CUDA
    makes a client of MPS is to let pages be recycled under its device work: the
    end of such a process is not the end of that.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            is_time = isinstance(value, float | int) and not isinstance(value, bool)
            if is_time and not value > 0:
                msg = f"{each.name} has to be positive, not {value}"
                raise ValueError(msg)
        if self.call_timeout > MAX_CALL_TIMEOUT:
            msg = f"call_timeout is at most {MAX_CALL_TIMEOUT}, not {self.call_timeout}"
            raise ValueError(msg)
        if self.first_backoff > self.longest_backoff:
            msg = f"first_backoff {self.first_backoff} is over longest_backoff"
            raise ValueError(msg)
