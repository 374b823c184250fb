"""A client's steps against a real store: many sequences in one call, and what can go wrong."""

from collections.abc import Iterator

import pytest

from kvstore_client import (
    Acquired,
    Client,
    ClientConfig,
    GroupWindow,
    Inserted,
    Match,
    Namespace,
    Reservation,
    StoreBudget,
    StoreStep,
    errors,
)
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    TOKENS,
    holds_tokens,
    nothing_held,
    open_client,
    page_bytes,
    page_count,
    prompt,
    write_and_insert,
)
from processes.proxy import GOOD, SILENT, Proxy, proxied

pytestmark = pytest.mark.store(*SMALL_STORE)
PAGES = page_count(TOKENS)
WHOLE = TOKENS[: PAGES * LAYOUT.page_tokens]


@pytest.fixture(params=["lane", "grpc", "single calls"])
def opened(
    fresh_store: RunningStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Client, Namespace]]:
    """Provides a client and its namespace, over lanes, over gRPC, and as if steps were unknown."""
    if request.param == "single calls":
        monkeypatch.setattr("kvstore_client.store_step.FEATURE", "none of the store's")
    config = ClientConfig(call_timeout=LIMIT, hot_lane=request.param == "lane")
    client, namespace = open_client(fresh_store.runtime_dir, config)
    yield client, namespace
    client.close()


def write(namespace: Namespace, reservation: Reservation, tokens: list[int]) -> None:
    """Writes all pages of a reservation from the beginning of a sequence."""
    for number, page in enumerate(reservation.pages):
        namespace.page(page)[:] = page_bytes(tokens, number)


def test_sequences_begin_publish_and_end_in_three_steps(opened: tuple[Client, Namespace]) -> None:
    """Three sequences acquire, insert, and are released, each step in one call."""
    client, namespace = opened
    prompts = [prompt(part)[:9] for part in (1, 2, 3)]
    with StoreStep(namespace) as step:
        begun = [step.acquire(each, total_page_count=2) for each in prompts]
    acquired: list[Acquired] = [each.result() for each in begun]
    reservations: list[Reservation] = []
    for each, tokens in zip(acquired, prompts, strict=True):
        assert each.failure is None
        assert each.reservation is not None
        write(namespace, each.reservation, tokens)
        reservations.append(each.reservation)
    with StoreStep(namespace) as step:
        publishing = [
            step.insert(each, tokens[:8], position=0, next_token=5)
            for each, tokens in zip(reservations, prompts, strict=True)
        ]
        looking = [step.match(each) for each in prompts]
    inserted: list[Inserted] = [each.result() for each in publishing]
    assert [each.published_page_count for each in inserted] == [2, 2, 2]
    matches: list[Match] = [each.result() for each in looking]
    assert [each.token_count for each in matches] == [8, 8, 8]
    for match, tokens in zip(matches, prompts, strict=True):
        assert match.failure is None
        assert holds_tokens(namespace, tokens, match.pages)
        assert match.current
    with StoreStep(namespace) as step:
        step.release(*matches, *acquired)
    assert client.flush(LIMIT)
    assert nothing_held(client)
    assert all(not hold.open for each in acquired for hold in each.holds)


def test_each_operation_has_its_own_end(opened: tuple[Client, Namespace]) -> None:
    """Refused operations raise what their single calls raise, and the others succeed."""
    client, namespace = opened
    pages = write_and_insert(namespace, TOKENS)
    spent = StoreBudget(0.0)
    step = StoreStep(namespace)
    with namespace.reserve(start_page=0, page_count=1) as reservation:
        too_many = step.reserve(start_page=0, page_count=1000)
        too_long = step.insert(reservation, WHOLE, position=0)
        late = step.match(TOKENS, budget=spent)
        found = step.match(TOKENS, groups=[GroupWindow(1, 1)])
        hit = step.match(TOKENS)
        room = step.reserve(start_page=4, page_count=2)
        step.run()
        with pytest.raises(errors.PoolExhausted):
            too_many.result()
        with pytest.raises(errors.InsertExceedsReservation):
            too_long.result()
        assert "not asked" in str(late.result().failure)
        with hit.result() as match, room.result() as reserved, found.result() as other:
            assert match.pages == pages
            assert (reserved.start_page, reserved.page_count) == (4, 2)
            assert (other.failure, other.token_count) == (None, 0)
    assert client.flush(LIMIT)
    assert nothing_held(client)


def test_an_aborted_reservation_fails_its_own_insert(opened: tuple[Client, Namespace]) -> None:
    """An insert that its single call would refuse is not sent; the rest of the step is."""
    _, namespace = opened
    reservation = namespace.reserve(start_page=0, page_count=1)
    step = StoreStep(namespace)
    inserting = step.insert(reservation, WHOLE, position=0)
    looking = step.match(TOKENS)
    reservation.abort()
    step.run()
    with pytest.raises(ValueError, match="aborted"):
        inserting.result()
    assert looking.result().failure is None


def test_a_step_runs_once(opened: tuple[Client, Namespace]) -> None:
    """An outcome is known after the run; a second run and later operations are refused."""
    _, namespace = opened
    step = StoreStep(namespace)
    outcome = step.match(TOKENS)
    with pytest.raises(ValueError, match="did not run"):
        outcome.result()
    assert not outcome.known
    step.run()
    assert outcome.known
    for again in (step.run, lambda: step.match(TOKENS)):
        with pytest.raises(ValueError, match="ran already"):
            again()


def test_after_an_exception_nothing_is_sent(opened: tuple[Client, Namespace]) -> None:
    """A block that raises sends nothing, and what it would have released is still held."""
    client, namespace = opened
    write_and_insert(namespace, TOKENS)
    match = namespace.match(TOKENS)

    def fail() -> None:
        with StoreStep(namespace) as step:
            step.release(match)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert match.pin_id is not None
    assert client.admin.stats().pin_count == 1
    match.release()


def test_a_long_step_is_several_calls(
    opened: tuple[Client, Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More operations or tokens than a call may have go in several calls, in their order."""
    client, namespace = opened
    write_and_insert(namespace, TOKENS)
    monkeypatch.setattr("kvstore_client.store_step.MOST_TOKEN_BYTES", 3 * 4 * len(TOKENS))
    with StoreStep(namespace) as step:
        found = [step.match(TOKENS) for _ in range(10)]
    matches = [each.result() for each in found]
    assert [each.page_count for each in matches] == [PAGES] * 10
    with StoreStep(namespace) as step:
        for each in matches:
            step.release(each)
    assert client.flush(LIMIT)
    assert nothing_held(client)


def test_an_ended_session_s_holds_are_given_back(fresh_store: RunningStore) -> None:
    """A step after the end of the session is misses, and gives back what it releases."""
    client, namespace = open_client(fresh_store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    match = namespace.match(TOKENS)
    session = client._connector.session
    assert session is not None
    session.end(errors.StoreUnavailable("the test ends it"))
    with StoreStep(namespace) as step:
        again = step.match(TOKENS)
        step.release(match)
    assert isinstance(again.result().failure, errors.StoreUnavailable)
    assert match.pin_id is None
    assert wait_until(lambda: client.connected and nothing_held(client))
    client.close()


def test_holds_of_another_client_are_given_back(fresh_store: RunningStore) -> None:
    """A step that releases another client's holds makes single calls, each by its own client."""
    client, namespace = open_client(fresh_store.runtime_dir)
    other, its_namespace = open_client(fresh_store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    mine, its = namespace.match(TOKENS), its_namespace.match(TOKENS)
    with StoreStep(namespace) as step:
        again = step.match(TOKENS)
        step.release(mine, its)
    again.result().release()
    assert client.flush(LIMIT)
    assert other.flush(LIMIT)
    assert nothing_held(client)
    client.close()
    other.close()


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """Provides a line to a store that has the tokens' pages."""
    with running_store(*SMALL_STORE) as store, proxied(store.runtime_dir) as made:
        client, namespace = open_client(store.runtime_dir)
        write_and_insert(namespace, TOKENS)
        client.close()
        yield made


def test_a_silent_store_is_a_miss_for_all(proxy: Proxy) -> None:
    """Without an answer each operation fails by itself, and what was released goes back later."""
    config = ClientConfig(call_timeout=1.0, first_backoff=0.01, longest_backoff=0.1)
    with Client(proxy.runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        held = namespace.match(TOKENS)
        assert held.page_count == PAGES
        with namespace.reserve(start_page=0, page_count=1) as reservation:
            proxy.calls.line = proxy.attach.line = SILENT
            try:
                step = StoreStep(namespace)
                found, acquired = step.match(TOKENS), step.acquire(TOKENS, total_page_count=PAGES)
                inserting = step.insert(reservation, WHOLE[:4], position=0)
                room = step.reserve(start_page=1, page_count=1)
                step.release(held)
                step.run()
            finally:
                proxy.calls.line = proxy.attach.line = GOOD
            assert isinstance(found.result().failure, errors.StoreTimedOut)
            assert isinstance(acquired.result().failure, errors.StoreTimedOut)
            for each in (inserting, room):
                with pytest.raises(errors.StoreTimedOut):
                    each.result()
            assert held.pin_id is None
        assert wait_until(lambda: nothing_held(client))


def test_a_broken_lane_repeats_the_step(proxy: Proxy) -> None:
    """A step whose lane breaks is repeated over gRPC, with the same ids and the same outcomes."""
    config = ClientConfig(call_timeout=LIMIT)
    with Client(proxy.runtime_dir, config) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        assert client._connector.session is not None
        lanes = client._connector.session.calls._lanes
        assert lanes is not None
        namespace.match(TOKENS).release()
        [lane] = lanes._all
        lane.shut()
        with StoreStep(namespace) as step:
            found = [step.match(TOKENS) for _ in range(3)]
            room = step.reserve(start_page=0, page_count=2)
        assert [each.result().page_count for each in found] == [PAGES] * 3
        assert room.result().page_count == 2
        with StoreStep(namespace) as step:
            step.release(*(each.result() for each in found), room.result())
        assert client.flush(LIMIT)
        assert wait_until(lambda: nothing_held(client))
