"""An operator: removes prefixes and namespaces, pins by name, and looks at everything."""

from contextlib import AbstractContextManager, suppress

from kvstore_client import Admin, connect_admin
from kvstore_client.errors import StoreError
from kvstore_client.values.packed_tokens import pack_tokens
from simulation.kernel import Violation
from simulation.sockets import SimProcess
from simulation.world import World

# Seconds.
MEAN_PAUSE = 0.15
TIMEOUT = 0.3


class Operator:
    """One thread that connects without a lease, as an admin."""

    def __init__(self, world: World, process: SimProcess) -> None:
        self.process = process
        self.idle = False
        self._world = world
        process.spawn("main", self._run)

    def _run(self) -> None:
        kernel = self._world.kernel
        while self._world.busy:
            kernel.sleep(kernel.random.expovariate(1 / MEAN_PAUSE))
            with suppress(StoreError), self._connect() as admin:
                while self._world.busy:
                    self._act(admin)
                    kernel.sleep(kernel.random.expovariate(1 / MEAN_PAUSE))
        while not self.idle:
            with suppress(StoreError), self._connect() as admin:
                self._let_go(admin)
                self.idle = True

    def _connect(self) -> AbstractContextManager[Admin]:
        return connect_admin(self._world.folder, timeout=TIMEOUT)

    def _act(self, admin: Admin) -> None:
        chance = self._world.kernel.random
        spaces = [each.namespace_id for each in admin.namespaces()]
        if not spaces:
            return
        space = chance.choice(spaces)
        tokens = pack_tokens([1] * chance.choice((0, 3, 4, 8, 12)))
        name = chance.choice("ab")
        what = chance.random()
        if what < 0.02:
            admin.delete_namespace(space)
        elif what < 0.25:
            admin.evict_prefix(space, tokens)
        elif what < 0.5:
            ttl = chance.choice((None, 0.5))
            admin.pin_prefix(space, name, tokens, ttl=ttl, require_all=chance.random() < 0.3)
        elif what < 0.7:
            admin.unpin_prefix(space, name)
        elif what < 0.8:
            self._require_sums(admin)
        elif what < 0.9:
            list(admin.prefixes(space, max_tokens=8))
            admin.named_pins()
        else:
            admin.leases()
            admin.capabilities()

    def _require_sums(self, admin: Admin) -> None:
        stats = admin.stats()
        for arena in stats.arenas:
            states = (
                arena.free_slot_count,
                arena.reserved_slot_count,
                arena.cached_slot_count,
                arena.detached_slot_count,
                arena.moving_slot_count,
                arena.quarantined_slot_count,
            )
            if sum(states) != arena.slot_count:
                raise Violation("an arena's states do not sum to its slots")

    def _let_go(self, admin: Admin) -> None:
        """Ends all named pins, for what they keep is nobody's to evict."""
        for pin in admin.named_pins():
            admin.unpin_prefix(pin.namespace_id, pin.name)
