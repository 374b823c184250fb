"""Names in a remote engine: they tell pages apart, and say nothing to those without the secret."""

from collections import Counter
from itertools import combinations

import pytest

from kvstore.remote.secret import names as names_module
from kvstore.remote.secret import revisions, sealing
from kvstore.remote.secret.names import (
    SHARD_COUNT,
    SLOT_COUNT,
    RemoteNames,
    UnusableSecret,
    keyed_digest,
    slot_of,
)
from remote.remote_pages import OTHER_SECRET, SECRET, leaks, written_page

NAMES = RemoteNames(SECRET)
PAGE = written_page(1).page


@pytest.mark.parametrize(
    "change",
    [
        {"namespace_digest": bytes(32)},
        {"shard": (PAGE.shard + 1) % SHARD_COUNT},
        {"revision": bytes(16)},
        {"page_digest": bytes(32)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_pages_of_different_identity_have_different_names(change: dict[str, object]) -> None:
    """A page's name depends on its namespace, shard, revision and digest."""
    assert NAMES.page(PAGE._replace(**change)) != NAMES.page(PAGE)  # type: ignore[arg-type]


def test_names_are_the_same_on_every_host() -> None:
    """Two hosts with one secret give one name, written down here: the format may not change."""
    assert RemoteNames(SECRET).page(PAGE) == NAMES.page(PAGE)
    assert NAMES.control(bytes(32), 5) == b"kvr/{0f553029e4b84b20}"


def test_another_secret_gives_other_names() -> None:
    """Two clusters with the same tenants meet in no name."""
    other = RemoteNames(OTHER_SECRET)
    assert other.page(PAGE) != NAMES.page(PAGE)
    assert other.control(bytes(32), 0) != NAMES.control(bytes(32), 0)


def test_a_shard_s_control_value_lies_beside_its_pages() -> None:
    """Both have the same part in braces, by which a cluster places; other shards have others."""
    tag = NAMES.page(PAGE).partition(b"{")[2].partition(b"}")[0]
    assert NAMES.control(PAGE.namespace_digest, PAGE.shard) == b"kvr/{%b}" % tag
    tags = {NAMES.control(PAGE.namespace_digest, shard) for shard in range(SHARD_COUNT)}
    assert len(tags) == SHARD_COUNT


@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 32])
def test_the_shards_of_a_namespace_lie_on_all_nodes_alike(nodes: int) -> None:
    """Nodes with equal ranges of slots get equally many shards of every namespace."""
    for namespace in (bytes(32), PAGE.namespace_digest):
        names = [NAMES.control(namespace, shard) for shard in range(SHARD_COUNT)]
        slots = [slot_of(each.partition(b"{")[2].partition(b"}")[0]) for each in names]
        counts = Counter(slot * nodes // SLOT_COUNT for slot in slots)
        assert counts == dict.fromkeys(range(nodes), SHARD_COUNT // nodes)


def test_slots_are_those_of_a_cluster() -> None:
    """The specification's example."""
    assert slot_of(b"123456789") == 0x31C3


def test_a_control_name_outlives_the_revision() -> None:
    """The name of the revision cannot depend on the revision."""
    renewed = PAGE._replace(revision=bytes(16))
    tags = {NAMES.page(each).split(b"/")[1] for each in (PAGE, renewed)}
    assert len(tags) == 1


def test_a_name_shows_no_digest() -> None:
    """No eight bytes of a digest or revision are in a name, in any form."""
    shown = NAMES.page(PAGE) + NAMES.control(PAGE.namespace_digest, PAGE.shard)
    hidden = (PAGE.namespace_digest, PAGE.page_digest, PAGE.revision, SECRET)
    assert leaks(shown, *hidden) == []


def test_each_use_of_the_secret_has_a_label_of_its_own() -> None:
    """No digest of one use is one of another use, also for the same parts."""
    labels = [
        *(names_module._TAG, names_module._PAGE),
        *(sealing._KEY, sealing._KEY_ID, sealing._MASK, revisions._LABEL),
    ]
    digests = [keyed_digest(SECRET, label, 4, b"same") for label in labels]
    assert all(one != other for one, other in combinations(digests, 2))


def test_parts_are_told_apart() -> None:
    """Bytes that move from one part to the next give another digest."""
    one, other = (
        keyed_digest(SECRET, b"l", 16, *parts) for parts in ((b"ab", b"c"), (b"a", b"bc"))
    )
    assert one != other


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33)])
def test_a_secret_of_another_length_is_refused(secret: bytes) -> None:
    """An empty file is no secret."""
    with pytest.raises(UnusableSecret, match=f"{len(secret)} bytes"):
        RemoteNames(secret)


@pytest.mark.parametrize("shard", [-1, SHARD_COUNT])
def test_a_shard_beyond_the_last_is_refused(shard: int) -> None:
    """The number of shards is a part of the format."""
    with pytest.raises(ValueError, match="shard"):
        NAMES.control(bytes(32), shard)
