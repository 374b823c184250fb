"""The server's settings: flags, else environment, else a TOML file, else defaults.

A flag ``--tier1-bytes 2GiB`` is ``KVSTORE_TIER1_BYTES=2GiB`` in the environment
and ``tier1_bytes = "2GiB"`` in the file.
"""

import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from kvstore.config.about import AT_SIGHUP, CONTENT_AT_ONCE, CONTENT_AT_SIGHUP, Symptoms, Values
from kvstore.config.sources import ConfigFile
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy

# A page of the machine's memory: a smaller value lacks its unit. No more, since tests fill stores
# of a few pages of small models.
SMALLEST_TIER = 4 << 10
NUMA_NODE = re.compile(r"auto|off|\d{1,4}", re.ASCII)
DEVICE = re.compile(r"cpu|cuda:\d+")
# In gRPC's notation: an IPv6 address is in brackets.
ADDRESS = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.%]+\]):(?P<port>\d{1,5})")
MOST_PORT = 65_535
REMOTE_FORMS = "write valkeys://HOST:PORT or another form of docs/how-to-remote.md"
MOST_URL = 2048
# Addresses with a path of this host, which may have any character.
LOCAL_SCHEMES = ("file", "valkey+unix")
PRODUCER = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
# A tenant's name as in tenants_file, and an address of its KV events.
EVENTS_ADDRESS = re.compile(
    r"(?:(?P<tenant>[A-Za-z0-9][A-Za-z0-9._-]{0,63})=)?"
    r"(?P<address>ipc:///[^\s,]+|tcp://(?:[A-Za-z0-9.*-]+|\[[0-9A-Fa-f:.%]+\]):(?P<port>\d{1,5}))"
)


def _read_size(value: object, read: ValidatorFunctionWrapHandler) -> object:
    try:
        return read(value)
    except ValidationError:
        raise ValueError(f"has to be {SIZE}, and is {value!r}") from None


def _positive_size(value: ByteSize) -> ByteSize:
    if value <= 0:
        raise ValueError("has to be positive")
    return value


def _tier_size(value: ByteSize) -> ByteSize:
    if value < SMALLEST_TIER:
        raise ValueError(
            f"has to be at least {SMALLEST_TIER >> 10}KiB, and is {value} bytes: "
            "sizes have a unit, as in 512MiB"
        )
    return value


def _device(value: str) -> str:
    if not DEVICE.fullmatch(value):
        raise ValueError(f"has to be cpu or cuda:N, such as cuda:0, and is {value!r}")
    return value


def _numa_node(value: str) -> str:
    if not NUMA_NODE.fullmatch(value):
        raise ValueError(f"has to be auto, off or a node's number such as 0, and is {value!r}")
    return value


def _address(value: str) -> str:
    found = ADDRESS.fullmatch(value)
    if found is None or int(found["port"]) > MOST_PORT:
        raise ValueError(f"has to be HOST:PORT, such as 127.0.0.1:7400, and is {value!r}")
    return value


def _remote_url(value: str) -> str:
    """Checks that it may be shown, also where nothing connects. The engine checks the rest."""
    scheme, marks, rest = value.partition("://")
    if len(value) > MOST_URL or not value.isprintable() or not (scheme and marks and rest):
        raise ValueError(f"is no address of an engine: {REMOTE_FORMS}")
    if "@" in rest and scheme not in LOCAL_SCHEMES:
        raise ValueError(
            "has an @, as before a password, which other users of the host could read: write the "
            "user and the password to a file, and give that as remote_credential_file"
        )
    return value


def _events_addresses(value: str) -> str:
    for each in value.split(","):
        found = EVENTS_ADDRESS.fullmatch(each)
        # The port after it is the replay's.
        if found is None or int(found["port"] or 0) >= MOST_PORT:
            raise ValueError(
                "has to be tcp://HOST:PORT or ipc:///PATH, or several as TENANT=ADDRESS with "
                f"commas between, and is {value!r}"
            )
    return value


def _producer(value: str) -> str:
    if not PRODUCER.fullmatch(value):
        raise ValueError(f"has 1 to 128 printable characters without spaces, and is {value!r}")
    return value


SIZE = "bytes, or with a unit such as 512MiB"
SECONDS = "seconds"
BYTES = "BYTES"

ReadSize = Annotated[ByteSize, WrapValidator(_read_size)]
Size = Annotated[ReadSize, AfterValidator(_positive_size), Values(SIZE, "more than 0", BYTES)]
OptionalTierSize = Annotated[
    ReadSize,
    AfterValidator(lambda size: size and _tier_size(size)),
    Values(SIZE, "0, or 4KiB or more", BYTES),
]
TierSize = Annotated[ReadSize, AfterValidator(_tier_size), Values(SIZE, "4KiB or more", BYTES)]
Seconds = Annotated[
    float, Field(gt=0, allow_inf_nan=False), Values(SECONDS, "more than 0", "SECONDS")
]
# A thread that ticks more often has no time for anything else.
Interval = Annotated[
    float, Field(ge=0.001, allow_inf_nan=False), Values(SECONDS, "0.001 or more", "SECONDS")
]
Grace = Annotated[float, Field(ge=0, allow_inf_nan=False), Values(SECONDS, "0 or more", "SECONDS")]
Share = Annotated[float, Field(ge=0, le=1), Values("of one", "from 0 to 1", "SHARE")]
Device = Annotated[
    str, AfterValidator(_device), Values("", "cpu, or cuda:N with N from 0", "DEVICE")
]
NumaNode = Annotated[
    str,
    BeforeValidator(str),
    AfterValidator(_numa_node),
    Values("", "auto, off, or the number of a node from 0", "NODE"),
]
ListenAddress = Annotated[
    str,
    AfterValidator(_address),
    Values("HOST:PORT", "a name or an address, a port below 65536", "HOST:PORT"),
]
RemoteUrl = Annotated[
    str,
    AfterValidator(_remote_url),
    Values("address", "valkey, valkeys, file or s3, without a password", "URL"),
]
Producer = Annotated[
    str,
    AfterValidator(_producer),
    Values("", "1 to 128 printable characters without spaces", "NAME"),
]
EventsAddresses = Annotated[
    str,
    AfterValidator(_events_addresses),
    Values("address", "tcp://HOST:PORT or ipc:///PATH, or TENANT=ADDRESS,...", "ADDRESS"),
]
Topic = Annotated[
    str,
    Field(max_length=256),
    Values("", "up to 256 characters", "TOPIC"),
]
Replicas = Annotated[int, Field(ge=0, le=16), Values("replicas", "from 0 to 16", "COUNT")]
FilePath = Annotated[Path, Values("path", "a file", "PATH")]
FolderPath = Annotated[Path, Values("path", "a folder", "PATH")]
Carrier = Annotated[str, Values("path", "a folder, systemd or off", "FOLDER")]
GroupName = Annotated[str, Values("group", "a name or a number of a group of this host", "GROUP")]


PROGRAM = "kvstore-server"
# Settings that mean nothing without remote_url.
REMOTE_EXTRAS = (
    *("remote_key_file", "remote_credential_file", "remote_ca_file", "remote_write"),
    *("remote_insecure", "remote_trust_uids", "remote_producer", "remote_replicas"),
    "remote_state_dir",
)
# Settings that mean nothing without kv_events.
EVENTS_EXTRAS = ("kv_events_bind", "kv_events_insecure", "kv_events_key_file", "kv_events_topic")
# Default number of extents in the first tier. The first prompt of a worker fits at once, and
# several tenants or models still find room.
EXTENTS_IN_A_TIER = 4
# Prefaulting this much takes about a second, during which nothing else grows.
LARGEST_EXTENT = 4 << 30
# A page takes up to 370 bytes of the journal, and is seldom smaller than 192 KiB.
PAGE_BYTES_OF_A_JOURNAL_BYTE = 512
SMALLEST_JOURNAL = 16 << 20


def default_runtime_dir() -> Path:
    """Returns ``$XDG_RUNTIME_DIR/kvstore``, else ``/tmp/kvstore-UID``."""
    if session_dir := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(session_dir) / "kvstore"
    return Path("/tmp") / f"kvstore-{os.geteuid()}"  # noqa: S108 - made with mode 0700, checked


class Config(BaseSettings):
    """Settings of one server. Times are in seconds, sizes in bytes or like "512MiB".

    --tier1-bytes is KVSTORE_TIER1_BYTES in the environment, tier1_bytes in the file.
    `kvstore-server config` shows all that are in force, and explains each.
    """

    model_config = SettingsConfigDict(
        env_prefix="KVSTORE_",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        cli_prog_name=PROGRAM,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_implicit_flags=True,
    )

    config_file: Annotated[
        FilePath | None, CONTENT_AT_SIGHUP, Symptoms(log="config_reloaded config_not_read")
    ] = None
    """A TOML file with any of these settings but this one.

    Read again at SIGHUP; `kvstore-server config --toml` writes one. Absent: none is read.
    Start with: none.
    """

    runtime_dir: Annotated[
        FolderPath,
        Symptoms(metrics="kvstore_attached_processes", stats="leases", log="process_attached"),
    ] = Field(default_factory=default_runtime_dir)
    """Folder of the sockets, mode 0700, one a server; its path has at most 94 bytes.

    Wrong when clients stay disconnected: both sides have to name the same one.
    Absent: $XDG_RUNTIME_DIR/kvstore, else /tmp/kvstore-UID. Start with: that.
    """

    device: Annotated[
        Device, Symptoms(metrics="kvstore_slots", stats="arenas", log="device_memory_awaited")
    ] = "cpu"
    """The place of the first tier's pages: `cpu`, or `cuda:N` for the memory of a GPU.

    N counts the devices that this process sees, from 0. Needs cupy
    (`pip install cupy-cuda13x`, or cupy-cuda12x for CUDA 12); workers need it too, and
    torch with CUDA. Wrong when a worker's namespace stays closed and says that it has
    no such device. Start with: cpu.
    """

    @property
    def cuda_device(self) -> int | None:
        """The number of the CUDA device, or None for host memory."""
        return None if self.device == "cpu" else int(self.device.removeprefix("cuda:"))

    tier1_bytes: Annotated[
        TierSize,
        Symptoms(
            metrics="kvstore_returned_pages_total kvstore_exhausted_reserves_total",
            stats="evicted_page_count exhausted_count",
            log="tier1_bytes_small extent_refused tier1_bytes_beyond_memory",
        ),
    ] = ByteSize(1 << 30)
    """Memory that pages may take, all tenants together, at least 4 KiB.

    The server allocates it as it is needed; on a GPU `tier1_reserve` says when. Memory moves
    only to another tenant or model that asks for it.
    Too small when `evicted_page_count` grows with `matched_token_count` standing
    still, or `exhausted_count` grows, and for real models when the log has
    `tier1_bytes_small`; too large when it has `extent_refused`, which
    `tier1_bytes_beyond_memory` foretells at the start, for memory of the host.
    On a GPU the server waits up to 20 seconds for so much to be left, and else does not start.
    Start with: half of what the machine, or the GPU, has left beside its workers.
    """

    tier1_reserve: Annotated[
        Literal["all", "grow"],
        Symptoms(
            metrics="kvstore_extents",
            stats="extent_count",
            log="device_memory_awaited device_memory_refused device_reserve_short extent_refused",
        ),
    ] = "all"
    """When the server allocates `tier1_bytes` on a GPU. Has no effect on host memory.

    `all`: all of it before the server serves. Other programs of the GPU get the rest, in
    whatever order they start. `grow`: each extent when it is needed, so another program can
    take the memory first. Wrong when it is `grow` and the log has `extent_refused`: the
    store stays small until the server restarts. With `all` the log has
    `device_reserve_short` if another program took memory while an extent moved between
    tenants or models. Start with: all.
    """

    extent_bytes: Annotated[
        Size | None,
        Symptoms(
            metrics="kvstore_extents kvstore_exhausted_reserves_total",
            stats="extent_count evicted_page_count exhausted_count",
        ),
    ] = None
    """Memory is taken in pieces of this size, each mapped by every worker of the tenant.

    Absent: a quarter of `tier1_bytes`, at most 4 GiB. An arena grows in the background,
    and until it has, a reservation finds only what is there. Too small when `evicted_page_count` or
    `exhausted_count` grows while memory is left, or arenas have hundreds of extents
    (`extent_count`); too large when tenants or models find none left: what one gives
    another is a whole extent, so there have to be more of them than tenants and models.
    Start with: room for a few of the longest prompts.
    """

    @property
    def bytes_of_an_extent(self) -> int:
        """The size in force."""
        quarter = max(self.tier1_bytes // EXTENTS_IN_A_TIER, 1)
        return self.extent_bytes or min(quarter, LARGEST_EXTENT)

    prefix_cache_backend: Annotated[
        Literal["radix", "hash"],
        Symptoms(
            metrics="kvstore_call_duration_seconds",
            stats="matched_token_count",
            log="request_handled",
        ),
    ] = "radix"
    """The index of cached prefixes: a tree of runs of pages, or a digest of each page.

    Both answer the same; `hash` is vLLM's way, for comparison, and takes several times the
    time and the memory for long prompts. Start with: radix.
    """

    eviction_policy: Annotated[
        Literal["auto", "gdsf", "level", "lfu", "lru", "slru"],
        Symptoms(
            metrics="kvstore_returned_pages_total kvstore_thrash_ratio",
            stats="returned_page_count evicted_page_count",
        ),
    ] = "auto"
    """The policy that picks the pages to evict: from the end of a path, and none that is held.

    `auto` weighs what came back before, and callers' hints, by what its evictions turn out
    to be worth; docs/eviction.md has all of them, measured. Wrong when
    `returned_page_count` grows much faster than with another one. Start with: auto.
    """

    verify_rate: Annotated[
        Share,
        AT_SIGHUP,
        Symptoms(
            metrics="kvstore_verified_pages_total kvstore_corrupt_pages_total",
            stats="verified_page_count corrupt_page_count",
            log="page_corrupt",
        ),
    ] = 0.005
    """The part of the pages of a match that the store reads and compares with what was written.

    Of pages whose writer gave a checksum; 0 switches it off, 1 reads all. Bytes are read
    outside the store's mutex, and a match waits for it.
    Too low when `verified_page_count` stands still; too high when matches take longer than
    a prompt is worth. Start with: 0.005, and 1 while looking for whoever writes where it
    should not, whom `corrupt_page_count` and `page_corrupt` in the log show.
    """

    debug_poison_freed_slots: Annotated[
        bool, Symptoms(metrics="kvstore_mutex_wait_seconds", log="slot_not_poisoned")
    ] = False
    """Fill each slot that is given back with bytes 0xDB, so that a late reader sees it at once.

    Takes the time of writing a page, under the store's mutex, for each page that is evicted or
    aborted. Start with: false.
    """

    log_format: Annotated[
        Literal["console", "json"], AT_SIGHUP, Symptoms(log="server_started config_reloaded")
    ] = "console"
    """Lines for people or for machines. Start with: console by hand, json under a supervisor."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], AT_SIGHUP, Symptoms(log="request_handled")
    ] = "info"
    """Least severe events shown; debug has a line for each request. Start with: info."""

    # Tiers 2 and 3: their sizes, and when pages move there and back.

    tier2_bytes: Annotated[
        OptionalTierSize,
        Symptoms(
            metrics="kvstore_evicted_pages_total kvstore_moved_pages_total",
            stats="evicted_page_count demoted_page_count",
        ),
    ] = ByteSize(0)
    """Host memory for pages that tier 1 has no room for, all tenants together; 0: none.

    A second tier of the same kind on a machine without a GPU, where it is for tests, and
    what a GPU's pages are kept in otherwise. Taken as it is needed, in pieces as large as
    those of tier 1 or larger. Too small when `evicted_page_count` grows nearly as fast as
    `demoted_page_count`. Start with: on a GPU ten times `tier1_bytes`, else 0.
    """

    tier2_write: Annotated[
        Literal["back", "through", "through-selective"],
        Symptoms(
            metrics="kvstore_moved_pages_total", stats="demoted_page_count promoted_page_count"
        ),
    ] = "back"
    """When a page gets its copy in tier 2.

    `back`: when tier 1 runs low, in the background, before a reservation has to wait.
    `through`: soon after it was inserted, so that tier 1 gives it up at once later.
    `through-selective`: soon after it was first matched; what is never asked for again is
    never copied, and is gone when tier 1 needs its place.
    Wrong when `demoted_page_count` is many times `promoted_page_count`: try
    through-selective. Start with: back.
    """

    tier2_match: Annotated[
        Literal["in-place", "promote"] | None,
        Symptoms(
            metrics="kvstore_moved_pages_total kvstore_call_duration_seconds",
            stats="promoted_page_count",
        ),
    ] = None
    """The treatment of pages that a match finds in tier 2 alone.

    `in-place`: they are handed out where they are, and copied to tier 1 in the background
    when they are matched again. `promote`: they are copied to tier 1 first, and the match
    waits for it; what finds no room there is handed out in place by a store of host memory,
    and not at all by one of a GPU. Absent: promote on a GPU, else in-place, which is
    refused on a GPU. Start with: absent.
    """

    tier2_numa_node: Annotated[
        NumaNode, Symptoms(metrics="kvstore_move_seconds_total", log="numa_node_unusable")
    ] = "auto"
    """The NUMA node on which tier 2 is allocated first: `auto`, a node's number, or `off`.

    `auto`: the node that the GPU of tier 1 is attached to, so that copies between tier 1 and
    tier 2 do not cross from one processor socket to another. If the machine has one node or
    no GPU, or the kernel does not know the node, `auto` is the same as `off`. If the node is
    full, the server allocates the rest on other nodes. It does not start with a number that
    the machine does not have. Wrong when the log has `numa_node_unusable`: give the container
    the capability SYS_NICE. Start with: auto.
    """

    @property
    def named_numa_node(self) -> int | None:
        """The NUMA node that ``tier2_numa_node`` names, or None for auto and off."""
        return int(self.tier2_numa_node) if self.tier2_numa_node.isdigit() else None

    hugepages: Annotated[
        Literal["off", "transparent", "2MiB"],
        Symptoms(
            metrics="kvstore_extents",
            stats="extent_count",
            log="transparent_hugepages_off extent_refused tier1_bytes_beyond_memory",
        ),
    ] = "off"
    """The size of the kernel's pages for host memory: 4 KiB, or large ones of 2 MiB.

    `2MiB`: only from the pool that `vm.nr_hugepages` reserves. The server fills extents in a
    third of the time, and processes that map them need less memory for page tables. If the
    pool has too few pages, the log has `extent_refused` with the number to reserve.
    `transparent`: large pages as far as the kernel finds some. For that,
    /sys/kernel/mm/transparent_hugepage/shmem_enabled must be `advise`, `within_size` or
    `always`; else the log has `transparent_hugepages_off`. `off`: as the kernel is set up.
    Start with: off, and 2MiB for tiers of 64 GiB or more.
    """

    tier3_path: Annotated[
        FilePath | None,
        Symptoms(metrics="kvstore_tier3_up", stats="state", log="tier3_unusable slab_opened"),
    ] = None
    """The file that pages are kept in over a restart, one server's own. Needed with `tier3_bytes`.

    Made where it is not there, all of its bytes at once, readable by the server's user
    alone: whoever reads it has the pages. Its folder has to be there, on a disk that is
    fast; it may be a file of an earlier run, of another size too. Wrong when the log has
    `tier3_unusable`, which says why, and the store then goes on without tier 3.
    Without `tier3_bytes` it is refused. Absent: no tier 3. Start with: a path on local NVMe.
    """

    tier3_bytes: Annotated[
        OptionalTierSize,
        Symptoms(
            metrics="kvstore_tier3_gone_pages_total kvstore_tier3_written_pages_total",
            stats="evicted_page_count written_page_count",
        ),
    ] = ByteSize(0)
    """Bytes of that file, refused without `tier3_path`; 0: no tier 3.

    Too small when `evicted_page_count` of tier 3 grows nearly as fast as its
    `written_page_count`. Takes some 300 bytes of memory a page. Start with: what the disk
    has to spare, at least ten times the memory of the tiers above.
    """

    tier3_write: Annotated[
        Literal["second-touch", "through"],
        Symptoms(
            metrics="kvstore_tier3_written_pages_total kvstore_loaded_pages_total",
            stats="written_page_count loaded_page_count",
        ),
    ] = "second-touch"
    """When a page is written to tier 3.

    `second-touch`: when it is inserted or matched for the second time; most pages never
    are. `through`: soon after it was inserted, for a disk that is large and does not wear.
    Wrong when `written_page_count` of tier 3 is many times its `loaded_page_count`.
    Start with: second-touch.
    """

    @model_validator(mode="after")
    def _require_path_and_bytes(self) -> Self:
        if self.tier3_bytes and self.tier3_path is None:
            raise ValueError("tier3_bytes is set and tier3_path is not: set both, or neither")
        if self.tier3_path is not None and not self.tier3_bytes:
            raise ValueError(
                "tier3_path is set and tier3_bytes is 0: there would be no tier 3; "
                "set both, or neither"
            )
        return self

    def tier_policy(self, *, on_gpu: bool) -> TierPolicy | None:
        """Returns the policy of moves between tiers; None with only one tier."""
        if not self.tier2_bytes:
            return None
        return TierPolicy(
            write=WritePolicy(self.tier2_write),
            in_place=not on_gpu,
            promote=on_gpu or self.tier2_match == "promote",
        )

    # The remote tier: pages that hosts share in an engine.

    remote_url: Annotated[
        RemoteUrl | None,
        Symptoms(
            metrics="kvstore_remote_up kvstore_remote_looks_total",
            stats="remote state",
            log="remote_engine_away remote_engine_back",
        ),
    ] = None
    """The address of an engine that hosts share pages in, such as `valkeys://cache:6379`.

    `valkey+unix:///PATH`, `valkeys://HOST:PORT` with TLS, `valkey://HOST:PORT` in clear,
    `valkeys+cluster://HOST:PORT,...`, `valkeys+sentinel://HOST:PORT,.../NAME`, `file:///PATH`
    for a shared folder, and `s3://BUCKET/PREFIX?endpoint=URL`; docs/how-to-remote.md has the
    steps for each. The password is in `remote_credential_file`, never in the address. Needs
    `remote_key_file`, and `tenants_file` or `remote_trust_uids`. The server starts and serves
    while the engine does not answer. Wrong when `kvstore_remote_up` is 0: `kvstore-ctl doctor`
    says why. Absent: no remote tier. Start with: none, then an engine in the same rack.
    """

    remote_key_file: Annotated[
        FilePath | None, Symptoms(metrics="kvstore_remote_rejected_pages_total", stats="key_id")
    ] = None
    """The secret of the hosts that share pages: a file of 32 random bytes, mode 0600.

    `(umask 077; head -c 32 /dev/urandom > FILE)` makes one; copy it to all hosts. It encrypts
    pages and their names, so the engine's administrator can read neither. With another secret
    the tier is empty. Wrong when hosts do not find each other's pages and
    `kvstore-ctl remote` shows another key id on each. Needed with `remote_url`. Absent: none.
    Start with: one file for each group of hosts that trust each other.
    """

    remote_credential_file: Annotated[
        FilePath | None,
        CONTENT_AT_ONCE,
        Symptoms(metrics="kvstore_remote_up", stats="reason", log="remote_engine_away"),
    ] = None
    """The engine's user and password, a line each, in a file that others cannot read.

    A single line is a password without a user. For S3 the lines are the id of the access key and
    the secret key. The store reads the file again for each connection to Valkey.
    Wrong when the log has `remote_engine_away` with NOAUTH, WRONGPASS or NOPERM:
    docs/remote-engines.md has the rights that the user needs. Absent: no credential, and for S3
    the keys of the environment or of the machine's role. Start with: a user for kvstore alone.
    """

    remote_ca_file: Annotated[
        FilePath | None,
        Symptoms(metrics="kvstore_remote_up", stats="reason", log="remote_engine_away"),
    ] = None
    """The certificates, in PEM, of the authorities that sign the engine's certificate.

    For `valkeys://...`. The certificate has to have the name in the address. Wrong when the log has
    `remote_engine_away` with CERTIFICATE_VERIFY_FAILED. Absent: those of the operating system.
    Start with: none for a certificate of a public authority.
    """

    remote_write: Annotated[
        Literal["off", "through", "second-touch"] | None,
        Symptoms(
            metrics="kvstore_remote_written_pages_total kvstore_remote_refused_pages_total",
            stats="written_page_count",
        ),
    ] = None
    """When a page is written to the remote tier.

    `through`: soon after it was inserted, so that other hosts find it before its second use.
    `second-touch`: when this host inserts or matches it for the second time, for an engine whose
    writes cost money. `off`: never; this host only reads what others write. Wrong when
    `kvstore_remote_written_pages_total` is many times the pages that all hosts read.
    Absent: through, and second-touch for s3. Start with: absent.
    """

    @property
    def remote_write_in_force(self) -> str | None:
        """The policy in force, or None without a remote tier."""
        if self.remote_url is None:
            return None
        return self.remote_write or ("second-touch" if self.is_remote_on_s3 else "through")

    @property
    def is_remote_on_s3(self) -> bool:
        """True if the engine is S3, where each call costs money and tens of milliseconds."""
        return (self.remote_url or "").startswith("s3://")

    remote_timeout: Annotated[
        Seconds,
        Symptoms(
            metrics="kvstore_remote_looks_total kvstore_remote_look_seconds_total",
            stats="failed_look_count",
            log="remote_engine_away",
        ),
    ] = 0.3
    """The longest wait for a short call of the engine, such as a lookup.

    A match waits at most a quarter of its own time for the remote tier, if that is shorter. Too
    short when `answer="failed"` of `kvstore_remote_looks_total` grows although the engine works;
    too long when requests wait for an engine that hangs. Start with: 0.3, and 1 for s3.
    """

    remote_ttl: Annotated[
        Seconds,
        Symptoms(metrics="kvstore_remote_looks_total", stats="missed_look_count"),
    ] = 86_400.0
    """The time that a page stays in the engine after its last use.

    The engine deletes it at most ten minutes later, and keeps pages of a named pin while the pin
    lives. A shared folder deletes nothing, and S3 only by a rule of the bucket. The store remembers
    its removals for as long. Too long when S3 costs more
    than it saves; too short when prompts come back on another day. Start with: 86400, a day.
    """

    remote_insecure: Annotated[
        bool, Symptoms(metrics="kvstore_remote_up", log="remote_insecure")
    ] = False
    """Allows an engine without TLS: `valkey://...` and S3 over HTTP.

    Pages are still encrypted. An observer of the network reads the engine's password, can then
    delete pages, and sees how many pages each host shares. Start with: no.
    """

    remote_trust_uids: Annotated[
        bool, Symptoms(metrics="kvstore_loaded_pages_total", stats="tenants")
    ] = False
    """Shares pages of the tenant `uid-N` with the tenant `uid-N` of every other host.

    Without a `tenants_file` a tenant is a uid, and a uid may be another person on another host. Two
    such people would share pages, and could write wrong ones for each other. Say yes if all hosts
    have the same users, or only one user. Start with: no, and a `tenants_file`.
    """

    remote_producer: Annotated[
        Producer | None,
        Symptoms(metrics="kvstore_remote_looks_total", stats="missed_look_count key_id"),
    ] = None
    """The kind of machine that computes the pages: hosts of different kinds share no pages.

    For results that must not depend on which machine computed a page, such as those of the
    deterministic mode on two kinds of GPU. Give equal machines the same text, such as
    `h100-driver570`. Wrong when equal hosts have different texts: they find no pages of each other.
    Absent: all hosts with the same secret share. Start with: none.
    """

    remote_replicas: Annotated[
        Replicas, Symptoms(metrics="kvstore_remote_pending_removals", log="tier3_removal_failed")
    ] = 0
    """Replicas that have to have a removal before the server answers that it is done.

    For Valkey with replicas. With 0 a removal may be lost with the primary, until this host writes
    it again. Needs the right `+wait`. Wrong when removals fail while fewer replicas are
    connected. Start with: 0, and 1 with Sentinel or a cluster.
    """

    remote_state_dir: Annotated[
        FolderPath | None, Symptoms(stats="pending_removal_count", log="tier3_removal_failed")
    ] = None
    """A folder that only this server uses, for removals until the engine has them for good.

    It has to outlive restarts, so that a page removed while the engine was away stays removed. The
    server makes it with mode 0700 if it does not exist. Wrong when it is on a file system that a
    restart empties. Absent: beside `tier3_path`, else in `$STATE_DIRECTORY`, else in
    `$XDG_STATE_HOME/kvstore` or ~/.local/state/kvstore, in a folder named after `runtime_dir`.
    Start with: absent, and a volume in a container.
    """

    @property
    def remote_state_folder(self) -> Path:
        """The folder in force for what this host knows of the remote tier."""
        if self.remote_state_dir is not None:
            return self.remote_state_dir
        if self.tier3_path is not None:
            return self.tier3_path.with_name(f"{self.tier3_path.name}.remote")
        return self.state_folder("remote")

    def state_folder(self, name: str) -> Path:
        """Returns this server's folder for state that outlives restarts, of one kind."""
        if of_the_unit := os.environ.get("STATE_DIRECTORY"):
            return Path(of_the_unit.partition(":")[0]) / name
        home = os.environ.get("XDG_STATE_HOME")
        base = Path(home) if home else Path.home() / ".local" / "state"
        # Servers of one user have other runtime folders.
        place = blake2b(os.fsencode(self.runtime_dir.absolute()), digest_size=8).hexdigest()
        return base / "kvstore" / f"{name}-{place}"

    @model_validator(mode="after")
    def _require_whole_remote(self) -> Self:
        if self.remote_url is None:
            given = [name for name in REMOTE_EXTRAS if getattr(self, name) not in (None, False, 0)]
            if given:
                raise ValueError(
                    f"{', '.join(given)} without remote_url: set it, such as --remote-url "
                    "valkeys://HOST:PORT, or leave them out"
                )
            return self
        if self.remote_key_file is None:
            raise ValueError(
                "remote_url needs remote_key_file, the secret that all hosts share: "
                "(umask 077; head -c 32 /dev/urandom > FILE) makes one; copy it to each host"
            )
        scheme = self.remote_url.partition("://")[0]
        if self.remote_ca_file is not None and not scheme.startswith("valkeys"):
            raise ValueError(f"remote_ca_file is for valkeys://, and remote_url is {scheme}://")
        if self.tenants_file is None and not self.remote_trust_uids:
            raise ValueError(
                "remote_url needs tenants_file: without one a tenant is a uid, which may be "
                "another person on another host. Say --remote-trust-uids if all hosts have the "
                "same users"
            )
        return self

    # Succession: memory that outlives the server.

    holder: Annotated[
        Carrier,
        Symptoms(
            metrics="kvstore_holder_behind kvstore_recovered_pages",
            log="store_recovered clean_start holder_lost holder_refuses",
        ),
    ] = "off"
    """The process that keeps the store's memory while no server runs; docs/holder.md.

    A folder: the holder that serves it. `systemd`: the unit's store of file descriptors. `off`:
    the memory ends with the server. With a holder, a server that was killed or got SIGTERM
    leaves its pages and its workers' holds to the next one with equal settings. SIGINT frees them.
    Each server needs a folder of its own. Keep workers out of it: a process that reaches it gets
    all pages. Wrong when the log has `clean_start` after a restart, which says why, or while
    `kvstore_holder_behind` is above 0. Start with: off by hand, a folder beside workers that
    matter; the units, containers and manifests in deploy/ set one.
    """

    holder_start: Annotated[bool, Symptoms(log="holder_lost holder_restored")] = True
    """Starts a holder if none serves the folder of `holder`, in a session of its own.

    Wrong under a service manager or in a container, which ends that holder with the server: run
    the holder as a unit or a container of its own, and set this to false. Has no effect without
    a folder. Start with: true by hand, false under a supervisor.
    """

    replace: Annotated[
        bool,
        Symptoms(log="replacement_begins replacement_refused nothing_to_replace store_recovered"),
    ] = False
    """Takes the place of the server that runs in `runtime_dir`, with its pages and its workers.

    This server prepares itself, asks the other one by SIGUSR1, and goes on with its memory. It
    ends with status 1, and the other one serves on, if that one does not answer or has no holder,
    or if the settings do not fit its memory. If no server runs there, this one starts as usual.
    Needs the other one's folder as `holder`. docs/how-to-upgrade.md has the steps.
    Start with: false, and true for one start.
    """

    @model_validator(mode="after")
    def _require_holder_to_replace(self) -> Self:
        if self.replace and self.holder in ("off", "systemd"):
            raise ValueError(
                f"replace needs a folder as holder, which keeps the memory meanwhile; holder is "
                f"{self.holder}: set --holder, or stop the other server and start this one"
            )
        return self

    journal_bytes: Annotated[
        Size | None,
        Symptoms(
            metrics="kvstore_journal_used_bytes kvstore_journal_given_up", log="journal_given_up"
        ),
    ] = None
    """Memory, with a holder, for what the next server has to know of the pages and their holds.

    Absent: 1/512 of `tier1_bytes` and `tier2_bytes`, at least 16 MiB. It is added to both.
    `kvstore_journal_bytes` and kvstore-ctl show the part that records may fill: 11.2 MiB of 16.
    Another size takes effect at the next clean start. Too small when the log has
    `journal_given_up`: then the store goes on, and its memory ends with the server. Pages of few
    tokens need more. Start with: absent.
    """

    @property
    def bytes_of_the_journal(self) -> int:
        """The size in force."""
        part = (self.tier1_bytes + self.tier2_bytes) // PAGE_BYTES_OF_A_JOURNAL_BYTE
        return self.journal_bytes or max(part, SMALLEST_JOURNAL)

    # Leases: times to live, and the checks for expired ones.

    default_ttl: Annotated[
        Seconds,
        Symptoms(metrics="kvstore_leases", stats="expired_lease_count", log="lease_expired"),
    ] = 10.0
    """Time to live of a lease whose client asks for none.

    Too short when `lease_expired` is logged for workers that live; too long when
    slots stay reserved long after a worker hung. Start with: 10.
    """

    min_ttl: Annotated[
        Seconds, Symptoms(metrics="kvstore_requests_total", stats="request_count")
    ] = 0.2
    """Shortest time to live granted. Each lease is renewed three times within its own.

    Too short when renewals are most of the calls in the log. Start with: 0.2.
    """

    max_ttl: Annotated[
        Seconds,
        Symptoms(
            metrics="kvstore_oldest_quarantine_seconds kvstore_held_slots",
            stats="reserved_slot_count quarantined_slot_count oldest_quarantine_age",
        ),
    ] = 300.0
    """Longest time to live granted.

    Too long when `reserved_slot_count` stays high after a worker hung. Start with: 300.
    """

    drain_grace: Annotated[Grace, AT_SIGHUP, Symptoms(log="drain_finished")] = 10.0
    """The longest wait of a stop for leases to end.

    Too short when `drain_finished` is logged with `leases_left` above zero, whose
    workers then go on without a store. Start with: what a request takes, and not
    more than the supervisor waits before it kills.
    """

    reaper_interval: Annotated[
        Interval,
        AT_SIGHUP,
        Symptoms(
            metrics="kvstore_thread_silence_seconds kvstore_leases",
            stats="expired_lease_count",
            log="lease_expired",
        ),
    ] = 0.1
    """The time between two checks for leases past their time to live.

    Too long when `lease_expired` comes late; too short when an idle server takes
    processor time. Start with: half of `min_ttl`.
    """

    @model_validator(mode="after")
    def _order_ttls(self) -> Self:
        if not self.min_ttl <= self.default_ttl <= self.max_ttl:
            raise ValueError("min_ttl, default_ttl and max_ttl have to be in this order")
        return self

    # Access: the listening addresses, and the known callers.

    tenants_file: Annotated[
        FilePath | None,
        CONTENT_AT_SIGHUP,
        Symptoms(
            metrics="kvstore_refused_requests_total",
            stats="namespaces refused_request_count",
            log="tenants_not_read",
            errors="CREDENTIAL_REQUIRED",
        ),
    ] = None
    """A TOML file of tenants: their uids, tokens, certificates and quotas.

    Written by its owner alone, who is the server's user or root, and not readable by
    others; read again at SIGHUP. docs/tenants.md has an example.
    Wrong when callers get `CREDENTIAL_REQUIRED`, or two workers that should share
    pages are in two namespaces of `kvstore-ctl namespaces`.
    Absent: each uid of this host is the tenant `uid-N`, and nobody calls over TCP.
    Start with: none.
    """

    socket_group: Annotated[
        GroupName | None,
        Symptoms(metrics="kvstore_attached_processes", stats="leases", log="process_attached"),
    ] = None
    """A group, by name or number, whose members may connect to the unix sockets.

    The folder gets mode 0750 and the sockets 0660, of this group, in which the
    server's user has to be. Each uid stays a tenant of its own unless `tenants_file`
    says otherwise. Wrong when workers of other users stay disconnected.
    Absent: the server's user alone, 0700 and 0600. Start with: none.
    """

    listen: Annotated[ListenAddress | None, Symptoms(log="server_started")] = None
    """HOST:PORT of a TCP address for gRPC, beside the unix socket.

    Remote clients look, peek and administer; pages are used on this host alone. Needs
    `tls_cert` and `tls_key`, or `insecure_tcp`, and callers in `tenants_file`. Port 0
    is any that is free; the log's `server_started` says which.
    Absent: unix sockets alone. Start with: none.
    """

    tls_cert: Annotated[FilePath | None, CONTENT_AT_ONCE, Symptoms(log="tls_not_renewed")] = None
    """The server's certificate for `listen`, with its chain, in PEM.

    It names the host that clients connect to. Replaced on disk, it is used from the
    next connection on, as `tls_key` and `tls_client_ca` are. Wrong when clients say
    that no certificate could be verified. Absent: no TLS. Start with: none.
    """

    tls_key: Annotated[FilePath | None, CONTENT_AT_ONCE, Symptoms(log="tls_not_renewed")] = None
    """The private key of `tls_cert`, in PEM, without a passphrase.

    It is the server's user's or root's, and others can neither read nor write it.
    Absent: no TLS. Start with: none.
    """

    tls_client_ca: Annotated[
        FilePath | None,
        CONTENT_AT_ONCE,
        Symptoms(log="tls_not_renewed", errors="CREDENTIAL_REQUIRED"),
    ] = None
    """Certificates, in PEM, of those who sign the certificates of clients.

    With it every client over TCP has to show one, which names its tenant. A token may
    come with it, and has to name the same tenant. Absent: tokens alone. Start with: none.
    """

    insecure_tcp: Annotated[bool, Symptoms(log="insecure_tcp")] = False
    """Allows `listen` without TLS: anyone who sees the network reads tokens and token ids.

    Callers need a token all the same. For loopback, or inside a tunnel.
    Start with: no.
    """

    @model_validator(mode="after")
    def _require_guarded_tcp(self) -> Self:
        tls = self.tls_cert or self.tls_key or self.tls_client_ca
        if self.listen is None:
            if tls or self.insecure_tcp:
                raise ValueError(
                    "tls_cert, tls_key, tls_client_ca and insecure_tcp say how to listen: "
                    "set listen, such as --listen 127.0.0.1:7400, or leave them out"
                )
            return self
        if tls and self.insecure_tcp:
            raise ValueError("insecure_tcp is for a listen without TLS: leave it or tls_... out")
        if not self.insecure_tcp and not (self.tls_cert and self.tls_key):
            raise ValueError(
                f"listen {self.listen} needs TLS: give --tls-cert and --tls-key, and "
                "--tls-client-ca for certificates of clients; or say --insecure-tcp, and "
                "whoever sees the network reads all that passes"
            )
        if self.tenants_file is None:
            raise ValueError(
                f"listen {self.listen} needs --tenants-file: over TCP a caller is known by a "
                "token or a certificate that stands there, and by nothing else"
            )
        return self

    # KV events, for routers.

    kv_events: Annotated[
        bool,
        Symptoms(
            metrics="kvstore_kv_event_batches_total kvstore_kv_event_lost_changes_total",
            stats="kv_events",
            log="kv_events_published kv_events_snapshot kv_events_failed",
        ),
    ] = False
    """Publishes which blocks the store has, as vLLM does, for routers such as NVIDIA Dynamo.

    Each tenant has an endpoint of its own. Its events have the tokens of the tenant's prompts.
    docs/how-to-kv-events.md has the steps. Wrong when a router finds no blocks: the log's
    `kv_events_published` has the addresses. Start with: false, and true if a router listens.
    """

    kv_events_bind: Annotated[
        EventsAddresses | None, Symptoms(log="kv_events_published kv_events_unusable")
    ] = None
    """The address of the events: `tcp://HOST:PORT`, or `ipc:///PATH` of a socket of this host.

    An address alone is that of the tenant of the server's own user. `TENANT=ADDRESS,...` gives
    other tenants theirs. Consumers ask for replays at the next port, or at the path with
    `.replay` behind it. Port 0 is any for both; the log says which. TCP needs
    `kv_events_key_file` or `kv_events_insecure`. Absent: sockets in the folder `kv-events` of
    `runtime_dir`, mode 0700, named after tenants. Start with: none, and TCP if the router is on
    another host.
    """

    kv_events_insecure: Annotated[bool, Symptoms(log="kv_events_insecure")] = False
    """Allows KV events over TCP in clear, on loopback too: whoever connects reads the prompts.

    ZeroMQ asks nobody who he is. Events have token ids, which anybody can turn into text. Say yes
    inside a network that only routers reach. Start with: false.
    """

    kv_events_key_file: Annotated[
        FilePath | None,
        Symptoms(metrics="kvstore_kv_event_batches_total", log="kv_events_published"),
    ] = None
    """The server's secret key for KV events over TCP, with which they are encrypted (CURVE).

    Only consumers whose public keys are in `kv_events_keys` of the tenant in `tenants_file`
    connect. The log's `kv_events_published` has the server's public key, which they need.
    docs/how-to-kv-events.md makes the keys. Its mode is 0600. Absent: no TCP without
    `kv_events_insecure`. Start with: a file if the routers know CURVE.
    """

    kv_events_format: Annotated[Literal["map", "array"], Symptoms(log="kv_events_published")] = (
        "map"
    )
    """The form of an event: a map, as of vLLM 0.24, or an array, as before.

    With `array`, replays have no topic either, as Dynamo 1.x and SGLang have it. Wrong when a
    router subscribes and finds no blocks, or does not understand a replay. Start with: map, and
    array for a router that is older.
    """

    kv_events_topic: Annotated[Topic | None, Symptoms(log="kv_events_published")] = None
    """The topic of the events: the first frame of each message, which consumers may filter by.

    llm-d wants `kv@POD@MODEL`. Wrong when a router subscribes to another topic: it gets no
    message. Absent: an empty topic, as vLLM has it. Start with: none.
    """

    @property
    def kv_events_addresses(self) -> dict[str, str]:
        """The addresses of ``kv_events_bind`` by tenant; "" is that of the server's own user."""
        given = (self.kv_events_bind or "").split(",") if self.kv_events_bind else []
        found = [EVENTS_ADDRESS.fullmatch(each) for each in given]
        return {each["tenant"] or "": each["address"] for each in found if each is not None}

    @model_validator(mode="after")
    def _require_guarded_events(self) -> Self:
        if not self.kv_events:
            given = [name for name in EVENTS_EXTRAS if getattr(self, name)]
            if given:
                raise ValueError(
                    f"{', '.join(given)} without kv_events: say --kv-events, or leave them out"
                )
            return self
        bound = (self.kv_events_bind or "").split(",") if self.kv_events_bind else []
        if len(self.kv_events_addresses) < len(bound):
            raise ValueError("kv_events_bind has two addresses of one tenant")
        over_tcp = [each for each in bound if "tcp://" in each]
        if self.kv_events_insecure and self.kv_events_key_file is not None:
            raise ValueError("kv_events_insecure is for TCP without kv_events_key_file: leave one")
        if over_tcp and not (self.kv_events_insecure or self.kv_events_key_file):
            raise ValueError(
                f"kv_events_bind {over_tcp[0]}: whoever connects would read the tokens of all "
                "prompts. Leave it out, for a socket that only this user reaches; or give "
                "--kv-events-key-file; or say --kv-events-insecure inside a network that only "
                "routers reach"
            )
        return self

    # The HTTP listener.

    metrics_listen: Annotated[ListenAddress | None, Symptoms(log="http_listening")] = None
    """HOST:PORT where Prometheus finds `/metrics`, and probes `/healthz` and `/livez`.

    A client needs no credential, and reads it in clear: numbers, and the names of tenants,
    namespaces and leases, never a token of a prompt. Port 0 is any that is
    free; the log's `http_listening` says which. Wrong when Prometheus shows the target as down.
    Absent: no metrics. Start with: 127.0.0.1:7401, or an address that the scraper alone reaches.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Returns the sources below the flags; the first one wins."""
        del init_settings, dotenv_settings, file_secret_settings
        return env_settings, ConfigFile(settings_cls)

    @property
    def bytes_of_a_tier2_extent(self) -> int:
        """The size in force of an extent in tier 2."""
        quarter = self.tier2_bytes // EXTENTS_IN_A_TIER
        return max(self.bytes_of_an_extent, min(quarter, LARGEST_EXTENT))

    def in_force(self) -> dict[str, object]:
        """Returns every setting's value; for an absent one, the value that applies instead."""
        values = {name: getattr(self, name) for name in Config.model_fields}
        values["extent_bytes"] = ByteSize(self.bytes_of_an_extent)
        values["journal_bytes"] = ByteSize(self.bytes_of_the_journal)
        on_gpu = self.cuda_device is not None
        values["tier2_match"] = self.tier2_match or ("promote" if on_gpu else "in-place")
        values["remote_write"] = self.remote_write_in_force
        if self.remote_url is not None:
            values["remote_state_dir"] = self.remote_state_folder
        return values

    @model_validator(mode="after")
    def _refuse_in_place_on_a_gpu(self) -> Self:
        if self.cuda_device is not None and self.tier2_match == "in-place":
            raise ValueError("tier2_match has to be promote where device is a GPU")
        return self
