"""The hashes of a prefix that a prefetch goes on from."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from kvstore_sglang.hicache.prefix_keys import STORAGE, with_last_node


class OurStorage:
    """A storage of the class that the loaded module has."""


def cache(storage: object) -> SimpleNamespace:
    """Returns a cache whose node 7 has two pages."""
    core = SimpleNamespace(get_hash_values=lambda node: {7: ["c", "d"]}[node])
    return SimpleNamespace(
        cache_controller=SimpleNamespace(storage_backend=storage), tree_core=core
    )


def above(_: object, node: int) -> list[str]:
    """Returns the hashes of the nodes above node 7, as SGLang does."""
    return {7: ["a", "b"]}[node]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our storage's module is loaded."""
    module = ModuleType(STORAGE)
    module.KvstoreHiCache = OurStorage  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, STORAGE, module)


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("storage", [OurStorage(), SimpleNamespace(_backend=OurStorage())])
def test_our_storage_gets_the_whole_prefix(storage: object) -> None:
    """Its own hashes follow those of the nodes above, also behind SGLang's failure injector."""
    assert with_last_node(above, cache(storage), 7) == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("storage", [object(), None])
def test_another_storage_gets_what_sglang_passes(storage: object) -> None:
    """A storage of another class, or none, is left as it is."""
    assert with_last_node(above, cache(storage), 7) == ["a", "b"]


def test_an_engine_without_our_storage_is_left_as_it_is() -> None:
    """Nothing of ours is loaded for it."""
    assert STORAGE not in sys.modules
    assert with_last_node(above, cache(object()), 7) == ["a", "b"]
    assert with_last_node(above, SimpleNamespace(), 7) == ["a", "b"]
