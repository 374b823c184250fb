"""The server's settings of the tiers beyond the first."""

from typing import Annotated, Literal, Self

from pydantic import ByteSize, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kvstore.config_about import Shown
from kvstore.config_types import FilePath, NumaNode, OptionalTierSize
from kvstore.core.wanted_moves import TierPolicy, WritePolicy


class TierSettings(BaseSettings):
    """How much tiers 2 and 3 have, and when pages go there and come back."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    tier2_bytes: Annotated[
        OptionalTierSize,
        Shown(
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
        Shown(metrics="kvstore_moved_pages_total", stats="demoted_page_count promoted_page_count"),
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
        Shown(
            metrics="kvstore_moved_pages_total kvstore_call_duration_seconds",
            stats="promoted_page_count",
        ),
    ] = None
    """What becomes of pages that a match finds in tier 2 alone.

    `in-place`: they are handed out where they are, and copied to tier 1 in the background
    when they are matched again. `promote`: they are copied to tier 1 first, and the match
    waits for it; what finds no room there is handed out in place by a store of host memory,
    and not at all by one of a GPU. Absent: promote on a GPU, else in-place, which is
    refused on a GPU. Start with: absent.
    """

    tier2_numa_node: Annotated[
        NumaNode, Shown(metrics="kvstore_move_seconds_total", log="numa_node_unusable")
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
        Shown(
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
        Shown(metrics="kvstore_tier3_up", stats="state", log="tier3_unusable slab_opened"),
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
        Shown(
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
        Shown(
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
        """Return how the tiers work together; None where there is one."""
        if not self.tier2_bytes:
            return None
        return TierPolicy(
            write=WritePolicy(self.tier2_write),
            in_place=not on_gpu,
            promote=on_gpu or self.tier2_match == "promote",
        )
