"""What the page's address answers: its files, and below /api/ what they show."""

from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from kvstore import __version__
from kvstore.core import Identity
from kvstore.core.stats import Stats
from kvstore.errors import KVStoreError, NamespaceNotFound
from kvstore.http.connection import Route
from kvstore.http.request import Refused, Request
from kvstore.http.response import Response
from kvstore.page.files import file_routes
from kvstore.page.history import History, sample_of
from kvstore.page.outline import Entry
from kvstore.page.recent import Recent
from kvstore.page.state import holds_json, state_json
from kvstore.page.trees import Trees
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore

# Whoever looks sees what an admin's lists have: no tenant is to be told from this page.
EVERYONE: Final = Identity("kvstore-page", admin=True)
# Seconds that a snapshot serves all who ask.
SNAPSHOT_AGE: Final = 1.0
# Nodes in one answer.
DEFAULT_NODES, MOST_NODES = 60, 400
# Tokens of a node that are shown where the operator said so.
MAX_TOKENS: Final = 24
# Larger than any of them comes to be, and still an integer to a browser and to numpy.
LARGEST_NUMBER: Final = (1 << 53) - 1
MOST_DIGITS: Final = 16


class PageSite:
    """The routes of the page, over one snapshot a second. Thread-safe.

    ``budgets`` are bytes by tier. With ``shows_tokens`` the first token ids of prefixes are
    shown, which are what users wrote.
    """

    def __init__(
        self,
        store: KVStore,
        clock: Clock,
        *,
        budgets: Mapping[int, int],
        shows_tokens: bool = False,
    ) -> None:
        self._store = store
        self._budgets = budgets
        self._shows_tokens = shows_tokens
        self._history = History()
        self._trees = Trees(store, clock, EVERYONE)
        self._stats: Recent[tuple[Stats, float]] = Recent(
            lambda: (store.stats(EVERYONE), store.uptime()), clock, max_age=SNAPSHOT_AGE
        )

    def tick(self) -> None:
        """Notes what was counted by now; once a second."""
        self._history.take(sample_of(self._store.totals(), self._store.uptime()))

    def routes(self) -> dict[str, Route]:
        """Returns all routes, by path."""
        return {
            **file_routes(),
            "/api/state": self._state,
            "/api/history": self._samples,
            "/api/tree": self._tree,
            "/api/holds": self._holds,
        }

    def _state(self, request: Request) -> Response:
        _require_known(request)
        stats, uptime = self._stats.get()
        tier3 = self._store.tier3.use()
        state = state_json(stats, tier3, uptime=uptime, budgets=self._budgets)
        return Response.json({"version": __version__, "shows_tokens": self._shows_tokens} | state)

    def _samples(self, request: Request) -> Response:
        _require_known(request, "after")
        after = _number(request, "after", default=-1)
        return Response.json(self._history.since(after))

    def _tree(self, request: Request) -> Response:
        _require_known(request, "namespace", "node", "skip", "count")
        stats, _ = self._stats.get()
        number = _number(request, "namespace")
        found = next((each for each in stats.namespaces if each.number == number), None)
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "no such namespace")
        try:
            tree = self._trees.get(found.namespace_id)
        except KVStoreError:
            raise Refused(HTTPStatus.NOT_FOUND, "no such namespace any more") from None
        entry = tree.look(
            _number(request, "node", default=0),
            count=_number(request, "count", default=DEFAULT_NODES, most=MOST_NODES),
            skip=_number(request, "skip", default=0),
        )
        if entry is None:
            raise Refused(HTTPStatus.NOT_FOUND, "no such node: it went, or never was")
        entries = list(_all_of(entry))
        uptime = self._store.uptime()
        for each in entries:
            each["age"] = self._history.age(each.pop("used"), uptime)
        if self._shows_tokens:
            with suppress(NamespaceNotFound):
                self._add_tokens(found.namespace_id, entries)
        return Response.json({"nodes": len(tree), "node": entry})

    def _add_tokens(self, namespace_id: bytes, entries: list[Entry]) -> None:
        numbers = [each["id"] for each in entries if "id" in each]
        tokens = self._store.first_tokens(EVERYONE, namespace_id, numbers, MAX_TOKENS)
        for each in entries:
            known = tokens.get(each.get("id", 0))
            if known is not None:
                each["ids"] = list(memoryview(known).cast("I"))

    def _holds(self, request: Request) -> Response:
        _require_known(request, "lease")
        stats, _ = self._stats.get()
        number = _number(request, "lease")
        found = next((each for each in stats.leases if each.number == number), None)
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "no such lease")
        try:
            holds = self._store.holds(EVERYONE, found.lease_id, found.tenant)
        except KVStoreError:
            raise Refused(HTTPStatus.NOT_FOUND, "no such lease any more") from None
        numbers = {each.namespace_id: each.number for each in stats.namespaces}
        return Response.json(holds_json(holds, numbers))


def _all_of(entry: Entry) -> list[Entry]:
    """Returns an entry, all below it, and what stands for what is left out."""
    found: list[Entry] = []
    todo: list[Any] = [entry]
    while todo:
        each = todo.pop()
        found.append(each)
        todo += each.get("children", ())
        if each.get("other") is not None:
            todo.append(each["other"])
    return found


def _require_known(request: Request, *names: str) -> None:
    """Raises Refused for a field of the query that is none, or stands there twice."""
    for name, values in request.query.items():
        if name not in names or len(values) > 1:
            raise Refused(HTTPStatus.BAD_REQUEST, "no such field, or not once")


def _number(
    request: Request, name: str, *, default: int | None = None, most: int = LARGEST_NUMBER
) -> int:
    """Returns a field of the query, at most ``most``; raises Refused unless it is a number."""
    [text] = request.query.get(name, [""])
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > MOST_DIGITS:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name} has to be a number")
    return min(int(text), most)
