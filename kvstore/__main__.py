"""kvstore-server: builds the store from its parts, serves, and drains when it is told to stop.

The one place that knows every type. Memory is allocated when the first namespace
of an arena is opened, so a server that cannot allocate serves all the same: the
opening is refused with ``POOL_EXHAUSTED`` and its client tries again. A GPU that is
missing, or has less left than the budget and goes on so, is found before: it does
not start.
What has to be there before it serves are its threads and its sockets; until they
run, and again when one of them is found silent, health is NOT_SERVING.
"""

import os
import resource
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Timer

import structlog

from kvstore import __version__, grpc_log, tracing  # noqa: F401  # comes before gRPC
from kvstore.access import Access, read_access
from kvstore.config.loading import load_config, settings_error
from kvstore.config.settings import PROGRAM, Config
from kvstore.config.show import COMMAND, config_command
from kvstore.files import RuntimeDir, UnusableRuntimeDir
from kvstore.http.address import UnusableHttpAddress
from kvstore.http_listeners import listen_for_http
from kvstore.logs import configure_logging
from kvstore.process import (
    InstanceLock,
    InstanceRunning,
    ServiceManager,
    Signals,
    ignore_parent_death,
)
from kvstore.reload import Reloader, changes
from kvstore.rpc.attach.server import AttachServer
from kvstore.rpc.health.probes import OwnerProbe, PoolProbe
from kvstore.rpc.health.watchdog import Health, stacks
from kvstore.rpc.lane.server import FEATURE as HOT_LANE
from kvstore.rpc.lane.server import HotLanes
from kvstore.rpc.server import (
    SERVICES,
    Sockets,
    UnusableAddress,
    build_server,
    call_threads,
    listen,
)
from kvstore.rpc.servicers.prefix_cache import IN_FLIGHT
from kvstore.service.clock import MONOTONIC, Clock
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.service.threads import Collector, Grower, KeepTicker, MoveTicker, Reaper, Ticker
from kvstore.storage.errors import DeviceUnavailable, SlabInUse
from kvstore.store_building import build_store

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

EPOCH_BITS = 64
# How often it is looked whether there is much to collect.
COLLECT_SECONDS = 1.0
NO_TRACES = "the extra otel has them; nothing is traced"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Seconds for calls under way to end, once the leases are gone or the grace is over.
CALL_GRACE = 1.0
# Seconds that a look at the store's health waits for its mutex.
OWNER_PATIENCE = 0.25
# Seconds for everything to end after the grace is over; what has not by then never will.
STOP_PATIENCE = 15.0
# Why it does not start, each with a message for whoever started it.
REFUSALS = (
    *(DeviceUnavailable, InstanceRunning, SlabInUse),
    *(UnusableAddress, UnusableHttpAddress, UnusableRuntimeDir),
)
EXIT_FAILED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None, *, clock: Clock = MONOTONIC) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit status; a second signal ends at once.

    ``config`` as the first argument shows the settings instead, and serves nothing. By
    another ``clock`` a test has leases end when it likes.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if list(given[:1]) == [COMMAND]:
        return config_command(given[1:])
    try:
        config = load_config(given)
        access = read_access(config)
    except ValueError as error:
        _complain(settings_error(error))
        return EXIT_USAGE
    configure_logging(config.log_format, config.log_level)
    _allow_descriptors()
    if tracing.WANTED and not tracing.ON:
        log.warning("tracing_unavailable", missing=tracing.missing(), advice=NO_TRACES)
    try:
        with (
            tracing.exported(PROGRAM, __version__),
            Signals((*STOP_SIGNALS, signal.SIGHUP)) as signals,
        ):
            serve(config, access, signals, partial(load_config, given), clock)
    except REFUSALS as error:
        _complain(str(error))
        return EXIT_FAILED
    return 0


def serve(
    config: Config,
    access: Access,
    signals: Signals,
    read_again: Callable[[], Config],
    clock: Clock,
) -> None:
    """Serves until one of STOP_SIGNALS; then drain and stops. SIGHUP has it use ``read_again``.

    Raises what ``REFUSALS`` has.
    """
    runtime_dir = RuntimeDir(config.runtime_dir, access.sockets.group_id)
    with InstanceLock(runtime_dir), ExitStack() as stack:
        # Never zero, which stands for no epoch on the wire.
        epoch = secrets.randbits(EPOCH_BITS) or 1
        store = build_store(config, epoch, access.known.quotas, clock, stack, signals)
        credentials = Credentials(tenants=access.known.tenants)

        tickers = _tickers(store, clock, config.reaper_interval)
        for each in tickers.values():
            each.start()
            stack.callback(each.close)
        _collect(clock, stack)
        lanes = stack.enter_context(HotLanes(store, credentials, clock))
        attach = AttachServer(
            runtime_dir.attach_socket,
            store=store,
            credentials=credentials,
            clock=clock,
            access=access.sockets,
            lanes=lanes,
        )
        attach.start()
        stack.callback(attach.close)

        threads = call_threads()
        owner = OwnerProbe(store.responds, clock, patience=OWNER_PATIENCE)
        calls = PoolProbe(threads, clock)
        manager = ServiceManager.from_environment()
        health = Health(
            SERVICES,
            {
                "attach": attach,
                "calls": calls,
                "lanes": lanes,
                "owner": owner,
                **tickers,
            },
            clock=clock,
            looks=(owner.look, calls.look, lanes.look),
            heartbeat=manager.alive,
        )
        stack.callback(health.close)
        store.device.on_lost(health.fail)
        sockets = Sockets(
            runtime_dir.grpc_socket,
            runtime_dir.attach_socket,
            access.sockets,
            (HOT_LANE, IN_FLIGHT),
        )
        server = build_server(
            store,
            credentials,
            health,
            sockets=sockets,
            version=__version__,
            clock=clock,
            threads=threads,
        )
        port = None if config.listen is None else listen(server, config.listen, access.tls)
        listen_for_http(config, store, health, owner, clock, stack)
        server.start()
        stack.callback(lambda: server.stop(CALL_GRACE).wait())
        stack.callback(store.events.close)
        health.begin_serving()
        manager.ready()
        log.info(
            "server_started",
            version=__version__,
            runtime_dir=str(runtime_dir.path),
            store_epoch=epoch,
            tier1_bytes=config.tier1_bytes,
            tier2_bytes=config.tier2_bytes,
            tier3_bytes=store.tier3.use().disk.size_bytes,
            device=config.device,
            listen=config.listen,
            port=port,
        )
        if config.insecure_tcp:
            log.warning("insecure_tcp", listen=config.listen, port=port)

        reloader = Reloader(
            config,
            changes(store, tickers.values()),
            read=read_again,
            read_tenants=partial(access.reload, credentials, store.change_rates),
        )
        while (received := signals.wait()) == signal.SIGHUP:
            reloader.reload()
        grace = reloader.config.drain_grace
        ignore_parent_death()
        # Whoever signals again does not want to wait: the kernel gives back all that is held.
        signals.let_go(STOP_SIGNALS)
        _end_in_time(grace + STOP_PATIENCE)
        log.info("drain_started", signal=received.name, grace=grace)
        health.begin_draining()
        manager.stopping()
        store.begin_draining()
        left = store.wait_drained(grace)
        log.info("drain_finished", drained=not left, leases_left=left)
    log.info("server_stopped")


def _tickers(store: KVStore, clock: Clock, interval: float) -> dict[str, Ticker]:
    """Returns the threads that let time pass and memory move, by the names that health has."""
    tickers: dict[str, Ticker] = {"reaper": Reaper(store, clock=clock, interval=interval)}
    for name, growth in zip(("growth", "growth_of_tier_2"), store.growths, strict=False):
        tickers[name] = Grower(growth, clock=clock, interval=interval)
    if len(store.growths) > 1:
        tickers["mover"] = MoveTicker(store, clock=clock, interval=interval)
    if store.tier3.present:
        tickers["keeper"] = KeepTicker(store, clock=clock, interval=interval)
    return tickers


def _end_in_time(seconds: float) -> None:
    """Let a thread that stands still not keep the process: end it with EXIT_FAILED by then."""

    def give_up() -> None:
        log.error("stop_overdue", stacks=stacks())
        os._exit(EXIT_FAILED)

    overdue = Timer(seconds, give_up)
    overdue.daemon = True
    overdue.start()


def _collect(clock: Clock, stack: ExitStack) -> None:
    """Let Python's collector look at what is new, and not at the index again and again."""
    collector = Collector(clock)
    collector.begin()
    ticker = Ticker("collector", (collector.step,), clock=clock, interval=COLLECT_SECONDS)
    ticker.start()
    stack.callback(ticker.close)


def _allow_descriptors() -> None:
    """Let the process have as many descriptors as it may: connections and extents need them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _complain(message: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
