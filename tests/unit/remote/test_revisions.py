"""Revisions: later ones are told from earlier ones, and none can be made without the secret."""

import pytest

from kvstore.remote.revisions import CONTROL_BYTES, ForgedRevision, Revision, RevisionCodec
from remote.remote_pages import OTHER_SECRET, SECRET, leaks

CODEC = RevisionCodec(SECRET)
NAMESPACE = bytes(32)
REVISION = Revision(7, bytes(range(64, 72)))
VALUE = CODEC.encoded(NAMESPACE, 3, REVISION)


def test_a_control_value_comes_back() -> None:
    """The format is written down here: it may not change."""
    assert CODEC.decoded(NAMESPACE, 3, VALUE) == REVISION
    assert len(VALUE) == CONTROL_BYTES
    assert VALUE.hex() == "0000000000000007" + "4041424344454647" + VALUE[16:].hex()


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
    for value in [*changes, b"", VALUE[:-1], VALUE[:16], VALUE + b"\0", VALUE * 2]:
        with pytest.raises(ForgedRevision):
            CODEC.decoded(NAMESPACE, 3, value)


def test_a_renewed_revision_is_later_and_random() -> None:
    """A lost revision is followed by one that makes the old pages unreachable."""
    later = CODEC.renewed(REVISION)
    assert later.counter == REVISION.counter + 1
    assert later.identity > REVISION.identity
    firsts = {CODEC.renewed(None).identity for _ in range(100)}
    assert len(firsts) == 100


def test_a_control_value_shows_neither_secret_nor_namespace() -> None:
    """Its reader learns how often the shard was removed, and nothing else."""
    namespace = bytes(range(100, 132))
    assert leaks(CODEC.encoded(namespace, 3, REVISION), SECRET, namespace) == []
