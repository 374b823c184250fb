"""The settings of a client: names and times, each with its meaning and its reason."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

# The longest deadline that a store allows. Its tombstones live longer than that.
MAX_CALL_TIMEOUT = 60.0


# The default folder of the pipes of CUDA MPS's control daemon.
DEFAULT_MPS_PIPES = Path("/tmp/nvidia-mps")  # noqa: S108  # NVIDIA's choice


def declared_cuda_mps(default_pipes: Path = DEFAULT_MPS_PIPES) -> bool:
    """Returns whether CUDA makes this process a client of MPS, or may still do so.

    CUDA decides when it is initialised. It connects to a control daemon by the pipes in
    ``$CUDA_MPS_PIPE_DIRECTORY``, else in ``default_pipes``, and continues without MPS if no
    daemon answers. A process cannot find out afterwards, so this returns True in doubt. It does so
    if the variable is set, with or without a daemon. It also does so if the default folder has a
    ``control`` pipe, which a killed daemon leaves behind. It does not see a daemon that starts in
    the default folder later.
    """
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        return True
    return (default_pipes / "control").exists()


@dataclass(frozen=True, kw_only=True)
class ContiguousMemory:
    """Options of :attr:`ClientConfig.contiguous_memory`.

    Raises ``ValueError`` if ``reserved_bytes`` is below one.
    """

    reserved_bytes: int | None = None
    """Bytes of addresses to reserve for each arena, which cost no memory.

    None: four times the machine's memory, and at least 1 TiB. An extent beyond them is not
    mapped, so the store grants this client no slots in it.
    """

    def __post_init__(self) -> None:
        if self.reserved_bytes is not None and self.reserved_bytes < 1:
            raise ValueError(f"reserved_bytes is {self.reserved_bytes}: set at least 1")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Settings of one client; all times in seconds.

    Raises ``ValueError`` for a time that is not positive or contradicts another.
    """

    display_name: str = ""
    """A name for people, in lists of leases and in logs."""

    ttl: float = 10.0
    """Time to live that the client asks for its lease. The store decides.

    The client stops using the store after this time without a renewal. Set it longer than any
    pause that should not cost the process its lease, such as a garbage collection or the
    compilation of a large kernel. A shorter time detects a hung worker sooner.
    """

    call_timeout: float = 1.0
    """Deadline of every call on the request path. After it the call is a miss.

    A store that hangs can add this to one request, once: then the client sends no requests
    until the store answers a background probe. A call takes less than a millisecond; a
    user of a model calls more than a second slow.
    """

    request_budget: float | None = None
    """Longest time that all calls of one request may take together.

    Afterwards the request continues without the store. Default: ``call_timeout``, so a slow
    store adds that much to a request, however many calls it makes. Set it longer if
    outputs have tens of thousands of tokens: a healthy store takes about 5 ms of it for 64
    tokens of output.
    """

    longest_open: float = 30.0
    """Longest time without requests to a store that is repeatedly too slow for them.

    While the store answers background probes, the client tries one request after
    ``call_timeout``, then after twice that, and so on up to this. Each such request may wait
    for its deadline.
    """

    connect_timeout: float = 5.0
    """Longest time for one attempt to attach, in the background.

    Attaching maps memory, which the store may have to allocate first.
    """

    first_backoff: float = 0.05
    """Wait after the first failed attempt. Each further failure doubles it."""

    longest_backoff: float = 1.0
    """Longest wait between attempts, and so the time that a returned store goes unused."""

    close_timeout: float = 2.0
    """Longest wait of ``close()`` for open holds to end, and then again for the store.

    Unreleased holds end with this process.
    """

    wait_for_device: Callable[[], None] | None = None
    """Waits until the device work on the caller's pages is complete, or raises.

    The client calls it on the caller's thread before an insert and before a release, and on a
    thread of its own before it unmaps memory of a device. So it must name its streams itself:
    ``torch.cuda.current_stream().synchronize``, read on the thread whose stream does all the
    work. None: the client waits for all work of this process on the devices whose pages are
    mapped, and assumes that code which touches host pages has returned. CUDA refuses
    that wait while any stream of the process captures a graph, and the capture fails. An
    engine with CUDA graphs must set its own wait, for events or streams without a capture.
    If it raises, nothing is inserted or released.
    """

    host_memory_device: int | None = None
    """The CUDA device that copies between its memory and pages in host memory.

    By this process's numbering. Each extent is registered with CUDA as it is mapped, before the
    store counts on it, and the process needs a driver but neither cupy nor torch for that. It takes
    about 0.1 s a GB. If CUDA refuses, that is logged once, and copies are several times
    slower. None: no extent is registered.
    """

    page_checksums: bool | None = None
    """True if an insert sends checksums of its pages' bytes.

    The store reads some pages before it hands them out, and finds pages that were
    overwritten. None: only for pages in host memory, where 128 pages take a worker 0.6 ms at
    64 KiB and 7 ms at 1 MiB; pages of a device would have to be copied to the host. True: for
    all pages. False: for none.
    """

    contiguous_memory: ContiguousMemory | None = None
    """Maps all host extents of an arena side by side, in one range of addresses.

    A page's address is then ``base + row * row_bytes``, with its row from
    ``Namespace.address_range``. None: each extent is mapped anywhere. The store must be of a
    version that states ``Extent.arena_offset``. With an older one namespaces stay closed, and
    ``Namespace.failure`` says so. Memory of a device is mapped as without it.
    """

    hot_lane: bool = True
    """True if calls of the request path use lanes of the attach socket, if the store has them.

    The calls and answers are the same, in a third to half of the time. A call uses gRPC if the
    store is older, if more than four threads call at the same time, or after a lane broke.
    """

    fill_page_tables: bool = True
    """True if the client fills this process's page tables for new memory, in the background.

    The first use of a page then causes no page faults. Set False in a process that uses few
    pages or none, such as the scheduler of an engine whose ranks are other processes, and in one
    whose computation the background work would delay. Such a process can call
    :meth:`Namespace.fill_page_tables` before it writes.
    """

    cuda_mps: bool = field(default_factory=declared_cuda_mps)
    """Declares this process a client of CUDA MPS, which a store refuses.

    The default is :func:`declared_cuda_mps`. A false False lets the store reuse pages under
    device work of this process: with MPS the end of a process does not end its work.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "host_memory_device":
                continue
            is_time = isinstance(value, float | int) and not isinstance(value, bool)
            if is_time and not value > 0:
                raise ValueError(f"{each.name} is {value}: set it to more than 0 seconds")
        if self.call_timeout > MAX_CALL_TIMEOUT:
            raise ValueError(
                f"call_timeout is {self.call_timeout}: set at most {MAX_CALL_TIMEOUT} seconds"
            )
        if self.host_memory_device is not None and self.host_memory_device < 0:
            raise ValueError(
                f"host_memory_device is {self.host_memory_device}: set a device's number, from 0 on"
            )
        if self.first_backoff > self.longest_backoff:
            raise ValueError(f"first_backoff is {self.first_backoff}: set at most longest_backoff")
