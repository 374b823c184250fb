"""All leases, and all tenants that have something."""

from collections import deque

from kvstore.core.leases.ended_lease import EndedLease
from kvstore.core.leases.lease import Lease, LeaseState, Process
from kvstore.core.pool.tenant import ByTenant, Tenant, TenantKeys, no_key
from kvstore.core.values.limits import Limits, QuotaTable
from kvstore.core.values.requests import Caller, Identity
from kvstore.errors import IdReused, InvalidField, LeaseNotFound, QuotaExceeded


class LeaseTable:
    """The leases that have not ended, their processes, and the tenants. Not thread-safe.

    ``leases`` are by tenant and id, in the order of granting. Two tenants may choose the same
    id; these are two leases. ``granted_count`` leases were ever granted. ``ending`` are leases that
    ended and still hold something, the first one first.
    ``tenants`` are those that have something, or had until lately. ``key_of`` returns the key
    of a tenant by its name.
    """

    def __init__(self, limits: Limits, quotas: QuotaTable, key_of: TenantKeys = no_key) -> None:
        self.leases: dict[tuple[str, bytes], Lease] = {}
        self.leases_of = ByTenant[bytes, Lease]()
        self.ending: deque[EndedLease] = deque()
        self.processes: dict[int, Process] = {}
        self.tenants: dict[str, Tenant] = {}
        self._limits = limits
        self._quotas = quotas
        self._key_of = key_of
        self.granted_count = 0

    def grant(self, caller: Caller, display_name: str, now: float) -> Lease:
        """Returns the lease of the caller's id, made if it is new.

        Raises :class:`IdReused` (another secret), :class:`LeaseExpired`,
        :class:`QuotaExceeded` or Tombstoned.
        """
        lease = self.lease_of(caller)
        if lease is not None:
            if not lease.knows(caller):
                raise IdReused(lease_id=caller.lease_id.hex())
            lease.require_active()
            return lease
        owner = self.tenant_of(caller.identity)
        lease_id = caller.lease_id
        owner.lease_tombstones.require_none(lease_id, lease_id=lease_id.hex())
        owner.require_lease_room()
        self.granted_count += 1
        lease = Lease(self.granted_count, caller, display_name, owner, limits=self._limits, now=now)
        self.add(lease)
        return lease

    def add(self, lease: Lease) -> None:
        """Adds a lease, and counts it for its tenant."""
        self.leases[lease.tenant, lease.lease_id] = lease
        self.leases_of.add(lease.tenant, lease.lease_id, lease)
        lease.owner.lease_count += 1
        # A tenant that had nothing so far is new.
        self.tenants[lease.tenant] = lease.owner

    def tenant_of(self, identity: Identity) -> Tenant:
        """Returns the identity's tenant, or a new one if it has nothing."""
        tenant = identity.tenant
        known = self.tenants.get(tenant)
        if known is not None:
            return known
        return Tenant(tenant, self._quotas.of(tenant), self._limits, self._key_of(tenant))

    def take_rates(self, quotas: QuotaTable) -> None:
        """Replaces the quotas by others that differ in request rates only."""
        self._quotas = quotas
        for tenant in self.tenants.values():
            tenant.quotas = quotas.of(tenant.name)

    def lease_of(self, caller: Caller) -> Lease | None:
        """Returns the lease of the caller's tenant and id, without a check of its secret."""
        return self.leases.get((caller.identity.tenant, caller.lease_id))

    def has(self, lease: Lease) -> bool:
        """Returns True if a lease has not ended."""
        return self.leases.get((lease.tenant, lease.lease_id)) is lease

    def visible_tenants(self, identity: Identity) -> list[Tenant]:
        """Returns the identity's tenant, or every tenant for an admin."""
        if identity.admin:
            return list(self.tenants.values())
        return [self.tenant_of(identity)]

    def named(self, lease_id: bytes) -> list[Lease]:
        """Returns the leases of this id of all tenants."""
        mine = (self.leases.get((tenant, lease_id)) for tenant in self.tenants)
        return [each for each in mine if each is not None]

    def renew(self, lease: Lease, now: float) -> float:
        """Starts the lease's TTL anew at ``now`` and returns it, in seconds."""
        lease.renewed_at = now
        return lease.ttl

    def find(self, caller: Caller) -> Lease:
        """Returns the caller's lease; raises :class:`LeaseNotFound`.

        Nothing tells an unknown id from a wrong secret.
        """
        lease = self.leases.get((caller.identity.tenant, caller.lease_id))
        if lease is None or not lease.knows(caller):
            raise LeaseNotFound(lease_id=caller.lease_id.hex())
        return lease

    def bind(self, lease: Lease, process: Process) -> None:
        """Attaches a process; raises :class:`QuotaExceeded`."""
        if len(lease.processes) >= self._limits.max_processes_per_lease:
            raise QuotaExceeded(
                quota="processes_per_lease", maximum=self._limits.max_processes_per_lease
            )
        lease.processes[process.process_id] = process
        self.processes[process.process_id] = process

    def unbind(self, process_id: int) -> Lease | None:
        """Removes a dead process and returns its lease, or None if it is unknown."""
        process = self.processes.pop(process_id, None)
        if process is None:
            return None
        del process.lease.processes[process_id]
        return process.lease

    def remove(self, lease: Lease, now: float) -> None:
        """Removes a lease that ends, and leaves a tombstone. What it holds has still to go back."""
        for process_id in list(lease.processes):
            self.unbind(process_id)
        del self.leases[lease.tenant, lease.lease_id]
        self.leases_of.drop(lease.tenant, lease.lease_id)
        lease.owner.lease_count -= 1
        lease.owner.lease_tombstones.leave(lease.lease_id, now)
        self.ending.append(EndedLease(lease))

    def holders(self, tenant: str) -> list[Lease]:
        """Returns the leases of a tenant that may hold something: also those that ended lately."""
        ended = [each.lease for each in self.ending if each.lease.tenant == tenant]
        return [*self.leases_of.of(tenant).values(), *ended]

    def leave_tombstone(self, caller: Caller, now: float) -> None:
        """Prevents that the caller's tenant is ever granted this lease id."""
        owner = self.tenant_of(caller.identity)
        owner.lease_tombstones.leave(caller.lease_id, now)
        self.tenants[owner.name] = owner

    def expire_tombstones(self, now: float) -> None:
        """Drops old tombstones, and tenants that have nothing left."""
        for tenant in list(self.tenants.values()):
            tenant.tombstones.expire(now)
            if tenant.is_empty():
                del self.tenants[tenant.name]

    def overdue(self, now: float) -> list[Lease]:
        """Returns the active leases past their TTL, and the expired ones that are forsaken."""
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
        """Returns the leases that an identity may see, by time of granting."""
        mine = self.leases if identity.admin else self.leases_of.of(identity.tenant)
        return list(mine.values())

    def listed(self, identity: Identity, lease_id: bytes, tenant: str) -> Lease:
        """Returns the one lease of this id that an identity may see, of ``tenant`` if given.

        Raises :class:`LeaseNotFound`. Raises :class:`InvalidField` if several tenants chose
        the id, which only an admin sees.
        """
        named = [each for each in self.named(lease_id) if identity.sees(each.tenant)]
        found = [each for each in named if tenant in ("", each.tenant)]
        if not found:
            raise LeaseNotFound(lease_id=lease_id.hex())
        if len(found) > 1:
            why = "several tenants have a lease of this id"
            raise InvalidField(field="tenant", value=tenant, why=why)
        return found[0]
