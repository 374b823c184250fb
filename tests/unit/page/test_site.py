"""What the page's address answers."""

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import pytest

from kvstore.core.values.layout import NamespaceIdentity
from kvstore.http.request import Refused, Request
from kvstore.page.site import EVERYONE, MAX_TOKENS, MOST_NODES, PageSite
from kvstore.page.state import MOST
from stores.page_world import PageWorld
from stores.store_world import make_world

SHARED = (1, 2, 3, 4, 5, 6, 7, 8)
SCRIPT = "<script>alert(1)</script>"
SECRET = NamespaceIdentity(b"model digest 16+", salt=b"pepper", display_name=SCRIPT)


def get(site: PageSite, path: str) -> Any:  # noqa: ANN401  # whatever the route has
    """Returns the JSON that a path answers."""
    path, _, query = path.partition("?")
    response = site.routes()[path](Request("GET", path, parse_qs(query, keep_blank_values=True)))
    assert (response.status, response.content_type) == (HTTPStatus.OK, "application/json")
    return json.loads(response.body)


def test_the_state_of_a_store_that_has_nothing() -> None:
    """Lists are empty, tiers are there with their budget, and nothing is divided by zero."""
    world = make_world()
    state = get(PageSite(world.store, world.clock, budgets={1: 4096}), "/api/state")
    assert (state["namespaces"], state["leases"], state["tenants"]) == ([], [], [])
    [tier] = state["tiers"]
    assert (tier["tier"], tier["budget"], sum(tier["bytes"].values())) == (1, 4096, 0)
    assert state["totals"]["lookup_count"] == 0
    world.close()


def test_the_state_has_tiers_namespaces_and_leases(page: PageWorld) -> None:
    """Bytes by state, what is cached for whom, and what each lease holds."""
    page.publish(*SHARED, 9, 10, 11, 12)
    page.match(*SHARED, 99)
    state = get(page.site, "/api/state")
    [tier], [namespace], [lease] = state["tiers"], state["namespaces"], state["leases"]
    assert (tier["slots"]["cached"], tier["bytes"]["cached"]) == (3, 3 * 256)
    assert sum(tier["bytes"].values()) == 32 * 256
    assert (namespace["number"], namespace["pages"], namespace["bytes"]) == (1, 3, 3 * 256)
    assert (namespace["asked"], namespace["found"], namespace["lookups"]) == (9, 8, 1)
    assert (lease["number"], lease["name"], lease["pins"]) == (1, "worker <b>A</b>", 1)
    assert (lease["pinned_pages"], lease["expired"], lease["pids"]) == (2, False, [1])
    assert isinstance(state["epoch"], str)


def test_no_id_that_a_call_takes_is_shown(page: PageWorld) -> None:
    """Neither a lease's nor a namespace's id or salt, whatever is asked."""
    page.world.store.open_namespace(page.caller, SECRET, page.world.layout)
    page.publish(*SHARED)
    page.match(*SHARED, 99)
    page.site.tick()
    paths = ("state", "history", "tree?namespace=1", "holds?lease=1")
    shown = "".join(json.dumps(get(page.site, f"/api/{each}")) for each in paths)
    for secret in (page.namespace_id, page.caller.lease_id, page.caller.secret, SECRET.salt):
        assert secret.hex() not in shown
        assert secret.decode("latin-1") not in shown
    assert SECRET.model_digest.hex() not in shown
    assert SCRIPT in shown


def test_a_snapshot_serves_all_who_ask_within_a_second(page: PageWorld) -> None:
    """What changed is shown a second later, and not before."""
    assert get(page.site, "/api/state")["namespaces"][0]["pages"] == 0
    page.publish(*SHARED)
    assert get(page.site, "/api/state")["namespaces"][0]["pages"] == 0
    page.world.clock.now += 1
    assert get(page.site, "/api/state")["namespaces"][0]["pages"] == 2


def test_lists_are_bounded(page: PageWorld) -> None:
    """The largest are shown, and how many are not."""
    for number in range(MOST + 5):
        page.world.worker(name=f"worker {number}")
    state = get(page.site, "/api/state")
    assert (len(state["leases"]), state["left_out"]["leases"]) == (MOST, 6)


def test_a_late_lease_comes_first(page: PageWorld) -> None:
    """However little it holds: it is what an operator looks for."""
    page.publish(*SHARED, hold=True)
    page.world.clock.now += 5
    page.world.worker(name="young")
    page.world.clock.now += 6
    page.world.store.expire()
    state = get(page.site, "/api/state")
    assert [(each["name"], each["expired"]) for each in state["leases"]] == [
        ("worker <b>A</b>", True),
        ("young", False),
    ]


def test_the_tree_shows_prefixes_without_their_tokens(page: PageWorld) -> None:
    """Where prompts part, how often and how long ago each was used, and who holds it."""
    page.publish(*SHARED, 9, 10, 11, 12)
    page.publish(*SHARED, 13, 14, 15, 16, 17, 18, 19, 20)
    page.site.tick()
    page.world.clock.now += 5
    page.match(*SHARED, 9, 10, 11, 12, 99)
    page.site.tick()
    page.world.clock.now += 2
    answer = get(page.site, "/api/tree?namespace=1")
    [shared] = answer["node"]["children"]
    long, short = shared["children"]
    assert (answer["nodes"], shared["tokens"], shared["total"]) == (3, 8, 20)
    assert (long["tokens"], long["hits"], long["age"], long["holds"]) == (8, 0, 7.0, 0)
    assert (short["tokens"], short["hits"], short["age"], short["holds"]) == (4, 1, 2.0, 1)
    assert "ids" not in json.dumps(answer)
    below = get(page.site, f"/api/tree?namespace=1&node={shared['id']}&count=1")
    assert [each["id"] for each in below["node"]["children"]] == [long["id"]]
    assert (below["node"]["other"]["count"], below["node"]["other"]["age"]) == (1, 2.0)


def test_what_an_expired_lease_holds_is_marked(page: PageWorld) -> None:
    """Its holds stay, since its process lives, and are told apart."""
    page.publish(*SHARED)
    page.match(*SHARED, 99)
    page.world.clock.now += 11
    page.world.store.expire()
    [shown] = get(page.site, "/api/tree?namespace=1")["node"]["children"]
    assert (shown["holds"], shown["overdue"]) == (1, 1)


def test_tokens_are_shown_where_the_operator_said_so(page: PageWorld) -> None:
    """The first of each prefix, and no more than are of use."""
    page.publish(*range(100, 132))
    site = PageSite(page.world.store, page.world.clock, budgets={}, shows_tokens=True)
    [shown] = get(site, "/api/tree?namespace=1")["node"]["children"]
    assert shown["ids"] == list(range(100, 100 + MAX_TOKENS))
    assert get(site, "/api/state")["shows_tokens"] is True


def test_a_leases_holds_are_shown_one_by_one(page: PageWorld) -> None:
    """Pins and reservations, with what of which namespace they hold."""
    page.publish(*SHARED, hold=True)
    page.match(*SHARED, 99)
    answer = get(page.site, "/api/holds?lease=1")
    kinds = [(each["kind"], each["pages"], each["namespace"]) for each in answer["holds"]]
    assert kinds == [("reservation", 2, 1), ("pin", 2, 1)]
    assert answer["left_out"] == 0


def test_holds_are_bounded(page: PageWorld) -> None:
    """A hundred of them, and how many more there are."""
    page.publish(*SHARED)
    for _ in range(MOST + 3):
        page.match(*SHARED, 99)
    answer = get(page.site, "/api/holds?lease=1")
    assert (len(answer["holds"]), answer["left_out"]) == (MOST, 3)


def test_history_goes_on_from_where_it_was_read(page: PageWorld) -> None:
    """Samples a second, with the columns' names beside them."""
    for _ in range(3):
        page.site.tick()
        page.world.clock.now += 1
    answer = get(page.site, "/api/history?after=0")
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
    """With a status, and a word on why; nothing is guessed."""
    with pytest.raises(Refused) as refused:
        get(page.site, path)
    assert refused.value.status == status


def test_a_tree_has_no_more_nodes_than_are_allowed(page: PageWorld) -> None:
    """However many are asked for."""
    for number in range(10):
        page.publish(number, 0, 0, 0)
    answer = get(page.site, f"/api/tree?namespace=1&count={MOST_NODES * 1000}")
    assert len(answer["node"]["children"]) == 10


def test_a_lease_that_ended_since_the_snapshot_is_not_found(page: PageWorld) -> None:
    """What was listed a moment ago may be gone."""
    get(page.site, "/api/state")
    page.world.store.revoke(page.caller)
    with pytest.raises(Refused) as refused:
        get(page.site, "/api/holds?lease=1")
    assert refused.value.status == HTTPStatus.NOT_FOUND


def test_a_namespace_that_was_deleted_since_the_snapshot_is_not_found(page: PageWorld) -> None:
    """Its tree is gone, and says so; the next snapshot has no such namespace."""
    page.publish(*SHARED)
    get(page.site, "/api/state")
    page.world.store.delete_namespace(EVERYONE, page.namespace_id)
    with pytest.raises(Refused) as refused:
        get(page.site, "/api/tree?namespace=1")
    assert refused.value.status == HTTPStatus.NOT_FOUND
    page.world.clock.now += 1
    assert get(page.site, "/api/state")["namespaces"] == []
