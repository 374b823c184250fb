"""The state of the cache: one set of tables and counters, which every verb works on."""

from kvstore.core.index.node import Node, Position
from kvstore.core.index.usage import note_use
from kvstore.core.journal.journal import Journal
from kvstore.core.leases.holds import Pin
from kvstore.core.leases.lease import Lease, LeaseState
from kvstore.core.leases.lease_table import LeaseTable
from kvstore.core.leases.mappings import Mappings
from kvstore.core.leases.named_pins import NamedPinTable
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.disk_state import DiskState
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import remove
from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.pool.tenant import ByTenant, TenantKeys, no_key
from kvstore.core.pool.tier_policy import TierPolicy, WantedMoves
from kvstore.core.values.counters import Counters, count_lookup
from kvstore.core.values.event_log import Cause, EventLog
from kvstore.core.values.limits import Limits, QuotaTable
from kvstore.core.values.requests import Caller, Identity, Removed
from kvstore.core.values.tokens import TOKEN_BYTES, token_count
from kvstore.errors import LeaseNotFound, LimitExceeded, NamespaceNotFound, StaleEpoch

ONE_TIER = TierPolicy()
# The holds of ended leases that go back in one step: half a millisecond
# (benchmarks/results/0052-background-work-gives-way.md).
HOLDS_AT_ONCE = 128
# The work of removing corrupt pages in one step, as ``removal_work`` counts it: half a millisecond.
WORK_AT_ONCE = 256


class CacheState:
    """The tables, counters and events of one epoch's cache. Not thread-safe.

    ``counters`` are the totals. ``ended`` sums the counters of leases that ended, so that sums
    over leases stay equal to the totals. ``deleted`` has, by tenant, the counters of deleted
    namespaces, and ``leaving`` are those of them with pages that somebody still holds. The
    journal has rows of ``deleted_rows``, which are deleted namespaces.
    ``removed_pages`` counts removed pages by cause. ``use_count`` counts uses of pages; a
    node's last use is one of these numbers. ``wanted`` is None without a tier 2, ``disk`` without
    a disk, and ``journal`` without a journal. ``holds_at_once`` of ended leases go back in a step.
    ``condemned`` are namespaces that may have condemned nodes, of which ``work_at_once`` is removed
    in a step.
    """

    def __init__(
        self,
        epoch: int,
        limits: Limits,
        quotas: QuotaTable | None = None,
        *,
        tier_policy: TierPolicy | None = None,
        page_stores: int = 0,
        tenant_key: TenantKeys = no_key,
    ) -> None:
        """Without ``quotas`` all tenants have the default ones."""
        self.journal: Journal | None = None
        self.epoch = epoch
        self.limits = limits
        self.quotas = QuotaTable() if quotas is None else quotas
        self.events = EventLog(limits)
        self.counters = Counters()
        self.ended = Counters()
        self.deleted: dict[str, Counters] = {}
        self.removed_pages: dict[Cause, int] = {}
        self.use_count = 0
        self.holds_at_once = HOLDS_AT_ONCE
        self.condemned: dict[Namespace, None] = {}
        self.work_at_once = WORK_AT_ONCE
        self.table = LeaseTable(limits, self.quotas, tenant_key)
        self.mappings = Mappings()
        self.named_pins = NamedPinTable()
        self.namespaces: dict[bytes, Namespace] = {}
        self.namespaces_of = ByTenant[bytes, Namespace]()
        self.leaving: list[Namespace] = []
        self.deleted_rows: list[Namespace] = []
        self.arenas: dict[int, Arena] = {}
        self.arenas_of = ByTenant[int, Arena]()
        self.wanted = None if tier_policy is None else WantedMoves(tier_policy)
        self.disk = DiskState(page_stores) if page_stores else None

    def journal_to(self, journal: Journal | None) -> None:
        """Writes what changes from now on to a journal, which has all that there is."""
        self.journal = journal
        self.mappings.journal_to(journal)
        self.named_pins.journal_to(journal)
        if self.disk is not None:
            self.disk.journal_to(journal)
        for namespace in (*self.namespaces.values(), *self.leaving):
            namespace.journal = journal

    @property
    def tiers(self) -> tuple[int, ...]:
        """The tiers that a namespace has arenas in."""
        return (FIRST,) if self.wanted is None else (FIRST, LOWER)

    @property
    def tier_policy(self) -> TierPolicy:
        """The policy of the tiers, or the default one if there is only one tier."""
        return ONE_TIER if self.wanted is None else self.wanted.policy

    def require_epoch(self, epoch: int | None) -> None:
        """Raises :class:`StaleEpoch` if a request is for another epoch."""
        if epoch != self.epoch:
            raise StaleEpoch(store_epoch=self.epoch, request_epoch=epoch)

    def lease_of(self, caller: Caller) -> Lease:
        """Returns the caller's lease, even past its TTL.

        Raises :class:`StaleEpoch` or :class:`LeaseNotFound`.
        """
        if caller.epoch != self.epoch:
            self.require_epoch(caller.epoch)
        return self.table.find(caller)

    def member(self, caller: Caller) -> Lease:
        """Returns the caller's lease, which may take part in the request path.

        Raises LeaseExpired or NotAttached, besides the errors of :meth:`lease_of`.
        """
        if caller.epoch != self.epoch:
            self.require_epoch(caller.epoch)
        lease = self.table.leases.get((caller.identity.tenant, caller.lease_id))
        if lease is None or not lease.knows(caller):
            raise LeaseNotFound(lease_id=caller.lease_id.hex())
        if lease.state is LeaseState.EXPIRED or not lease.processes or lease.suspended:
            lease.require_active()
            lease.require_attached()
        return lease

    def own(self, lease: Lease, namespace_id: bytes) -> Namespace:
        """Returns a namespace of the lease's tenant; raises NamespaceNotFound."""
        namespace = self.namespaces.get(namespace_id)
        if namespace is None or namespace.tenant != lease.tenant:
            raise NamespaceNotFound(namespace_id=namespace_id.hex())
        return namespace

    def namespace(self, identity: Identity, namespace_id: bytes) -> Namespace:
        """Returns a namespace that the identity may see; raises NamespaceNotFound."""
        namespace = self.namespaces.get(namespace_id)
        if namespace is None or not identity.sees(namespace.tenant):
            raise NamespaceNotFound(namespace_id=namespace_id.hex())
        return namespace

    def visible_namespaces(self, identity: Identity) -> list[Namespace]:
        """Returns the namespaces that the identity may see, by time of creation."""
        mine = self.namespaces if identity.admin else self.namespaces_of.of(identity.tenant)
        return list(mine.values())

    def visible_arenas(self, identity: Identity) -> list[Arena]:
        """Returns the arenas that the identity may see."""
        mine = self.arenas if identity.admin else self.arenas_of.of(identity.tenant)
        return list(mine.values())

    def count_answer(self, lease: Lease, pin: Pin) -> None:
        """Counts a match that was held back and whose answer is given now."""
        assert pin.unanswered is not None  # the caller knows
        count_lookup(pin.unanswered.lookup, self.counters, pin.namespace.counters, lease.counters)
        pin.unanswered = None

    def length(self, tokens: bytes, position: int) -> int:
        """Returns the number of tokens of a sequence whose ``tokens`` start at ``position``.

        Raises InvalidField, or LimitExceeded above ``max_tokens``.
        """
        if len(tokens) % TOKEN_BYTES:
            token_count(tokens)
        count = position + len(tokens) // TOKEN_BYTES
        if count > self.limits.max_tokens:
            raise LimitExceeded(limit="max_tokens", maximum=self.limits.max_tokens, value=count)
        return count

    def touch(self, at: Position, hits: int = 0) -> None:
        """Makes ``at``'s path the most recently used, with ``hits`` more hits."""
        self.use_count += 1
        node, pages = at
        if pages < len(node.slots):
            note_use(node, pages, self.use_count, hits)
        else:
            # ``note_use`` does the same. Most matches end with a node.
            node.last_use = self.use_count
            node.hits += hits

    def remove_pages(self, namespace: Namespace, tops: list[Node], cause: Cause) -> Removed:
        """Removes nodes and everything below them from a namespace's index, and counts that."""
        # From the end: 200,000 siblings take 2.7 s. From the start they take 6.7 s, since each
        # removal moves the rest up.
        above = dict.fromkeys(top.parent for top in tops)
        removals = [remove(top, cause) for top in reversed(tops)]
        for node in above:
            assert node is not None  # the root stays
            namespace.index.compact(node)
        removed = Removed(
            sum(each.evicted_page_count for each in removals),
            sum(each.detached_page_count for each in removals),
        )
        self.count_removed(namespace, removed, cause)
        return removed

    def count_removed(self, namespace: Namespace, removed: Removed, cause: Cause) -> None:
        """Counts pages that left a namespace's index for good, and not to make room."""
        total = removed.evicted_page_count + removed.detached_page_count
        namespace.counters.removed_page_count += total
        self.counters.removed_page_count += total
        self.removed_pages[cause] = self.removed_pages.get(cause, 0) + total
