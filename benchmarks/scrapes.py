"""The cost of metrics: a timed call over a lane, a scrape, and calls beside scrapes."""

import json
import os
import socket
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from statistics import median, quantiles
from threading import Event, Thread
from typing import Annotated, Any

import structlog
import typer
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from kvstore.assembly.metrics_listener import view_of
from kvstore.core.cache import PrefixCache
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits, Quotas, QuotaTable
from kvstore.core.values.requests import Caller, MatchOptions, ReservationRequest, Sequence
from kvstore.metrics.collector import StoreCollector
from kvstore.rpc.health.probes import OwnerProbe
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.lane import METHODS, Frame, HotLane, HotLanes, Party
from kvstore.service.call_durations import CallTimes
from kvstore.service.clock import MONOTONIC
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.storage.arenas import Arenas
from kvstore.storage.host.host_memory import HostMemory
from kvstore.v1 import attach_pb2
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import Client, ClientConfig
from kvstore_client import NamespaceIdentity as ClientIdentity
from kvstore_client.testing import RunningStore, running_store
from kvstore_client.values.page_layout import OpaqueContent as ClientContent
from kvstore_client.values.page_layout import PageLayout as ClientLayout
from support import machine

EPOCH = 1
PAGE_TOKENS, PAGE_BYTES = 16, 64
TOKENS = array("I", range(2048)).tobytes()
PAGES, SEQUENCE_PAGES = 50_000, 100
LEASES, PINS_OF_LEASE = 200, 50
QUICK_PAGES, QUICK_LEASES = 5_000, 20
LIMIT = 60.0
# Scrapes a second, as many as of many scrapers together. One scraper takes fifteen seconds for one.
SCRAPES = 10
CALLS_AT_ONCE = 50
# Turns of calls in a round.
TURNS = 10
# Too few rounds for figures, but enough to show that it runs.
FEW = 5


class Rig:
    """A store in this process, a lease of this process, and a namespace."""

    def __init__(self, pages: int, stack: ExitStack) -> None:
        size = (pages + 1_000) * PAGE_BYTES
        arenas = Arenas(budget_bytes=size, extent_bytes=size, source=HostMemory())
        stack.callback(arenas.close)
        self.clock = MONOTONIC
        quotas = QuotaTable(Quotas(leases=10_000, pins=1_000_000))
        cache = PrefixCache(EPOCH, Limits(), quotas=quotas)
        self.store = KVStore(cache, arenas=arenas, clock=self.clock)
        self.credentials = Credentials()
        self.layout = PageLayout(PAGE_TOKENS, PAGE_BYTES, 1, OpaqueContent(b"metrics"))

    def lease(self, number: int) -> tuple[Caller, bytes]:
        """Grants a lease and returns its caller and its namespace, which all share."""
        identity = self.credentials.identity_of(os.geteuid())
        caller = Caller(identity, number.to_bytes(16), bytes(32), EPOCH)
        self.store.grant(caller, ttl=3600.0, display_name=f"engine {number % 40}", features=())
        self.store.bind(caller, process_id=number, pid=os.getpid(), uid=os.geteuid())
        namespace = self.store.open_namespace(caller, NamespaceIdentity(b"m"), self.layout)
        owed = self.store.hand_out(number)
        self.store.acknowledge(number, [each.shape.extent_id for each in owed])
        return caller, namespace.namespace_id

    def publish(self, caller: Caller, namespace_id: bytes, number: int, tokens: bytes) -> None:
        """Inserts whole pages."""
        pages = len(tokens) // 4 // PAGE_TOKENS
        request = ReservationRequest(number, start_page=0, page_count=pages)
        self.store.reserve(caller, namespace_id, [request])
        self.store.insert(caller, number, Sequence(tokens))
        self.store.abort(caller, [number])


def in_turns(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, Any]:
    """Makes calls in turns. Returns microseconds of processor time, and ratios."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds * TURNS):
        for name, call in list(calls.items())[:: -1 if number % 2 else 1]:
            began = time.thread_time()
            for _ in range(CALLS_AT_ONCE):
                call()
            times[name].append((time.thread_time() - began) / CALLS_AT_ONCE * 1e6)
    first = next(iter(times.values()))
    return {
        name: {
            "median_us": round(median(each), 2),
            "ratio": round(median(a / b for a, b in zip(each, first, strict=True)), 4),
        }
        for name, each in times.items()
    }


def lane_call(rounds: int) -> dict[str, Any]:
    """Measures the server's part of calls over a lane, timed and untimed. No socket is used."""
    with ExitStack() as stack:
        rig = Rig(1_000, stack)
        caller, namespace_id = rig.lease(1)
        rig.publish(caller, namespace_id, 1, TOKENS)
        untimed = stack.enter_context(HotLanes(rig.store, rig.credentials, rig.clock))
        rig.store.call_times["lane"] = CallTimes()
        timed = stack.enter_context(HotLanes(rig.store, rig.credentials, rig.clock))
        party = Party(os.geteuid(), caller.lease_id, caller.secret_digest, 1)
        lane = HotLane(stack.enter_context(socket.socket()), party, max_body_bytes=1 << 20)
        named = pb.Caller(lease_id=caller.lease_id, store_epoch=EPOCH)
        bodies = {
            "release": ("ReleasePins", pb.ReleasePinsRequest(caller=named, pin_ids=[9])),
            "match": (
                "MatchPrefix",
                pb.MatchPrefixRequest(
                    caller=named,
                    namespace_id=namespace_id,
                    pin_id=7,
                    sequence=pb.Sequence(tokens=TOKENS),
                ),
            ),
        }
        figures = {}
        for what, (method, body) in bodies.items():
            head = attach_pb2.LaneCall(
                method=METHODS.index(f"/kvstore.v1.PrefixCacheService/{method}"), timeout_us=10**6
            )
            frame = Frame(head.SerializeToString(), body.SerializeToString())

            def call(by: HotLanes, frame: Frame = frame) -> Callable[[], None]:
                def made() -> None:
                    lane.came_at = rig.clock()
                    answer, _ = by.answer(lane, frame)
                    assert not answer

                return made

            figures[what] = in_turns({"untimed": call(untimed), "timed": call(timed)}, rounds)
        return figures


def scrape(pages: int, leases: int, rounds: int) -> dict[str, Any]:
    """Measures a scrape of a store with many pages and many holds."""
    with ExitStack() as stack:
        rig = Rig(pages, stack)
        callers = [rig.lease(number + 1) for number in range(leases)]
        caller, namespace_id = callers[0]
        sequences = []
        for number in range(pages // SEQUENCE_PAGES):
            first = number * SEQUENCE_PAGES * PAGE_TOKENS
            tokens = array("I", range(first, first + SEQUENCE_PAGES * PAGE_TOKENS)).tobytes()
            rig.publish(caller, namespace_id, number + 1, tokens)
            sequences.append(Sequence(tokens))
        for caller, namespace_id in callers:
            for pin in range(PINS_OF_LEASE):
                options = MatchOptions((1 << 32) + pin)
                rig.store.match(caller, namespace_id, sequences[pin % len(sequences)], options)
        owner = OwnerProbe(rig.store.responds, rig.clock, 1.0)
        health = Health((), {}, clock=rig.clock)
        view = partial(view_of, rig.store, health, owner, rig.clock)
        registry = CollectorRegistry()
        registry.register(StoreCollector(view))
        times: dict[str, list[float]] = {"stats": [], "scrape": []}
        for _ in range(rounds):
            times["stats"].append(view().seconds)
            began = time.perf_counter()
            text = generate_latest(registry)
            times["scrape"].append(time.perf_counter() - began)
        return {
            "pages": view().stats.namespaces[0].cached_page_count,
            "leases": leases,
            "pins": view().stats.pin_count,
            "lines": len(text.splitlines()),
            "bytes": len(text),
            **{f"{name}_ms": round(median(each) * 1e3, 2) for name, each in times.items()},
        }


@contextmanager
def scraping(port: int, running: Event) -> Iterator[None]:
    """Scrapes that many times a second while ``running`` is set, until the block ends."""
    ended = Event()

    def scrape_all() -> None:
        while not ended.wait(1 / SCRAPES):
            if running.is_set():
                connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
                connection.request("GET", "/metrics")
                connection.getresponse().read()
                connection.close()

    thread = Thread(target=scrape_all, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def matching(*arguments: str) -> Iterator[tuple[RunningStore, Callable[[], None]]]:
    """Provides a server and a client's match of 2,048 cached tokens, with its release."""
    layout = ClientLayout(PAGE_TOKENS, 4096, ClientContent(b"metrics"))
    tokens = list(range(2048))
    with (
        running_store(*arguments) as store,
        Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client,
    ):
        namespace = client.namespace(ClientIdentity(b"m"), layout)
        assert namespace.wait_open(LIMIT), namespace.failure
        with namespace.reserve(start_page=0, page_count=128) as reservation:
            reservation.insert(tokens, position=0)
        asked = [*tokens, 0]
        yield store, lambda: namespace.match(asked).release()


def beside(rounds: int, seconds: float) -> dict[str, Any]:
    """Measures matches in turns: without metrics, with metrics, and beside scrapes."""
    running = Event()
    with ExitStack() as stack:
        _, plain = stack.enter_context(matching())
        store, timed = stack.enter_context(matching("--metrics-listen", "127.0.0.1:0"))
        port = int(store.log.partition("http_listening")[2].partition("port=")[2].split()[0])
        stack.enter_context(scraping(port, running))
        calls = {"without": plain, "with": timed, "scraped": timed}
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for number in range(rounds):
            for name, call in list(calls.items())[:: -1 if number % 2 else 1]:
                running.set() if name == "scraped" else running.clear()
                taken = []
                end = time.perf_counter() + seconds
                while (began := time.perf_counter()) < end:
                    call()
                    taken.append((time.perf_counter() - began) * 1e6)
                figures[name].append((median(taken), quantiles(taken, n=100)[98]))
    found: dict[str, Any] = {"scrapes_a_second": SCRAPES}
    for at, what in enumerate(("p50", "p99")):
        found[f"{what}_us"] = {
            name: {
                "median": round(median(each[at] for each in of), 1),
                "ratio": round(
                    median(b[at] / a[at] for a, b in zip(figures["without"], of, strict=True)), 3
                ),
            }
            for name, of in figures.items()
        }
    return found


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take some seconds, with rougher figures.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 51,
) -> None:
    """Measures the cost of metrics for calls and for the store."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    before = machine.load_average()
    rounds = min(rounds, 5) if quick else rounds
    pages, leases = (PAGES, LEASES) if rounds > FEW else (QUICK_PAGES, QUICK_LEASES)
    document = {
        "benchmark": "scrapes",
        "machine": machine.machine_facts(),
        "lane_call": lane_call(rounds),
        "scrape": scrape(pages, leases, rounds),
        "beside": beside(rounds, 0.5 if rounds > FEW else 0.2),
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {"rounds": rounds, "calls_of_a_round": CALLS_AT_ONCE},
    }
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        Console().print_json(data=document)


if __name__ == "__main__":
    typer.run(main)
