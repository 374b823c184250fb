"""All leases, and all tenants' holdings."""

from kvstore.core.holdings import Holdings
from kvstore.core.lease import Lease, LeaseState, Process
from kvstore.core.values.limits import Limits, QuotaTable
from kvstore.core.values.requests import Caller, Identity
from kvstore.errors import IdReused, InvalidField, LeaseNotFound, QuotaExceeded


class LeaseTable:
    """All leases that have not ended, and what each tenant has.

    ``leases`` stand by tenant and id, in the order of granting: an id is one of its
    tenant's, and the same id of another tenant is another lease. ``holdings`` are
    there for tenants that have something, or had until lately.
    """

    def __init__(self, limits: Limits, quotas: QuotaTable) -> None:
        self.leases: dict[tuple[str, bytes], Lease] = {}
        self.processes: dict[int, Process] = {}
        self.holdings: dict[str, Holdings] = {}
        self._limits = limits
        self._quotas = quotas
        self._granted = 0

    def grant(self, caller: Caller, display_name: str, now: float) -> Lease:
        """Return the lease of the caller's id, made if it is new.

        Raises :class:`IdReused` (another secret), :class:`LeaseExpired`,
        :class:`QuotaExceeded` or Tombstoned.
        """
        lease = self.lease_of(caller)
        if lease is not None:
            if not lease.knows(caller):
                raise IdReused(lease_id=caller.lease_id.hex())
            lease.require_active()
            return lease
        holdings = self.holdings_of(caller.identity)
        lease_id = caller.lease_id
        holdings.lease_tombstones.require_none(lease_id, lease_id=lease_id.hex())
        holdings.require_lease_room()
        self._granted += 1
        lease = Lease(self._granted, caller, display_name, holdings, limits=self._limits, now=now)
        self.leases[lease.tenant, lease_id] = holdings.leases[lease_id] = lease
        # Where there was nothing of the tenant the holdings are new.
        self.holdings[lease.tenant] = holdings
        return lease

    def holdings_of(self, identity: Identity) -> Holdings:
        """Return what the identity's tenant has; nothing, where nothing is known of it."""
        tenant = identity.tenant
        known = self.holdings.get(tenant)
        return Holdings(tenant, self._quotas.of(tenant), self._limits) if known is None else known

    def take_rates(self, quotas: QuotaTable) -> None:
        """Have other quotas, of which nothing but rates of requests may differ."""
        self._quotas = quotas
        for holdings in self.holdings.values():
            holdings.quotas = quotas.of(holdings.tenant)

    def lease_of(self, caller: Caller) -> Lease | None:
        """Return the lease of the caller's tenant and id, whoever has its secret."""
        return self.leases.get((caller.identity.tenant, caller.lease_id))

    def has(self, lease: Lease) -> bool:
        """Return whether a lease has not ended."""
        return self.leases.get((lease.tenant, lease.lease_id)) is lease

    def visible_holdings(self, identity: Identity) -> list[Holdings]:
        """Return what the identity's tenant has; for an admin, what every tenant has."""
        if identity.admin:
            return list(self.holdings.values())
        return [self.holdings_of(identity)]

    def named(self, lease_id: bytes) -> list[Lease]:
        """Return the leases of this id of all tenants."""
        mine = (each.leases.get(lease_id) for each in self.holdings.values())
        return [each for each in mine if each is not None]

    def renew(self, lease: Lease, now: float) -> float:
        """Count the lease's TTL from now on and return it, in seconds."""
        lease.renewed_at = now
        return lease.ttl

    def find(self, caller: Caller) -> Lease:
        """Return the caller's lease; raises :class:`LeaseNotFound`.

        An unknown id and a wrong secret are told apart by nothing.
        """
        lease = self.leases.get((caller.identity.tenant, caller.lease_id))
        if lease is None or not lease.knows(caller):
            raise LeaseNotFound(lease_id=caller.lease_id.hex())
        return lease

    def bind(self, lease: Lease, process: Process) -> None:
        """Attach a process; raises :class:`QuotaExceeded`."""
        if len(lease.processes) >= self._limits.max_processes_per_lease:
            raise QuotaExceeded(
                quota="processes_per_lease", maximum=self._limits.max_processes_per_lease
            )
        lease.processes[process.process_id] = process
        self.processes[process.process_id] = process

    def unbind(self, process_id: int) -> Lease | None:
        """Forget a dead process and return its lease; None if it is not known."""
        process = self.processes.pop(process_id, None)
        if process is None:
            return None
        del process.lease.processes[process_id]
        return process.lease

    def remove(self, lease: Lease, now: float) -> None:
        """Forget a lease that ended, and leave a tombstone."""
        for process_id in list(lease.processes):
            self.unbind(process_id)
        del self.leases[lease.tenant, lease.lease_id], lease.holdings.leases[lease.lease_id]
        lease.holdings.lease_tombstones.leave(lease.lease_id, now)

    def leave_tombstone(self, caller: Caller, now: float) -> None:
        """Let nobody of the caller's tenant be granted its lease id."""
        holdings = self.holdings_of(caller.identity)
        holdings.lease_tombstones.leave(caller.lease_id, now)
        self.holdings[holdings.tenant] = holdings

    def expire_tombstones(self, now: float) -> None:
        """Drop old tombstones, and tenants of whom nothing is left."""
        for holdings in list(self.holdings.values()):
            holdings.tombstones.expire(now)
            if holdings.is_empty():
                del self.holdings[holdings.tenant]

    def overdue(self, now: float) -> list[Lease]:
        """Return the active leases past their TTL, and the expired ones that are forsaken."""
        return [
            each
            for each in self.leases.values()
            if (
                each.renewed_at + each.ttl <= now
                if each.state is LeaseState.ACTIVE
                else each.forsaken
            )
        ]

    def visible(self, identity: Identity) -> list[Lease]:
        """Return the leases that an identity may see, by time of granting."""
        mine = self.leases if identity.admin else self.holdings_of(identity).leases
        return list(mine.values())

    def listed(self, identity: Identity, lease_id: bytes, tenant: str) -> Lease:
        """Return the one lease of this id that an identity may see, of ``tenant`` if that is told.

        Raises :class:`LeaseNotFound`, or :class:`InvalidField` where several tenants
        have chosen the id, which only an admin sees.
        """
        named = [each for each in self.named(lease_id) if identity.sees(each.tenant)]
        found = [each for each in named if tenant in ("", each.tenant)]
        if not found:
            raise LeaseNotFound(lease_id=lease_id.hex())
        if len(found) > 1:
            why = "several tenants have a lease of this id"
            raise InvalidField(field="tenant", value=tenant, why=why)
        return found[0]
