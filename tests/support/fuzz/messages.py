"""Requests that nobody means: messages of the contract with anything in them, then damaged."""

from array import array
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Choice = TypeVar("Choice")

# How much of a message is out of bounds: half of them are all but right.
WILDNESS = (0.0, 0.02, 0.1, 0.5)
# How deep messages are nested that are filled in.
DEPTH = 6
# Of two sequences of so few tokens many begin alike: they match, part and end within pages.
TOKEN_IDS = 3
LONGEST_SEQUENCE = 12
# Small numbers: ids that are met again, counts that fit.
SMALL = 12
# An id that was released is of no use any more: new ones come by and by.
DRAWN_WITH_AN_ID = 40
TEXTS = ("é" * 200, "\0", "\x1b[2J", "x" * 300, "../../etc/passwd", "{}" * 4000)
SIZES = (0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 65, 300, 5000)
COUNTS = (0, 1, 1, 1, 2, 3)
MANY = 1025
SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, (1 << 31) - 1),
}


class Messages:
    """Draws messages and damages their bytes, by ``random`` alone.

    ``known`` has values by the name of a field, such as the ids of a living lease:
    a field of that name mostly gets one of them, so that what is drawn comes far.
    """

    def __init__(self, random: Random, known: dict[str, Sequence[Any]]) -> None:
        self._random = random
        self.known = known
        # Lists of a length that has to fit something else, and what is refused without them.
        self.left_empty: Collection[str] = (
            *("page_checksums", "slot_offsets", "group_pages", "slots_reservation_id"),
        )
        self._wildness = 0.0
        self._drawn = 0

    def request(self, kind: type[Message]) -> bytes:
        """Returns the bytes of a message of this kind, of what was one, or of none."""
        if self._happens(0.05):
            return self.noise()
        self._wildness = self._random.choice(WILDNESS)
        self._drawn += 1
        raw = self.message(kind).SerializeToString()
        return self.damaged(raw) if self._happens(0.3) else raw

    def message(self, kind: type[Message]) -> Message:
        """Returns a message of this kind with anything in its fields."""
        drawn = kind()
        self._fill(drawn, DEPTH)
        return drawn

    def noise(self) -> bytes:
        """Returns bytes that mean nothing."""
        return self._random.randbytes(self._random.choice(SIZES))

    def damaged(self, raw: bytes) -> bytes:
        """Returns bytes with one to three faults."""
        damaged = bytearray(raw)
        for _ in range(self._random.randint(1, 3)):
            self._random.choice(self._faults)(self, damaged)
        return bytes(damaged)

    def _happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def _fill(self, message: Message, depth: int) -> None:
        left_out = self._left_out(message) if self._happens(0.95) else set()
        fields: Sequence[Any] = message.DESCRIPTOR.fields
        for field in fields:
            if depth and field.name not in left_out and not self._happens(self._wildness):
                self._set(message, field, depth)

    def _left_out(self, message: Message) -> set[str]:
        """Returns the fields that stand in place of others, all of each group but one or all."""
        left_out: set[str] = set()
        for group in message.DESCRIPTOR.oneofs:
            names = {each.name for each in group.fields}
            left_out |= names - {self._random.choice(("", *sorted(names)))}
        return left_out

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.name in self.left_empty and not self._happens(self._wildness):
            return
        value = getattr(message, field.name)
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for each in (
                [value.add() for _ in range(self._count())] if field.is_repeated else [value]
            ):
                each.SetInParent()
                self._fill(each, depth - 1)
        elif field.is_repeated:
            value.extend(self._scalar(field) for _ in range(self._count()))
        else:
            setattr(message, field.name, self._scalar(field))

    def _count(self) -> int:
        return MANY if self._happens(self._wildness / 20) else self._random.choice(COUNTS)

    def _scalar(self, field: FieldDescriptor) -> Any:  # noqa: ANN401  # whatever the field takes
        known = self.known.get(field.name)
        wild = self._happens(self._wildness)
        if known and not wild:
            return self._random.choice(known)
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return self._happens(0.5)
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._random.choice(TEXTS if wild else ("", "a", "name"))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._tokens() if field.name == "tokens" and not wild else self.noise()
        return self._number(field, wild=wild)

    def _number(self, field: FieldDescriptor, *, wild: bool) -> float:
        if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return self._random.choice((0.0, 1.0, -1.0, 1e308, float("inf"), float("nan")))
        least, most = SCALARS[field.cpp_type]
        if wild:
            far = self._random.choice((least, -1, most, most - 1, 1 << self._random.randrange(31)))
            return max(least, min(most, far))
        number = self._random.randrange(SMALL)
        if field.name.endswith("_id"):
            number += self._drawn // DRAWN_WITH_AN_ID
        elif field.name.endswith("_ids"):  # given back: let them be of use first
            number += max(0, self._drawn // DRAWN_WITH_AN_ID - SMALL)
        return number

    def _tokens(self) -> bytes:
        length = self._random.randrange(LONGEST_SEQUENCE)
        return array("I", [self._random.randrange(TOKEN_IDS) for _ in range(length)]).tobytes()

    # Faults: each changes the bytes in place.

    def _flip(self, raw: bytearray) -> None:
        if raw:
            raw[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)

    def _cut(self, raw: bytearray) -> None:
        del raw[self._random.randrange(len(raw) + 1) :]

    def _leave_out(self, raw: bytearray) -> None:
        start = self._random.randrange(len(raw) + 1)
        del raw[start : start + self._random.randrange(1, 9)]

    def _put_in(self, raw: bytearray) -> None:
        start = self._random.randrange(len(raw) + 1)
        raw[start:start] = self.noise()

    def _repeat(self, raw: bytearray) -> None:
        start = self._random.randrange(len(raw) + 1)
        raw += raw[start:] * self._random.randrange(1, 4)

    def _overflow(self, raw: bytearray) -> None:
        """A length or a number of ten bytes, of which nine is the most there is."""
        start = self._random.randrange(len(raw) + 1)
        raw[start:start] = b"\xff" * 10

    def _nest(self, raw: bytearray) -> None:
        """Groups within groups: deeper than any parser goes."""
        raw += b"\x0b" * self._random.choice((1, 90, 2000))

    _faults: tuple[Callable[["Messages", bytearray], None], ...] = (
        _flip,
        _cut,
        _leave_out,
        _put_in,
        _repeat,
        _overflow,
        _nest,
    )
