"""Revisions: later ones are told from earlier ones, and none can be made without the secret."""

import pytest

from kvstore.remote.secret.revisions import (
    CONTROL_BYTES,
    Age,
    ForgedRevision,
    Revision,
    RevisionCodec,
)
from remote.remote_pages import OTHER_SECRET, SECRET, leaks

CODEC = RevisionCodec(SECRET)
NAMESPACE = bytes(32)
REVISION = Revision(7, bytes(range(72, 80)), bytes(range(64, 72)))
VALUE = CODEC.encoded(NAMESPACE, 3, REVISION)


def test_a_control_value_comes_back() -> None:
    """The format is written down here: it may not change."""
    assert CODEC.decoded(NAMESPACE, 3, VALUE) == REVISION
    assert len(VALUE) == CONTROL_BYTES
    assert (
        VALUE.hex()
        == "0000000000000007" + "48494a4b4c4d4e4f" + "4041424344454647" + VALUE[24:].hex()
    )


@pytest.mark.parametrize(
    ("secret", "namespace", "shard"),
    [(OTHER_SECRET, NAMESPACE, 3), (SECRET, b"\1" * 32, 3), (SECRET, NAMESPACE, 4)],
    ids=["secret", "namespace", "shard"],
)
def test_a_control_value_is_good_in_its_place_only(
    secret: bytes, namespace: bytes, shard: int
) -> None:
    """A value that was copied from another shard or cluster is refused."""
    with pytest.raises(ForgedRevision):
        RevisionCodec(secret).decoded(namespace, shard, VALUE)


def test_every_change_of_a_control_value_is_refused() -> None:
    """Any flipped bit, and any other length."""
    changes = [bytes([*VALUE[:at], VALUE[at] ^ 1, *VALUE[at + 1 :]]) for at in range(len(VALUE))]
    for value in [*changes, b"", VALUE[:-1], VALUE[:24], VALUE + b"\0", VALUE * 2]:
        with pytest.raises(ForgedRevision):
            CODEC.decoded(NAMESPACE, 3, value)


def test_a_removal_makes_a_later_revision() -> None:
    """Each host that knows the earlier one, or none, has to hear of it."""
    later = CODEC.removed(REVISION, b"removal!")
    assert later.counter == REVISION.counter + 1
    assert later.identity > REVISION.identity
    assert (later.age(REVISION), REVISION.age(later)) == (Age.LATER, Age.EARLIER)
    assert CODEC.removed(None, b"removal!").age(None) is Age.LATER
    assert CODEC.removed(REVISION, b"another!").age(later) is Age.FORKED


def test_a_restored_revision_has_the_same_removals_and_other_pages() -> None:
    """A lost control value is no removal, and makes the old pages unreachable."""
    restored = CODEC.restored(REVISION)
    assert restored.age(REVISION) is Age.SAME
    assert restored.identity != REVISION.identity
    firsts = {CODEC.restored(None) for _ in range(100)}
    assert len(firsts) == 100
    assert {each.age(None) for each in firsts} == {Age.SAME}
    assert {CODEC.restored(REVISION).age(each) for each in firsts} == {Age.LATER}


def test_a_control_value_shows_neither_secret_nor_namespace() -> None:
    """Its reader learns how often the shard was removed, and nothing else."""
    namespace = bytes(range(100, 132))
    assert leaks(CODEC.encoded(namespace, 3, REVISION), SECRET, namespace) == []
