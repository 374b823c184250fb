"""A ring of records against a deque: the same payloads in the same order, whatever comes."""

from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from hypothesis.strategies import DataObject, data, integers, sampled_from

from kvstore.ring import RecordRing, RingFollower, RingRecord
from rings.ring_model import NUMBER_BYTES, RingModel, number_of, segments


class RingMachine(RuleBasedStateMachine):
    """Records are numbered. At most half of the ring's capacity is live."""

    @initialize(count=integers(1, 4), size=sampled_from([1024, 1040, 2048]))
    def create(self, count: int, size: int) -> None:
        """Creates a tiny ring."""
        self.memory = segments(count, size)
        self.model = RingModel(self.memory)
        self.follower = RingFollower(self.memory)
        self.count = 0

    def live(self) -> list[int]:
        """Returns the numbers of live records."""
        numbers = (number_of(each) for each in self.model.records)
        return [number for number in numbers if number not in self.model.dead]

    @rule(share=integers(0, 100), times=integers(1, 12))
    def append(self, share: int, times: int) -> None:
        """Appends records of one size; the oldest live ones die if too many bytes would be live."""
        size = (self.model.ring.largest_bytes - NUMBER_BYTES) * share // 100
        for _ in range(times):
            step = NUMBER_BYTES + size + 31 & -16
            while 2 * (self.model.live_bytes() + step) > self.model.ring.capacity_bytes:
                self.model.dead.add(self.live()[0])
            self.model.append(self.count, size)
            self.count += 1
            assert self.model.ring.used_bytes <= self.model.ring.capacity_bytes

    @precondition(lambda self: self.live())
    @rule(draw=data())
    def die(self, draw: DataObject) -> None:
        """Makes a live record dead."""
        self.model.dead.add(draw.draw(sampled_from(self.live())))

    @precondition(lambda self: set(self.live()) - self.model.ended)
    @rule(draw=data())
    def end(self, draw: DataObject) -> None:
        """Ends a live record."""
        numbers = sorted(set(self.live()) - self.model.ended)
        self.model.end(draw.draw(sampled_from(numbers)))

    @precondition(lambda self: self.live())
    @rule(draw=data())
    def shrink(self, draw: DataObject) -> None:
        """Makes the cleaner write a smaller payload in place of a record."""
        number = draw.draw(sampled_from(self.live()))
        size = min(
            len(each) - NUMBER_BYTES for each in self.model.records if number_of(each) == number
        )
        self.model.smaller[number] = draw.draw(integers(0, size))

    @rule(count=integers(0, 20))
    def clean(self, count: int) -> None:
        """Cleans some records."""
        before = self.model.ring.used_bytes
        freed = self.model.ring.clean(count)
        assert self.model.ring.used_bytes == before - freed

    @rule()
    def reopen(self) -> None:
        """Opens the memory as another start does."""
        head, tail = self.model.ring.head, self.model.ring.tail
        self.model.reopen(self.memory)
        assert (self.model.ring.head, self.model.ring.tail) == (head, tail)

    @rule()
    def follow(self) -> None:
        """Reads what is new, and knows all payloads then."""
        self.follower.follow()
        payloads = [each.payload for each in self.follower.records.values()]
        assert [each for each in payloads if each is not None] == list(self.model.records)

    @rule()
    def reopen_with_a_head_start(self) -> None:
        """Opens the memory with what was read before, however long ago."""
        seen: list[RingRecord] = []
        keep = self.model.still_live, seen.append, self.model.still_ended
        ring = RecordRing.open(self.memory, *keep, self.follower.records)
        assert seen == list(ring.records()) == list(self.model.ring.records())
        self.model.ring = ring

    @invariant()
    def the_records_are_the_models(self) -> None:
        """Every record is there, in its order, and no other."""
        self.model.check()


TestRecordRing = RingMachine.TestCase
TestRecordRing.settings = settings(stateful_step_count=40)
