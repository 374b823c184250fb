"""What goes wrong, when, and how often: by chance, other in each schedule."""

from typing import TYPE_CHECKING

from kvstore.core.values.requests import Caller, Identity

if TYPE_CHECKING:
    from simulation.schedule import Schedule

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
MEANS = {"kill": 0.8, "stop": 0.6, "cut": 0.6, "store": 1.0, "cut_off": 1.0, "expire": 0.6}
# Seconds that a process is stopped: now and then longer than its TTL.
MEAN_STOP = 0.4
MOST_WORKERS_STARTED = 3


class Trouble:
    """Begins, comes again and again, and ends."""

    def __init__(self, schedule: "Schedule") -> None:
        self._schedule = schedule
        self._over = False
        chance = schedule.kernel.random
        for name, most in WIRE.items():
            if chance.random() < 0.5:
                setattr(schedule.faults, name, chance.random() * most)
        self._kinds = [each for each in MEANS if chance.random() < 0.5]

    def begin(self) -> None:
        """Begin."""
        for kind in self._kinds:
            self._again(kind)

    def end(self) -> None:
        """Ends all of it: the network is well, and whoever is stopped goes on in its time."""
        self._over = True
        for name in WIRE:
            setattr(self._schedule.faults, name, 0.0)

    def _again(self, kind: str) -> None:
        kernel = self._schedule.kernel

        def act() -> None:
            if not self._over:
                getattr(self, f"_{kind}")()
                self._again(kind)

        kernel.after(kernel.random.expovariate(1 / MEANS[kind]), act)

    def _kill(self) -> None:
        schedule = self._schedule
        if schedule.workers:
            schedule.kill_worker(schedule.kernel.random.choice(schedule.workers))
            if schedule.counts["killed_workers"] < MOST_WORKERS_STARTED:
                schedule.start_worker()

    def _stop(self) -> None:
        schedule = self._schedule
        if schedule.workers:
            worker = schedule.kernel.random.choice(schedule.workers)
            worker.process.stop(schedule.kernel.random.expovariate(1 / MEAN_STOP))
            schedule.count("stopped_workers")
            schedule.kernel.note(worker.process.name, "stopped")

    def _cut(self) -> None:
        schedule = self._schedule
        if schedule.workers:
            worker = schedule.kernel.random.choice(schedule.workers)
            worker.process.hang_up()
            schedule.count("cut_connections")

    def _cut_off(self) -> None:
        """Loses all calls of all for a while."""
        schedule, kernel = self._schedule, self._schedule.kernel
        before = schedule.faults.lost_request
        schedule.faults.lost_request = 1.0
        schedule.count("outages")

        def mend() -> None:
            if not self._over:
                schedule.faults.lost_request = 0.0 if before == 1.0 else before

        kernel.after(kernel.random.expovariate(1 / 0.3), mend)

    def _expire(self) -> None:
        """Have an admin end a lease without its secret, which is an expiry."""
        schedule = self._schedule
        node = schedule.store()
        leases = [] if node is None else node.leases()
        if node is not None and leases:
            lease = schedule.kernel.random.choice(leases)
            node.store.revoke(Caller(ADMIN, lease.lease_id, b"", None))
            schedule.count("expired_leases")
            schedule.kernel.note(lease.display_name, "expired by an admin")

    def _store(self) -> None:
        schedule, kernel = self._schedule, self._schedule.kernel
        schedule.kill_store()
        kernel.after(kernel.random.expovariate(1 / 0.2), schedule.start_store)
