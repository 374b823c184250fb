"""The page's answers below /api/."""

import json
from http import HTTPStatus
from typing import Any

import pytest
from starlette.testclient import TestClient

from kvstore.core.values.layout import NamespaceIdentity
from kvstore_client.errors import StoreUnavailable
from kvstore_ctl.page.page_routes import MAX_NODES
from kvstore_ctl.page.snapshot_json import MAX_ENTRIES
from kvstore_ctl.page.store_feed import MAX_TOKENS
from stores.page_world import ADMIN, PageWorld
from stores.store_world import make_world

SHARED = (1, 2, 3, 4, 5, 6, 7, 8)
SCRIPT = "<script>alert(1)</script>"
SECRET = NamespaceIdentity(b"model digest 16+", salt=b"pepper", display_name=SCRIPT)


def ask(page: PageWorld, path: str, *, poll: bool = True, host: str = "localhost") -> Any:  # noqa: ANN401
    """Returns the response of a path, by default after a poll."""
    if poll:
        page.feed.poll()
    return TestClient(page.site, base_url=f"http://{host}").get(path)


def get(page: PageWorld, path: str, *, poll: bool = True) -> Any:  # noqa: ANN401
    """Returns the JSON of a path."""
    response = ask(page, path, poll=poll)
    assert response.status_code == HTTPStatus.OK, response.text
    return response.json()


def test_the_state_of_a_store_that_has_nothing() -> None:
    """An empty store has empty lists and its tiers' budgets, and nothing is divided by zero."""
    world = make_world()
    state = get(PageWorld(world, world.caller(), b""), "/api/state")
    assert (state["namespaces"], state["leases"], state["tenants"]) == ([], [], [])
    [tier] = state["tiers"]
    assert (tier["tier"], tier["budget"] > 0, sum(tier["bytes"].values())) == (1, True, 0)
    assert state["totals"]["lookup_count"] == 0
    world.close()


def test_the_state_has_tiers_namespaces_and_leases(page: PageWorld) -> None:
    """The state has bytes by slot state, cached pages by namespace, and each lease's holds."""
    page.publish(*SHARED, 9, 10, 11, 12)
    page.match(*SHARED, 99)
    state = get(page, "/api/state")
    [tier], [namespace], [lease] = state["tiers"], state["namespaces"], state["leases"]
    assert (tier["slots"]["cached"], tier["bytes"]["cached"]) == (3, 3 * 256)
    assert sum(tier["bytes"].values()) == tier["budget"] == 32 * 256
    assert (namespace["pages"], namespace["bytes"]) == (3, 3 * 256)
    assert (namespace["asked"], namespace["found"], namespace["lookups"]) == (9, 8, 1)
    assert (lease["name"], lease["pins"]) == ("worker <b>A</b>", 1)
    assert (lease["pinned_pages"], lease["expired"], lease["pids"]) == (2, False, [1])
    assert isinstance(state["epoch"], str)


def test_no_id_that_a_call_takes_is_shown(page: PageWorld) -> None:
    """No answer shows the id of a lease, or the id or salt of a namespace."""
    page.world.store.open_namespace(page.caller, SECRET, page.world.layout)
    page.publish(*SHARED)
    page.match(*SHARED, 99)
    lease = get(page, "/api/state")["leases"][0]["number"]
    paths = ("state", "history", "tree?namespace=1", f"holds?lease={lease}")
    shown = "".join(json.dumps(get(page, f"/api/{each}")) for each in paths)
    for secret in (page.namespace_id, page.caller.lease_id, page.caller.secret_digest, SECRET.salt):
        assert secret.hex() not in shown
        assert secret.decode("latin-1") not in shown
    assert SECRET.model_digest.hex() not in shown
    assert SCRIPT in shown


def test_a_snapshot_serves_all_requests_until_the_next(page: PageWorld) -> None:
    """A request does not call the store."""
    assert get(page, "/api/state")["namespaces"][0]["pages"] == 0
    page.publish(*SHARED)
    assert get(page, "/api/state", poll=False)["namespaces"][0]["pages"] == 0
    assert get(page, "/api/state")["namespaces"][0]["pages"] == 2


def test_lists_are_bounded(page: PageWorld) -> None:
    """The largest entries are shown, with the number of the others."""
    for number in range(MAX_ENTRIES + 5):
        page.world.worker(name=f"worker {number}")
    state = get(page, "/api/state")
    assert (len(state["leases"]), state["left_out"]["leases"]) == (MAX_ENTRIES, 6)


def test_a_late_lease_comes_first(page: PageWorld) -> None:
    """An expired lease comes first, even if it holds little. Operators look for it."""
    page.publish(*SHARED, hold=True)
    page.world.clock.now += 5
    page.world.worker(name="young")
    page.world.clock.now += 6
    page.world.store.expire()
    state = get(page, "/api/state")
    assert [(each["name"], each["expired"]) for each in state["leases"]] == [
        ("worker <b>A</b>", True),
        ("young", False),
    ]


def test_the_tree_shows_prefixes_without_their_tokens(page: PageWorld) -> None:
    """The tree shows forks, hits and holds without any token."""
    page.publish(*SHARED, 9, 10, 11, 12)
    page.publish(*SHARED, 13, 14, 15, 16, 17, 18, 19, 20)
    page.match(*SHARED, 9, 10, 11, 12, 99)
    answer = get(page, "/api/tree?namespace=1")
    [shared] = answer["node"]["children"]
    long, short = shared["children"]
    assert (answer["nodes"], shared["tokens"], shared["total"]) == (3, 8, 20)
    assert (long["tokens"], long["hits"], long["holds"]) == (8, 0, 0)
    assert (short["tokens"], short["hits"], short["holds"]) == (4, 1, 1)
    assert "ids" not in json.dumps(answer)
    below = get(page, f"/api/tree?namespace=1&node={shared['id']}&count=1")
    assert [each["id"] for each in below["node"]["children"]] == [long["id"]]
    assert (below["node"]["other"]["count"], below["node"]["other"]["holds"]) == (1, 1)


def test_tokens_are_shown_where_the_operator_said_so(page: PageWorld) -> None:
    """If the operator allows it, each prefix shows its first tokens, up to a bound."""
    page.publish(*range(100, 132))
    shown = PageWorld(page.world, page.caller, page.namespace_id, shows_tokens=True)
    [node] = get(shown, "/api/tree?namespace=1")["node"]["children"]
    assert node["ids"] == list(range(100, 100 + MAX_TOKENS))
    assert get(shown, "/api/state")["shows_tokens"] is True


def test_a_leases_holds_are_shown_one_by_one(page: PageWorld) -> None:
    """Each pin and reservation is shown with its namespace and pages."""
    page.publish(*SHARED, hold=True)
    page.match(*SHARED, 99)
    answer = get(page, "/api/holds?lease=2")
    kinds = [(each["kind"], each["pages"], each["namespace"]) for each in answer["holds"]]
    assert kinds == [("reservation", 2, 1), ("pin", 2, 1)]
    assert answer["left_out"] == 0


def test_holds_are_bounded(page: PageWorld) -> None:
    """A lease shows at most a hundred holds, and the number of the others."""
    page.publish(*SHARED)
    for _ in range(MAX_ENTRIES + 3):
        page.match(*SHARED, 99)
    answer = get(page, "/api/holds?lease=2")
    assert (len(answer["holds"]), answer["left_out"]) == (MAX_ENTRIES, 3)


def test_history_goes_on_from_where_it_was_read(page: PageWorld) -> None:
    """The answer has the samples after a time and the columns' names."""
    for _ in range(3):
        page.feed.poll()
        page.world.clock.now += 1
    answer = get(page, "/api/history?after=0", poll=False)
    assert answer["columns"][:3] == ["time", "asked", "found"]
    assert [each[0] for each in answer["fine"]] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/tree", HTTPStatus.BAD_REQUEST),
        ("/api/tree?namespace=x", HTTPStatus.BAD_REQUEST),
        ("/api/tree?namespace=-1", HTTPStatus.BAD_REQUEST),
        ("/api/tree?namespace=1&node=99999999999999999999", HTTPStatus.BAD_REQUEST),
        ("/api/tree?namespace=1&node=%C2%B2", HTTPStatus.BAD_REQUEST),
        ("/api/tree?namespace=1&namespace=1", HTTPStatus.BAD_REQUEST),
        ("/api/tree?namespace=1&more=1", HTTPStatus.BAD_REQUEST),
        ("/api/state?x=", HTTPStatus.BAD_REQUEST),
        ("/api/tree?namespace=7", HTTPStatus.NOT_FOUND),
        ("/api/tree?namespace=1&node=9007199254740991", HTTPStatus.NOT_FOUND),
        ("/api/holds?lease=7", HTTPStatus.NOT_FOUND),
    ],
)
def test_what_cannot_be_answered_is_refused(page: PageWorld, path: str, status: HTTPStatus) -> None:
    """A wrong request gets a status and the reason."""
    response = ask(page, path)
    assert (response.status_code, len(response.text) > 5) == (status, True)


def test_a_tree_has_no_more_nodes_than_are_allowed(page: PageWorld) -> None:
    """A tree has at most the allowed number of nodes, whatever number is requested."""
    for number in range(10):
        page.publish(number, 0, 0, 0)
    answer = get(page, f"/api/tree?namespace=1&count={MAX_NODES * 1000}")
    assert len(answer["node"]["children"]) == 10


def test_a_lease_that_ended_since_the_snapshot_is_not_found(page: PageWorld) -> None:
    """A lease that ended after the last snapshot gives status 404."""
    page.feed.poll()
    page.world.store.revoke(page.caller)
    assert ask(page, "/api/holds?lease=2", poll=False).status_code == HTTPStatus.NOT_FOUND


def test_a_namespace_that_was_deleted_since_the_snapshot_is_not_found(page: PageWorld) -> None:
    """A namespace that was deleted after the last snapshot gives status 404."""
    page.publish(*SHARED)
    page.feed.poll()
    page.world.store.delete_namespace(ADMIN, page.namespace_id)
    response = ask(page, "/api/tree?namespace=1", poll=False)
    assert response.status_code == HTTPStatus.NOT_FOUND
    assert get(page, "/api/state")["namespaces"] == []


def test_an_object_keeps_its_number(page: PageWorld) -> None:
    """A lease keeps its number to its end, and a new lease gets a new number."""
    page.world.worker(name="B")
    before = {each["name"]: each["number"] for each in get(page, "/api/state")["leases"]}
    assert before == {"worker <b>A</b>": 2, "B": 3}
    page.world.store.revoke(page.caller)
    page.world.worker(name="C")
    after = {each["name"]: each["number"] for each in get(page, "/api/state")["leases"]}
    assert after == {"B": 3, "C": 4}


def test_a_restart_begins_the_history_again(page: PageWorld) -> None:
    """The history restarts with each epoch, because counters and ids belong to one epoch."""
    for _ in range(3):
        page.feed.poll()
    after = make_world()
    after.cache.epoch += 1
    page.connection.admin.world = after
    assert get(page, "/api/state")["leases"] == []
    assert len(get(page, "/api/history", poll=False)["fine"]) == 1
    after.close()


def test_a_store_that_does_not_answer_is_an_error(page: PageWorld) -> None:
    """A browser gets an error instead of old figures, until the store answers again."""
    page.feed.poll()
    page.connection.failure = StoreUnavailable("nobody listens")
    with pytest.raises(StoreUnavailable):
        page.feed.poll()
    for path in ("/api/state", "/api/tree?namespace=1", "/api/holds?lease=2"):
        status = ask(page, path, poll=False).status_code
        assert status == HTTPStatus.SERVICE_UNAVAILABLE
    page.connection.failure = None
    assert get(page, "/api/state")["leases"] != []


@pytest.mark.parametrize("host", ["rebound.example", "192.0.2.1", "localhost.example"])
def test_the_name_of_another_host_is_refused(page: PageWorld, host: str) -> None:
    """A request under another host's name, which may resolve to loopback, is refused."""
    assert ask(page, "/api/state", host=host).status_code == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize("host", ["localhost:7402", "127.0.0.1:7402", "[::1]:7402", "LOCALHOST"])
def test_the_names_of_loopback_are_answered(page: PageWorld, host: str) -> None:
    """Names of loopback are answered with and without a port."""
    assert ask(page, "/api/state", host=host).status_code == HTTPStatus.OK
