"""The linker's own events: pages of the store that were saved or found, and those that left it."""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvstore_client.engines import page_checks
from kvstore_client.testing import wait_until
from kvstore_client.values.packed_tokens import pack_tokens
from sglang_rig.counters import LayerWiseLoadCounter
from sglang_rig.event_stand_ins import BlockRemoved, BlockStored, StorageMedium, block_hash
from sglang_rig.stand_ins import sglang_stand_ins

PAGE, PAGE_BYTES = 4, 16
TOKENS = list(range(14))
HASHES = [block_hash(TOKENS[:end]) for end in (4, 8, 12)]
# The first id that is no text.
IMAGE = 1_000


def pack(tokens: list[int]) -> bytes:
    """Packs whole pages before the first token that is no text."""
    count = next((at for at, each in enumerate(tokens) if each >= IMAGE), len(tokens))
    return pack_tokens(tokens[: count // PAGE * PAGE])


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """Provides the module, loaded beside the stand-ins."""
    with sglang_stand_ins(LayerWiseLoadCounter):
        yield import_module("kvstore_sglang.linker_events")


def events_of(module: ModuleType, *, enabled: bool = True) -> Any:  # noqa: ANN401
    """Returns the events of a rank that publishes, or does not."""
    params = SimpleNamespace(
        enable_kv_cache_events=enabled,
        page_size=PAGE,
        dynamo_kv_event_format=False,
        kv_event_lora_names=None,
    )
    return module.LinkerEvents(params, pack)


def salt_of(module: ModuleType, store_salt: bytes = b"", extra_key: str | None = None) -> Any:  # noqa: ANN401
    """Returns a request's salts."""
    return module.RequestSalt(extra_key, None, store_salt)


def stored(first: int, end: int) -> BlockStored:
    """Returns the event of pages of ``TOKENS``."""
    parent = HASHES[first - 1] if first else None
    tokens = TOKENS[first * PAGE : end * PAGE]
    return BlockStored(HASHES[first:end], parent, tokens, PAGE, None, StorageMedium.CPU)


def removed(*numbers: int) -> BlockRemoved:
    """Returns the event that removes pages of ``TOKENS``."""
    return BlockRemoved([HASHES[each] for each in numbers], StorageMedium.CPU)


def test_found_pages_are_announced_once(module: ModuleType) -> None:
    """A longer answer announces the rest, with its parent."""
    events, salt = events_of(module), salt_of(module)
    events.found(salt, TOKENS, 0)
    assert events.take() == []
    events.found(salt, TOKENS, 2)
    assert events.take() == [stored(0, 2)]
    events.found(salt, TOKENS, 2)
    assert events.take() == []
    events.found(salt, TOKENS, 3)
    assert events.take() == [stored(2, 3)]


def test_pages_that_a_lookup_misses_are_withdrawn(module: ModuleType) -> None:
    """With all after them; a save announces them again."""
    events, salt = events_of(module), salt_of(module)
    events.saved(salt, TOKENS)
    assert events.take() == [stored(0, 3)]
    events.found(salt, TOKENS, 1)
    assert events.take() == [removed(2, 1)]
    events.saved(salt, TOKENS)
    assert events.take() == [stored(1, 3)]
    events.found(salt, TOKENS, 0)
    assert events.take() == [removed(2, 1, 0)]


def test_equal_tokens_of_another_salt_are_other_pages(module: ModuleType) -> None:
    """SGLang's hashes leave some extra keys out, so each salt announces and withdraws its own."""
    events = events_of(module)
    for each in (salt_of(module), salt_of(module, b"s", "somebody's")):
        events.saved(each, TOKENS[:4])
    assert events.take() == [stored(0, 1), stored(0, 1)]
    events.found(salt_of(module, b"s", "somebody's"), TOKENS[:4], 0)
    assert events.take() == [removed(0)]


def test_pages_of_images_are_not_announced(module: ModuleType) -> None:
    """They are not saved either."""
    events, salt = events_of(module), salt_of(module)
    events.saved(salt, [*TOKENS[:6], IMAGE, *TOKENS[7:]])
    [event] = events.take()
    assert event == stored(0, 1)
    events.saved(salt, [IMAGE] * PAGE)
    assert events.take() == []


def test_a_rank_that_publishes_nothing_keeps_nothing(module: ModuleType) -> None:
    """It starts no thread either."""
    events, salt = events_of(module, enabled=False), salt_of(module)
    events.check_with(lambda *_: 0, lambda: True)
    events.saved(salt, TOKENS)
    events.found(salt, TOKENS, 2)
    events.clear()
    assert events.take() == []
    events.close()


def test_pages_that_left_the_store_are_withdrawn(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread asks for the announced path, and the end of everything withdraws the rest."""
    monkeypatch.setattr(page_checks, "ROUND_SECONDS", 0.001)
    events, salt = events_of(module), salt_of(module, b"salt")
    asked: list[tuple[bytes, bytes]] = []

    def cached_pages(place: bytes, tokens: bytes) -> int:
        asked.append((place, tokens))
        return 2

    events.saved(salt, TOKENS)
    events.check_with(cached_pages, lambda: True)
    found: list[Any] = []
    assert wait_until(lambda: bool(found.extend(events.take()) or len(found) > 1))
    events.close()
    assert found == [stored(0, 3), removed(2)]
    assert asked[0] == (b"salt", pack_tokens(TOKENS[:12]))
    events.clear()
    assert events.take() == [removed(1, 0)]
