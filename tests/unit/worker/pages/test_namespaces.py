"""Each salt's namespace is opened once, and the least recently used ones are dropped."""

import pytest

from inference_worker.pages import namespaces as salted_namespaces
from inference_worker.pages.namespaces import SaltedNamespaces
from kvstore_client import Client, Namespace, NamespaceIdentity, PagedContent, PageLayout
from kvstore_client.testing import running_store

LAYOUT = PageLayout.paged(4, PagedContent(2, 1, 8, "float32"))


def test_those_used_longest_ago_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used salts are dropped, but none in use and not the unsalted namespace."""
    monkeypatch.setattr(salted_namespaces, "MAX_SALTS", 2)
    with running_store("--tier1-bytes", "1MiB") as store, Client(store.runtime_dir) as client:
        unsalted = client.namespace(NamespaceIdentity(b"m"), LAYOUT)
        assert unsalted.wait_open(30)
        found = SaltedNamespaces(unsalted)

        known: dict[str, Namespace] = {}

        def stayed(salt: str, *used: str) -> bool:
            """Opens a salt's namespace, and returns whether it is the one found before."""
            namespace = found.find(salt, lambda: set(used))
            before, known[salt] = known.get(salt), namespace
            assert namespace.wait_open(30)
            assert not found.is_opening(salt)
            return namespace is before

        assert found.find("", set) is unsalted
        assert [stayed("a"), stayed("b"), stayed("a")] == [False, False, True]
        # b was used less recently than a.
        assert not stayed("c", "c")
        assert [stayed("a"), stayed("c")] == [True, True]
        assert not stayed("b", "a", "b")
        assert stayed("a")
        assert not stayed("c", "a", "b", "c")
        assert [stayed("a"), stayed("b"), stayed("c")] == [True, True, True]
        # A salt above 256 bytes, which a store does not accept, is hashed.
        assert [stayed("é" * 256), stayed("é" * 257), stayed("é" * 257)] == [False, False, True]
        assert known["é" * 256].namespace_id != known["é" * 257].namespace_id
        assert not stayed("a")
        found.state_speed(7.0)
        assert [found.find(salt, set).prefill_tokens_per_second for salt in ("", "a")] == [7, 7]


def test_nothing_is_waited_for_without_a_store() -> None:
    """Without a store a salt's namespace has failed and is not opening."""
    with running_store(start=False) as absent, Client(absent.runtime_dir) as client:
        found = SaltedNamespaces(client.namespace(NamespaceIdentity(b"m"), LAYOUT))
        assert found.find("a", set).failure is not None
        assert not found.is_opening("a")
