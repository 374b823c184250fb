"""The prefill in flight that a match reports."""

from math import inf

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, make_layout, paged
from core.prefill_calls import acquire, in_flight
from kvstore.core.pool.prefills import NEIGHBOURS
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import Caller, Identity, InFlight, MatchOptions


def test_the_one_that_agrees_longest_wins() -> None:
    """The neighbours in order are enough to find the best of several that continue one page."""
    world = CoreWorld(slots=64)
    for number, letters in enumerate(("abcdexx", "abcdy", "abcw", "abzz", "b"), start=1):
        acquire(world.worker, letters, (100 + number, number), idle=None)
    cases = {"abcdef": 5, "abcd": 4, "abcz": 3, "abz": 3, "abb": 2, "aa": 1, "bb": 1, "c": None}
    for letters, end in cases.items():
        assert in_flight(world, letters) == (None if end is None else (end, 0)), letters
    world.laws.check()


def test_of_equals_the_last_to_advance_wins() -> None:
    """A prefill that hung and was overtaken is not the one to wait for."""
    world = CoreWorld(slots=64)
    acquire(world.worker, "abcd", (1, 2), idle=None)
    world.now += 5
    acquire(world.worker, "abcd", (3, 4), idle=None)
    found = world.cache.peek(OWNER, NAMESPACE_ID, paged("abcde"), world.now).in_flight
    assert found == InFlight(8, 0, 0.0)


def test_of_those_who_wait_for_a_hung_worker_one_takes_over() -> None:
    """The others yield to that one: nobody yields to what has not advanced for so long."""
    world = CoreWorld(slots=64)
    acquire(world.worker, "abcm", (1, 2))
    world.now += 1
    acquire(world.worker, "abcd", (3, 4), idle=1.0)
    assert list(world.worker.lease.reservations) == [2]
    world.now += 1
    # Beyond the hung one on either side of the waiters, and between them.
    for ids, letters in enumerate(("abcd", "abce", "abco", "abcc"), start=5):
        acquire(world.worker, letters, (ids, ids), idle=1.0)
    assert list(world.worker.lease.reservations) == [2, 5]
    world.laws.check()


def test_not_every_hung_worker_is_passed_over() -> None:
    """Beyond so many of them on either side nobody looks on: more than one may take over."""
    world = CoreWorld(slots=200)
    names = [chr(code) for code in range(ord("A"), ord("A") + NEIGHBOURS + 1)]
    acquire(world.worker, "a0", (1, 1), idle=None)
    for number, name in enumerate(names, start=2):
        acquire(world.worker, "a" + name, (number, number), idle=None)
    world.now += 10
    first = next(each for each in world.namespace.prefills if each.number == 1)
    first.advanced_at = world.now
    match, grant = acquire(world.worker, "az", (100, 100), idle=1.0)
    assert grant is not None
    assert match.in_flight is None


def test_a_waiter_waits_for_no_more_than_may_match() -> None:
    """A prompt of whole pages has its last one for itself: one token is left to run."""
    world = CoreWorld()
    acquire(world.worker, "abc", (1, 2))
    found = world.cache.peek(OWNER, NAMESPACE_ID, paged("abc"), world.now).in_flight
    assert found == InFlight(4, 0, 0.0)
    world.worker.insert(2, "ab")
    assert world.cache.peek(OWNER, NAMESPACE_ID, paged("abc"), world.now).in_flight is None


def test_a_prefix_of_another_sequence_is_no_match() -> None:
    """The same page after another beginning is another page."""
    world = CoreWorld(slots=16)
    worker = world.worker
    worker.publish("ab", "xb")
    acquire(worker, "abcd", (1, 2))
    assert in_flight(world, "xbcd") is None
    assert in_flight(world, "abcx") == (3, 2)


def test_sequences_are_continued_from_a_pin() -> None:
    """A call with only the tokens after a pin announces and reports like one with all tokens."""
    world = CoreWorld(slots=16)
    worker, other = world.worker, world.join("other")
    worker.publish("ab")
    worker.match("ab", 1)
    sequence = worker.sequence("cd", 2, base_pin_id=1)
    _, grant = acquire(worker, "abcd", (3, 4), sequence=sequence)
    assert grant is not None
    assert in_flight(world, "abcd") == (4, 2)
    other.match("ab", 1)
    match, _ = acquire(other, "abcx", (3, 4), sequence=other.sequence("cx", 2, base_pin_id=1))
    assert match.in_flight == InFlight(6, 4, 0.0)
    world.laws.check()


def test_below_a_removed_path_nothing_is_in_flight() -> None:
    """Tokens that were sent without their beginning, which is removed, match no prefill."""
    world = CoreWorld(slots=16)
    worker, other = world.worker, world.join("other")
    worker.publish("ab")
    other.match("ab", 1)
    world.evict_prefix("a")
    acquire(worker, "abcd", (1, 2))
    sequence = other.sequence("cd", 2, base_pin_id=1)
    match, grant = acquire(other, "abcd", (3, 4), sequence=sequence)
    assert (match.in_flight, grant is None) == (None, False)
    assert other.lease.reservations[4].prefill is None
    world.laws.check()


def test_other_namespaces_are_not_told() -> None:
    """A prefill in one namespace is in flight in no other, of the same tenant or another."""
    world = CoreWorld(slots=16)
    worker = world.worker
    acquire(worker, "abcd", (1, 2))
    stranger = Caller(Identity("b"), b"stranger 16 byte", b"secret", worker.caller.epoch)
    world.cache.grant(stranger, ttl=None, display_name="", features=(), now=world.now)
    world.cache.bind(stranger, process_id=99, pid=99, uid=9)
    for caller, namespace_id in ((worker.caller, b"second"), (stranger, b"theirs")):
        identity = NamespaceIdentity(b"model", salt=namespace_id)
        space = world.cache.open_namespace(caller, identity, make_layout(), namespace_id, world.now)
        sequence, options = worker.sequence("abcd"), MatchOptions(50)
        match = world.cache.match(caller, namespace_id, sequence, options, world.now)
        assert match.in_flight is None
        assert not space.prefills.by_page
    assert in_flight(world, "abcd") == (4, 0)


def test_a_lookup_looks_at_few() -> None:
    """Beside a thousand prefills of one page a match compares ten times, elsewhere never."""
    compared = 0

    class Counted(bytes):
        def __lt__(self, other: bytes) -> bool:
            nonlocal compared
            compared += 1
            return bytes(self) < bytes(other)

    world = CoreWorld(slots=2200)
    worker = world.worker
    worker.publish("x")
    for number in range(1000):
        acquire(worker, f"a{chr(1000 + number)}", (number + 5000, number + 5000), idle=None)
    prefills = world.namespace.prefills
    tokens = Counted(paged(f"a{chr(1500)}z"))
    assert prefills.find(tokens, 0, 2, since=-inf) is not None
    assert 0 < compared <= 12
    compared = 0
    assert prefills.find(tokens, 1, 2, since=-inf) is None
    assert compared == 0
