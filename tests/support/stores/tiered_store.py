"""A store of two tiers that a worker fills, and matches with a look at the bytes."""

from xxhash import xxh3_64_intdigest

from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.values.requests import Caller, Match, MatchOptions, Sequence
from kvstore.storage.arenas import Arenas
from kvstore.storage.cuda.device_memory import CudaDevice
from stores.store_world import World, Worlds, sequence_of

PAGES = 2


class Tiered:
    """A store with four slots in tier 1 and twenty in tier 2, and a worker that fills it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.caller: Caller = world.worker()
        self.namespace_id = world.open_namespace(self.caller)
        self._ids = iter(range(1, 10_000))

    def content(self, number: int, page: int) -> bytes:
        """Returns the bytes of a page."""
        return bytes([number * PAGES + page + 1]) * self.world.layout.page_bytes

    def sequence(self, number: int) -> Sequence:
        """Returns one sequence of two pages; none begins as another does."""
        return sequence_of(PAGES, salt=1000 * number)

    def write(self, number: int) -> None:
        """Publishes a sequence, and let the mover look."""
        self.publish(number)
        self.move()

    def publish(self, number: int) -> None:
        """Publishes a sequence, with what its pages' bytes come to."""
        sequence, pin_id, reservation_id = self.sequence(number), next(self._ids), next(self._ids)
        store = self.world.store
        _, grant = store.acquire(
            self.caller,
            self.namespace_id,
            sequence,
            MatchOptions(pin_id),
            reservation_id=reservation_id,
            total_page_count=PAGES,
        )
        assert grant is not None
        slots = [run.extent_id << 32 | index for run in grant.runs for index in run.indexes]
        contents = [self.content(number, page) for page in range(PAGES)]
        pages = zip(slots, map(memoryview, contents), strict=True)
        assert self.world.arenas.write_all(pages) == [None] * PAGES
        whole = Sequence(sequence.tokens[:-4])
        checksums = [xxh3_64_intdigest(each) for each in contents]
        store.insert(self.caller, reservation_id, whole, checksums=checksums)
        store.abort(self.caller, [reservation_id])

    def move(self) -> None:
        """Runs the mover's check if it is due, and grows memory."""
        if self.world.store.mover.due.is_set():
            self.world.store.mover.due.clear()
            self.world.store.mover.step()
        for growth in self.world.store.growths:
            growth.step()
        self.world.map_extents(self.caller)
        self.world.check()

    def match(self, number: int) -> Match:
        """Matches a sequence, compare its bytes, and releases it."""
        pin_id = next(self._ids)
        options = MatchOptions(pin_id)
        match = self.world.store.match(
            self.caller, self.namespace_id, self.sequence(number), options
        )
        for page, (extent_id, index) in enumerate(
            (run.extent_id, index) for run in match.runs for index in run.indexes
        ):
            slot = extent_id << 32 | index
            found = [each.read(slot) for each in self.memory()]
            assert self.content(number, page) in found
        self.world.store.release(self.caller, [pin_id])
        self.move()
        return match

    def memory(self) -> list[Arenas]:
        """Returns both tiers' memory."""
        assert self.world.lower is not None
        return [self.world.arenas, self.world.lower]

    def tiers(self, number: int) -> list[int]:
        """Returns the tier of each run that a match answers."""
        return [run.tier for run in self.match(number).runs]


def tiered(worlds: Worlds, *, device: CudaDevice | None = None, **policy: object) -> Tiered:
    """Return a store whose tier 1, of a device if there is one, is a quarter of what is written."""
    chosen = TierPolicy(low=0.3, high=0.6, **policy)  # type: ignore[arg-type]  # any of them
    sizes = {"slots": 4, "extent_slots": 4, "lower_slots": 20}
    return Tiered(worlds(**sizes, tier_policy=chosen, verify_rate=1.0, device=device))
