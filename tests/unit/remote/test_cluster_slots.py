"""The slots of a cluster: names, CLUSTER SLOTS, MOVED and ASK."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.remote.secret.names import slot_of
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.cluster.cluster_slots import (
    Redirection,
    UnusableSlots,
    parsed_slots,
    redirection,
    slot_of_name,
)

ASKED = EngineAddress(None, "asked", 7000, is_tls=True)


def _node(host: str) -> EngineAddress:
    return EngineAddress(None, host, 7001, is_tls=True)


@pytest.mark.parametrize(
    ("name", "slot"),
    # The first is the example of https://valkey.io/topics/cluster-spec/.
    [
        (b"123456789", 12739),
        (b"{123456789}x", 12739),
        (b"a{123456789}{b}", 12739),
        (b"", 0),
    ],
)
def test_a_name_has_the_slot_of_its_tag(name: bytes, slot: int) -> None:
    """The part in the first braces counts, and a name without one counts as a whole."""
    assert slot_of_name(name) == slot


@pytest.mark.parametrize("name", [b"a{}b", b"a{b", b"a}b{"])
def test_a_name_without_a_tag_counts_as_a_whole(name: bytes) -> None:
    """Empty braces, and braces that do not end, are no tag."""
    assert slot_of_name(name) == slot_of(name)


def test_slots_have_their_primaries() -> None:
    """A node without a host has that of the node that answered; replicas count for nothing."""
    reply = [
        [0, 99, [b"one", 7001, b"id", []], [b"replica", 7004, b"id", []]],
        [100, 100, [None, 7002, b"id", [b"hostname", b"x"]]],
        [101, 16_000, [b"?", 7003, b"id"]],
    ]
    owners = parsed_slots(reply, ASKED)  # type: ignore[arg-type]  # a list of such
    assert set(owners[:100]) == {EngineAddress(None, "one", 7001, is_tls=True)}
    assert owners[100] == EngineAddress(None, "asked", 7002, is_tls=True)
    assert owners[101] == owners[16_000] == EngineAddress(None, "asked", 7003, is_tls=True)
    assert set(owners[16_001:]) == {None}
    assert len(owners) == 16_384


parts = st.recursive(
    st.none() | st.integers(-2, 20_000) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


@given(parts)
def test_any_other_reply_is_refused(reply: object) -> None:
    """The result is a table of all slots, or one error."""
    try:
        owners = parsed_slots(reply, ASKED)  # type: ignore[arg-type]  # as a node may send it
    except UnusableSlots:
        return
    assert len(owners) == 16_384


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("MOVED 12 host:7001", Redirection(12, _node("host"), is_ask=False)),
        ("MOVED 12 :7001", Redirection(12, _node("asked"), is_ask=False)),
        ("MOVED 12 ::1:7001", Redirection(12, _node("::1"), is_ask=False)),
        ("ASK 12 host:7001", Redirection(12, _node("host"), is_ask=True)),
        ("MOVED 16384 host:7001", None),
        ("ASKING 12 host:7001", None),
        ("CROSSSLOT Keys in request don't hash to the same slot", None),
    ],
)
def test_a_redirection_names_a_node(message: str, found: object) -> None:
    """Other errors name none."""
    assert redirection(message, ASKED) == found
