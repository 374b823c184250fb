"""Memory that records each write, and a crash at each byte of them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Write(NamedTuple):
    """Bytes that went to a memory. A word is there whole or not at all."""

    memory: int
    offset: int
    data: bytes
    is_word: bool


class Said(NamedTuple):
    """Something that was acknowledged, or promised, between two writes."""

    what: str
    value: object


@dataclass
class WriteLog:
    """Every write to some memories and what was said, in their order."""

    events: list[Write | Said] = field(default_factory=list)
    memories: "list[RecordingMemory]" = field(default_factory=list)
    _first: list[bytes] = field(default_factory=list)

    def memory(self, content: bytes) -> "RecordingMemory":
        """Returns a memory with some content, whose writes are recorded from here on."""
        made = RecordingMemory(self, len(self.memories), bytearray(content))
        self.memories.append(made)
        self._first.append(bytes(made.content))
        return made

    def say(self, what: str, value: object = None) -> None:
        """Records an acknowledgement."""
        self.events.append(Said(what, value))

    def crashes(self) -> "Iterator[Crash]":
        """Yields the memories as a crash leaves them, at each write and within each one.

        A word is cut before and behind it. Other bytes are cut at each byte, once with the
        first bytes written and once with the last ones. It is the same crash, changed, each time.
        """
        images = [bytearray(each) for each in self._first]
        crash = Crash([memoryview(each) for each in images], defaultdict(list))
        yield crash
        for event in self.events:
            if isinstance(event, Said):
                crash.said[event.what].append(event.value)
                continue
            memory, start, data, is_word = event
            image, size = images[memory], len(data)
            former = bytes(image[start : start + size])
            if not is_word:
                for cut in range(1, size):
                    if data[cut - 1] != former[cut - 1]:
                        image[start : start + cut] = data[:cut]
                        yield crash
                image[start : start + size] = former
                for cut in range(size - 1, 0, -1):
                    if data[cut] != former[cut]:
                        image[start + cut : start + size] = data[cut:]
                        yield crash
            image[start : start + size] = data
            yield crash


class Crash(NamedTuple):
    """The memories that a crash leaves, and the values of what was said before it, in order."""

    images: list[memoryview]
    said: Mapping[str, list[object]]


class RecordingMemory:
    """Stands in for a writable memoryview of bytes, for code that writes slices and words."""

    def __init__(self, log: WriteLog, number: int, content: bytearray) -> None:
        self.content = content
        self.nbytes = len(content)
        self._log = log
        self._number = number
        self._view = memoryview(content)

    def __getitem__(self, key: slice) -> memoryview:
        return self._view[key]

    def __setitem__(self, key: slice, data: bytes) -> None:
        self._view[key] = data
        self.record(key.start, bytes(data), is_word=False)

    def record(self, offset: int, data: bytes, *, is_word: bool) -> None:
        """Records a write that was made."""
        self._log.events.append(Write(self._number, offset, data, is_word))

    def toreadonly(self) -> memoryview:
        """Returns a real view, which shows what is written later."""
        return self._view.toreadonly()

    def cast(self, form: str) -> "RecordingWords":
        """Returns the memory as words."""
        assert form == "Q"
        return RecordingWords(self, self._view.cast("Q"))


class RecordingWords:
    """The words of a memory, each store of which is recorded as one that cannot be cut."""

    def __init__(self, memory: RecordingMemory, words: memoryview) -> None:
        self._memory = memory
        self._words = words

    def __getitem__(self, key: int | slice) -> int | memoryview:
        return self._words[key]

    def __setitem__(self, key: int, value: int) -> None:
        self._words[key] = value
        self._memory.record(8 * key, self._words[key : key + 1].tobytes(), is_word=True)
