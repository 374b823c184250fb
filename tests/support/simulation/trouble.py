"""The faults of a schedule, drawn by chance: which, when and how often."""

from kvstore.core.values.requests import Caller, Identity
from simulation.world import World

# The most likely that a call meets a fault, in a schedule with that fault.
WIRE = {
    "lost_request": 0.08,
    "lost_answer": 0.08,
    "broken": 0.05,
    "slow": 0.1,
    "late": 0.08,
    "twice": 0.15,
}
ADMIN = Identity("operator", admin=True)
# Mean seconds between two of a kind, in a schedule that has them.
MEANS = {
    "kill": 0.8,
    "stop": 0.6,
    "cut": 0.6,
    "store": 1.0,
    "cut_off": 1.0,
    "expire": 0.6,
    "server": 0.4,
}
# Seconds that a process is stopped: now and then longer than its TTL.
MEAN_STOP = 0.4
MOST_WORKERS_STARTED = 3


class Trouble:
    """Begins, comes again and again, and ends."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._over = False
        chance = world.kernel.random
        for name, most in WIRE.items():
            if chance.random() < 0.5:
                setattr(world.faults, name, chance.random() * most)
        self._kinds = [each for each in MEANS if chance.random() < 0.5]

    def begin(self) -> None:
        """Begin."""
        for kind in self._kinds:
            self._again(kind)

    def end(self) -> None:
        """Ends all of it: the network is well, and whoever is stopped goes on in its time."""
        self._over = True
        for name in WIRE:
            setattr(self._world.faults, name, 0.0)

    def _again(self, kind: str) -> None:
        kernel = self._world.kernel

        def act() -> None:
            if not self._over:
                getattr(self, f"_{kind}")()
                self._again(kind)

        kernel.after(kernel.random.expovariate(1 / MEANS[kind]), act)

    def _kill(self) -> None:
        world = self._world
        if processes := world.worker_processes():
            world.kill_worker(world.kernel.random.choice(processes))
            if world.counts["killed_workers"] < MOST_WORKERS_STARTED:
                world.start_worker()

    def _stop(self) -> None:
        world = self._world
        if processes := world.worker_processes():
            process = world.kernel.random.choice(processes)
            process.stop(world.kernel.random.expovariate(1 / MEAN_STOP))
            world.count("stopped_workers")
            world.kernel.note(process.name, "stopped")

    def _cut(self) -> None:
        world = self._world
        if processes := world.worker_processes():
            process = world.kernel.random.choice(processes)
            process.hang_up()
            world.count("cut_connections")

    def _cut_off(self) -> None:
        """Loses all calls of all for a while."""
        world, kernel = self._world, self._world.kernel
        before = world.faults.lost_request
        world.faults.lost_request = 1.0
        world.count("outages")

        def mend() -> None:
            if not self._over:
                world.faults.lost_request = 0.0 if before == 1.0 else before

        kernel.after(kernel.random.expovariate(1 / 0.3), mend)

    def _expire(self) -> None:
        """Ends a lease as an admin, without its secret, which is an expiry."""
        world = self._world
        node = world.store()
        leases = [] if node is None else node.leases()
        if node is not None and leases:
            lease = world.kernel.random.choice(leases)
            node.store.revoke(Caller(ADMIN, lease.lease_id, b"", None))
            world.count("expired_leases")
            world.kernel.note(lease.display_name, "expired by an admin")

    def _server(self) -> None:
        """Ends the server of a store that outlives it. The next one follows."""
        world, kernel = self._world, self._world.kernel
        node = world.store()
        if node is None or not node.outlives:
            return
        node.end_server()
        world.count("ended_servers")
        kernel.note("server ended")
        kernel.after(kernel.random.expovariate(1 / 0.05), node.start_server)

    def _store(self) -> None:
        world, kernel = self._world, self._world.kernel
        world.kill_store()
        kernel.after(kernel.random.expovariate(1 / 0.2), world.start_store)
