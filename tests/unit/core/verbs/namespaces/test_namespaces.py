"""Namespaces and arenas, and what is asked of them without a lease."""

from dataclasses import replace

import pytest

from core.core_builders import (
    ADMIN,
    FILLER,
    NAMESPACE_ID,
    OWNER,
    CoreWorld,
    make_layout,
    paged,
    picture,
)
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.layout import NamespaceIdentity, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, Identity, Peeked
from kvstore.errors import (
    InvalidField,
    LayoutMismatch,
    LimitExceeded,
    NamespaceNotFound,
    NotAttached,
    QuotaExceeded,
)


def open_one(
    world: CoreWorld,
    model: bytes,
    layout: PageLayout | None = None,
    caller: Caller | None = None,
) -> Namespace:
    """Opens a model's namespace; a fresh one has the model's name as its id."""
    return world.cache.open_namespace(
        caller or world.worker.caller,
        NamespaceIdentity(model),
        layout or make_layout(),
        model,
        world.now,
    )


def stranger(world: CoreWorld) -> Caller:
    """Adds a worker of another tenant."""
    caller = Caller(Identity("tenant-b"), b"stranger", b"secret", world.cache.epoch)
    world.cache.grant(caller, ttl=None, display_name="b", features=(), now=world.now)
    world.cache.bind(caller, process_id=90, pid=1, uid=1)
    return caller


def test_a_namespace_is_opened_once() -> None:
    """The second to open an identity gets the first's namespace, not one of the fresh id."""
    world = CoreWorld()
    again = world.cache.open_namespace(
        world.join("other").caller, NamespaceIdentity(b"model"), make_layout(), b"fresh", 200.0
    )
    assert again is world.namespace
    assert list(world.cache.namespaces) == [NAMESPACE_ID]
    assert again.created_at == 100.0


def test_namespaces_are_numbered_by_creation() -> None:
    """Each new namespace has the next number."""
    world = CoreWorld()
    assert [open_one(world, each).number for each in (b"x", b"y", b"x")] == [2, 3, 2]


def test_another_layout_is_refused() -> None:
    """The same identity with another layout is an error, and opens nothing."""
    world = CoreWorld()
    with pytest.raises(LayoutMismatch) as error:
        open_one(world, b"model", make_layout(page_bytes=128))
    assert error.value.metadata["field"] == "page_bytes"
    assert len(world.cache.arenas) == len(world.cache.namespaces) == 1
    assert set(world.worker.lease.arenas) == {1}


def test_a_namespace_needs_a_member() -> None:
    """Without an attached process no namespace is opened."""
    world = CoreWorld()
    caller = Caller(OWNER, b"idle", b"secret", world.cache.epoch)
    world.cache.grant(caller, ttl=None, display_name="idle", features=(), now=world.now)
    with pytest.raises(NotAttached):
        open_one(world, b"x", caller=caller)
    assert len(world.cache.namespaces) == 1


def test_namespaces_are_bounded_by_tenant() -> None:
    """A tenant at its quota opens no new one, and changes no arena by trying; others may."""
    world = CoreWorld(limits=Limits(max_namespaces=2))
    open_one(world, b"x")
    with pytest.raises(QuotaExceeded) as error:
        open_one(world, b"y", make_layout(page_bytes=128))
    assert error.value.metadata == {"quota": "namespaces", "maximum": "2"}
    assert len(world.cache.arenas) == 1
    assert open_one(world, b"x").namespace_id == b"x"
    open_one(world, b"z", caller=stranger(world))


def test_pages_of_one_size_share_an_arena() -> None:
    """Namespaces of one tenant, page size and rank count live in one arena; others don't."""
    world = CoreWorld()
    layouts = (make_layout(), make_layout(page_bytes=128))
    first, larger = (open_one(world, b"%d" % k, each) for k, each in enumerate(layouts))
    ranks = open_one(world, b"ranks", replace(make_layout(), tensor_parallel_size=2))
    theirs = open_one(world, b"theirs", caller=stranger(world))
    assert first.arena is world.arena
    assert len({each.arena.arena_id for each in (first, larger, ranks, theirs)}) == 4
    assert set(world.worker.lease.arenas) == {1, 2, 3}


def test_tenants_share_nothing() -> None:
    """The same model under another tenant is another namespace, which the first can't name."""
    world = CoreWorld()
    theirs = open_one(world, b"fresh", caller=stranger(world))
    same = world.cache.open_namespace(
        Caller(Identity("tenant-b"), b"stranger", b"secret", world.cache.epoch),
        NamespaceIdentity(b"model"),
        make_layout(),
        b"their model",
        world.now,
    )
    assert same is not world.namespace
    for namespace in (theirs, same):
        with pytest.raises(NamespaceNotFound):
            world.cache.namespace(OWNER, namespace.namespace_id)


def test_a_namespace_is_found_by_who_may_see_it() -> None:
    """Its tenant and an admin find it; for others it is as one that never was."""
    world = CoreWorld()
    assert world.cache.namespace(OWNER, NAMESPACE_ID) is world.namespace
    assert world.cache.namespace(ADMIN, NAMESPACE_ID) is world.namespace
    for identity, namespace_id in ((Identity("b"), NAMESPACE_ID), (OWNER, b"never")):
        with pytest.raises(NamespaceNotFound) as error:
            world.cache.namespace(identity, namespace_id)
        assert error.value.metadata == {"namespace_id": namespace_id.hex()}


def test_extents_make_slots() -> None:
    """An arena has the slots of the extents that it was given."""
    world = CoreWorld(slots=3)
    world.cache.add_extent(1, 2, 5)
    assert world.states() == {"FREE": 8}


def test_a_length_counts_what_lies_before() -> None:
    """A sequence is as long as its position and its tokens together, up to the limit."""
    world = CoreWorld(limits=Limits(max_tokens=6))
    assert world.cache.state.length(FILLER * 2, 4) == 6
    with pytest.raises(LimitExceeded) as error:
        world.cache.state.length(FILLER * 2, 5)
    assert error.value.metadata == {"limit": "max_tokens", "maximum": "6", "value": "7"}
    with pytest.raises(InvalidField):
        world.cache.state.length(b"abc", 0)


@pytest.mark.parametrize("page_tokens", [1, 2, 16])
def test_a_peek_is_what_a_match_would_be(page_tokens: int) -> None:
    """For every length of a sequence peek and match say the same."""
    world = CoreWorld(page_tokens=page_tokens, slots=4)
    world.worker.publish("abcd")
    tokens = paged("abcdx", page_tokens)
    for count in range(len(tokens) // 4 + 1):
        peeked = world.cache.peek(OWNER, NAMESPACE_ID, tokens[: 4 * count], world.now)
        pages = min(max(count - 1, 0) // page_tokens, 4)
        assert peeked == Peeked(pages * page_tokens, ((1, pages),) if pages else ())


def test_a_peek_has_no_effect() -> None:
    """Neither tree, nor recency, nor counters, nor holds change; a foreigner sees nothing."""
    world = CoreWorld()
    world.worker.publish("abcd")
    node = next(iter(world.namespace.index.nodes.values()))
    before, uses = picture(world.namespace.index), (node.last_use, node.hits)
    counters = world.cache.counters.copy()
    assert world.cache.peek(ADMIN, NAMESPACE_ID, paged("abx"), world.now).page_count == 2
    assert picture(world.namespace.index) == before
    assert (node.last_use, node.hits) == uses
    assert world.cache.counters == counters
    with pytest.raises(NamespaceNotFound):
        world.cache.peek(Identity("b"), NAMESPACE_ID, paged("abx"), world.now)


def test_a_removed_prefix_loses_its_last_page_and_what_follows() -> None:
    """Inside an edge or at a node's end, the page named goes with all continuations."""
    world = CoreWorld(slots=12)
    world.worker.publish("abcd", "abxy", "q")
    assert world.evict_prefix("abcd") == (1, 0)
    assert world.shape() == {"ab": {"c": {}, "xy": {}}, "q": {}}
    assert world.evict_prefix("abx") == (2, 0)
    assert world.evict_prefix("ab") == (2, 0)
    assert world.shape() == {"a": {}, "q": {}}
    world.laws.check()


def test_removing_nothing_named_removes_everything() -> None:
    """Without tokens the whole namespace goes; what is pinned of it is detached."""
    world = CoreWorld()
    world.worker.publish("abcd", "abxy")
    world.worker.match("abc", 1)
    assert world.evict_prefix("") == (3, 3)
    assert world.shape() == {}
    assert world.states() == {"FREE": 5, "DETACHED": 3}
    world.laws.check()
    assert world.evict_prefix("") == (0, 0)


@pytest.mark.parametrize("letters", ["x", "abx", "abcdx", "b"])
def test_what_is_not_cached_whole_is_not_removed(letters: str) -> None:
    """A prefix of which only a part is cached removes nothing, and splits nothing."""
    world = CoreWorld()
    world.worker.publish("abcd")
    before = picture(world.namespace.index)
    assert world.evict_prefix(letters) == (0, 0)
    assert picture(world.namespace.index) == before


def test_only_whole_pages_are_removed() -> None:
    """Tokens that end inside a page are refused, and nothing goes."""
    world = CoreWorld()
    world.worker.publish("ab")
    with pytest.raises(InvalidField) as error:
        world.cache.evict_prefix(OWNER, NAMESPACE_ID, paged("a") + FILLER)
    assert error.value.metadata["field"] == "tokens"
    assert world.states() == {"FREE": 6, "CACHED": 2}


def test_removed_pages_are_counted() -> None:
    """Both freed and detached pages count as removed, for the namespace and in total."""
    world = CoreWorld()
    world.worker.publish("abcd")
    world.worker.match("abc", 1)
    world.evict_prefix("b")
    world.evict_prefix("ab")
    assert world.namespace.counters.removed_page_count == 3
    assert world.cache.counters.removed_page_count == 3


def test_no_one_removes_anothers_pages() -> None:
    """A namespace of another tenant can't be named; an admin's word counts."""
    world = CoreWorld()
    world.worker.publish("ab")
    with pytest.raises(NamespaceNotFound):
        world.cache.evict_prefix(Identity("b"), NAMESPACE_ID, b"")
    assert world.cache.evict_prefix(ADMIN, NAMESPACE_ID, b"").evicted_page_count == 2
