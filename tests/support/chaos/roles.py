"""The other workers of a chaos run: an operator, one who corrupts a page, one who reads all."""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from threading import Event

from chaos.control import Control, Phase
from chaos.load import PAGE_TOKENS, Load
from chaos.pages import Pages
from chaos.report import Report
from chaos.worker import IDENTITY, LAYOUT, LOOK, Orders, config_of
from kvstore_client import Admin, Client, Namespace, PageRef, Source, connect_admin
from kvstore_client.errors import StoreError
from kvstore_client.testing import wait_until
from support.page_stamps import TOKEN_BYTES, page_keys

WIDTH = PAGE_TOKENS * TOKEN_BYTES
# Between two acts of the operator, in seconds.
PAUSE = 0.1
# The operator's acts by their weights, and those where hosts share an engine: there an eviction
# makes the engine's pages of all hosts unreachable.
ACTS = {"evict": 4.0, "pin": 3.0, "unpin": 1.0, "list": 2.0, "delete": 0.05}
SHARED_ACTS = ACTS | {"evict": 0.01, "delete": 0.003}
# Longer than any prefix of the load.
MAX_TOKENS = 1024
LIMIT = 20.0
MAPPED_SECONDS = 5.0


def operate(load: Load, orders: Orders, control: Control, report: Report) -> None:
    """Does what an operator does, now and then, until the faults end."""
    chosen = random.Random(orders.seed)
    weights = SHARED_ACTS if orders.other_dir else ACTS
    pause = Event()
    while control.phase < Phase.CALM:
        pause.wait(PAUSE)
        with suppress(StoreError), connect_admin(orders.runtime_dir, timeout=1.0) as admin:
            while control.phase < Phase.CALM:
                [act] = chosen.choices(list(weights), list(weights.values()))
                _act(admin, load.draw(chosen, control.begun), chosen, act)
                report.counts["operator_acts"] += 1
                report.send()
                pause.wait(PAUSE)


def _act(admin: Admin, tokens: bytes, chosen: random.Random, act: str) -> None:
    ours = [each for each in admin.namespaces() if each.identity.display_name == "chaos"]
    if not ours:
        return
    namespace_id = ours[0].namespace_id
    name = f"pin {chosen.randrange(4)}"
    with suppress(StoreError):
        if act == "evict":
            # Never the first page, which begins all prompts of a trace.
            pages = chosen.randint(2, max(2, len(tokens) // WIDTH))
            admin.evict_prefix(namespace_id, tokens[: pages * WIDTH])
        elif act == "pin":
            admin.pin_prefix(namespace_id, name, tokens[: 4 * WIDTH], ttl=1.0)
        elif act == "unpin":
            admin.unpin_prefix(namespace_id, name)
        elif act == "delete":
            admin.delete_namespace(namespace_id)
        else:
            admin.leases()
            admin.named_pins()
            list(admin.prefixes(namespace_id, max_tokens=MAX_TOKENS))


def corrupt(load: Load, orders: Orders, control: Control, report: Report) -> None:
    """Breaks the contract: flip a byte in each of some cached pages, and hold them."""
    chosen = random.Random(orders.seed)
    with Client(orders.runtime_dir, config_of(orders)) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        left = orders.life
        while left and control.phase < Phase.LAST:
            namespace.wait_open(LOOK)
            match = namespace.match(load.draw(chosen, control.begun))
            pages = match.pages[:left]
            for page in pages:
                view = namespace.page(page)
                view[chosen.randrange(len(view))] ^= 1
            left -= len(pages)
            if not left:
                report.told("corrupted")
                _wait_for(Phase.LAST, control)
            match.release()


def walk(load: Load, orders: Orders, control: Control, report: Report) -> None:
    """Reads every page of the index, as a client that has just come."""
    del load, control
    with Client(orders.runtime_dir, config_of(orders)) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        if not namespace.wait_open(LIMIT):
            report.wrong("walk", f"not open: {namespace.failure}")
        pages = Pages(namespace, orders.name, report)
        for tokens in _sequences(client.admin):
            # One more token, so that all of the sequence may be matched.
            longer = tokens + bytes(TOKEN_BYTES)
            # A new client maps tier 2 in the background, and matches move pages between tiers.
            settled = partial(_is_settled, client.admin, namespace, longer)
            if not wait_until(settled, MAPPED_SECONDS):
                report.wrong("walk", f"{len(tokens) / WIDTH} cached pages do not match")
            with namespace.match(longer) as match:
                keys = list(page_keys(longer, PAGE_TOKENS))
                pages.check_match(tokens, keys, match)
            report.counts["sequences_walked"] += 1
    report.send()


def _is_settled(admin: Admin, namespace: Namespace, longer: bytes) -> bool:
    """Returns whether all but the last token match, or the index does not list them any more."""
    tokens = longer[:-TOKEN_BYTES]
    with namespace.match(longer) as match:
        if match.failure is None and _covered(match.pages, match.source, tokens):
            return True
    return tokens not in _sequences(admin)


def _covered(pages: Sequence[PageRef], source: Source | None, tokens: bytes) -> bool:
    return len(pages) == len(tokens) // WIDTH and (source is not None) == bool(len(tokens) % WIDTH)


def _sequences(admin: Admin) -> Iterator[bytes]:
    """Yields each sequence that the index holds, from its beginning to a node's end."""
    for namespace in admin.namespaces():
        if namespace.identity.display_name != "chaos":
            continue
        nodes = {
            each.node_id: each
            for each in admin.prefixes(namespace.namespace_id, max_tokens=MAX_TOKENS)
        }
        for node in nodes.values():
            tokens, up = node.tokens, node.parent_node_id
            while up in nodes:
                tokens, up = nodes[up].tokens + tokens, nodes[up].parent_node_id
            if tokens:
                yield tokens


def _wait_for(phase: Phase, control: Control) -> None:
    never = Event()
    while control.phase < phase:
        never.wait(LOOK)
