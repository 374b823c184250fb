"""The server's settings: flags, else environment, else a TOML file, else defaults.

A flag ``--tier1-bytes 2GiB`` is ``KVSTORE_TIER1_BYTES=2GiB`` in the environment
and ``tier1_bytes = "2GiB"`` in the file.
"""

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ByteSize, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from kvstore.config_about import AT_SIGHUP, CONTENT_AT_SIGHUP, Shown
from kvstore.config_access import AccessSettings
from kvstore.config_http import HttpSettings
from kvstore.config_leases import LeaseSettings
from kvstore.config_sources import ConfigFile
from kvstore.config_tiers import TierSettings
from kvstore.config_types import (
    Device,
    FilePath,
    FolderPath,
    Share,
    Size,
    TierSize,
)

PROGRAM = "kvstore-server"
# So many extents share the first tier's memory where no size of one is set: the first
# prompt of a worker fits at once, and several tenants or models still find room.
EXTENTS_IN_A_TIER = 4
# Prefaulting takes about a second for so much, during which nothing else grows.
LARGEST_EXTENT = 4 << 30


def default_runtime_dir() -> Path:
    """Return ``$XDG_RUNTIME_DIR/kvstore``, else ``/tmp/kvstore-UID``."""
    if session_dir := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(session_dir) / "kvstore"
    return Path("/tmp") / f"kvstore-{os.geteuid()}"  # noqa: S108 - made with mode 0700, checked


class StoreSettings(BaseSettings):
    """The settings of a store, without those of who may call it."""

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
        FilePath | None, CONTENT_AT_SIGHUP, Shown(log="config_reloaded config_not_read")
    ] = None
    """A TOML file with any of these settings but this one.

    Read again at SIGHUP; `kvstore-server config --toml` writes one. Absent: none is read.
    Start with: none.
    """

    runtime_dir: Annotated[
        FolderPath,
        Shown(metrics="kvstore_attached_processes", stats="leases", log="process_attached"),
    ] = Field(default_factory=default_runtime_dir)
    """Folder of the sockets, mode 0700, one a server; its path has at most 94 bytes.

    Wrong when clients stay disconnected: both sides have to name the same one.
    Absent: $XDG_RUNTIME_DIR/kvstore, else /tmp/kvstore-UID. Start with: that.
    """

    device: Annotated[
        Device, Shown(metrics="kvstore_slots", stats="arenas", log="device_memory_awaited")
    ] = "cpu"
    """Where the first tier's pages are: `cpu`, or `cuda:N` for the memory of a GPU.

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
        Shown(
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
        Shown(
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
        Shown(
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
        Shown(
            metrics="kvstore_call_duration_seconds",
            stats="matched_token_count",
            log="request_handled",
        ),
    ] = "radix"
    """How cached prefixes are found: by a tree of runs of pages, or by a digest of each page.

    Both answer the same; `hash` is vLLM's way, for comparison, and takes several times the
    time and the memory for long prompts. Start with: radix.
    """

    eviction_policy: Annotated[
        Literal["auto", "gdsf", "level", "lfu", "lru", "slru"],
        Shown(
            metrics="kvstore_returned_pages_total kvstore_thrash_ratio",
            stats="returned_page_count evicted_page_count",
        ),
    ] = "auto"
    """Which pages go first where room is needed; always from the end of a path, none that is held.

    `auto` weighs what came back before, and callers' hints, by what its evictions turn out
    to be worth; docs/eviction.md has all of them, measured. Wrong when
    `returned_page_count` grows much faster than with another one. Start with: auto.
    """

    verify_rate: Annotated[
        Share,
        AT_SIGHUP,
        Shown(
            metrics="kvstore_verified_pages_total kvstore_corrupt_pages_total",
            stats="verified_page_count corrupt_page_count",
            log="page_corrupt",
        ),
    ] = 0.005
    """Which part of the pages that a match answers is read and compared with what was written.

    Of pages whose writer gave a checksum; 0 switches it off, 1 reads all. Bytes are read
    outside the store's mutex, and a match waits for it.
    Too low when `verified_page_count` stands still; too high when matches take longer than
    a prompt is worth. Start with: 0.005, and 1 while looking for whoever writes where it
    should not, whom `corrupt_page_count` and `page_corrupt` in the log show.
    """

    debug_poison_freed_slots: Annotated[
        bool, Shown(metrics="kvstore_mutex_wait_seconds", log="slot_not_poisoned")
    ] = False
    """Fill each slot that is given back with bytes 0xDB, so that a late reader sees it at once.

    Takes the time of writing a page, under the store's mutex, for each page that is evicted or
    aborted. Start with: false.
    """

    log_format: Annotated[
        Literal["console", "json"], AT_SIGHUP, Shown(log="server_started config_reloaded")
    ] = "console"
    """Lines for people or for machines. Start with: console by hand, json under a supervisor."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], AT_SIGHUP, Shown(log="request_handled")
    ] = "info"
    """Least severe events shown; debug has a line for each request. Start with: info."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources below the flags, the first wins."""
        del init_settings, dotenv_settings, file_secret_settings
        return env_settings, ConfigFile(settings_cls)


class Config(HttpSettings, AccessSettings, LeaseSettings, TierSettings, StoreSettings):
    """Settings of one server. Times are in seconds, sizes in bytes or like "512MiB".

    --tier1-bytes is KVSTORE_TIER1_BYTES in the environment, tier1_bytes in the file.
    `kvstore-server config` shows all that are in force, and explains each.
    """

    @property
    def bytes_of_a_tier2_extent(self) -> int:
        """The size in force of the pieces of tier 2."""
        quarter = self.tier2_bytes // EXTENTS_IN_A_TIER
        return max(self.bytes_of_an_extent, min(quarter, LARGEST_EXTENT))

    def in_force(self) -> dict[str, object]:
        """Return every setting's value; of those that are absent, what holds without them."""
        values = {name: getattr(self, name) for name in Config.model_fields}
        values["extent_bytes"] = ByteSize(self.bytes_of_an_extent)
        on_gpu = self.cuda_device is not None
        values["tier2_match"] = self.tier2_match or ("promote" if on_gpu else "in-place")
        return values

    @model_validator(mode="after")
    def _refuse_in_place_on_a_gpu(self) -> Self:
        if self.cuda_device is not None and self.tier2_match == "in-place":
            raise ValueError("tier2_match has to be promote where device is a GPU")
        return self
