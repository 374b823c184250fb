"""The composition root: builds the store from its parts, serves, and ends on a signal.

This is the one place that knows every type. The store allocates memory when a client opens the
first namespace of an arena. So a server that cannot allocate still serves: it refuses the opening
with ``POOL_EXHAUSTED``, and the client tries again. The server does not start if a GPU is missing,
or if the GPU keeps less free memory than the budget.

With a holder, SIGTERM leaves the memory to the next server at once, and SIGINT drains and ends it.
Without one both drain. A server that is to take this one's place (``replace``) sends TAKE.

Health is NOT_SERVING until the threads and the sockets of the server run, and again while one of
the threads makes no progress.
"""

import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Timer
from typing import NamedTuple

import structlog

from kvstore import __version__, tracing
from kvstore.assembly.access_rules import Access, read_access
from kvstore.assembly.metrics_listener import listen_for_metrics
from kvstore.assembly.reload import Reloader, changes
from kvstore.assembly.remote_state import UnusableStateFolder
from kvstore.assembly.replacement import TAKE, NotReplaced, replace_server
from kvstore.assembly.succession_setup import succession_of
from kvstore.assembly.tier_setup import tier_1_source, tier_2, tiers_below
from kvstore.config.loading import load_config, settings_error
from kvstore.config.settings import PROGRAM, Config
from kvstore.config.show import COMMAND, config_command
from kvstore.core import Limits, PrefixCache, QuotaTable
from kvstore.core.eviction.policies import POLICIES
from kvstore.core.index.hash_index import HashIndex
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex
from kvstore.core.pool.arena import Recycled
from kvstore.core.pool.tenant import TenantKeys, no_key
from kvstore.holder.carrier import CarrierRefused
from kvstore.instance_lock import InstanceLock, InstanceRunning, ReplacementLock, is_replaced
from kvstore.kv_events.endpoints import UnusableEndpoint
from kvstore.kv_events.sequence_numbers import WrongNumbers
from kvstore.logs import configure_logging
from kvstore.metrics.http_server import UnusableHttpAddress
from kvstore.rpc.attach.server import AttachServer, listen_at, new_listener
from kvstore.rpc.fair_queue import CallThreads
from kvstore.rpc.health.probes import OwnerProbe, PoolProbe, Ticking
from kvstore.rpc.health.watchdog import Health, stacks
from kvstore.rpc.lane import FEATURE as HOT_LANE
from kvstore.rpc.lane import HotLanes
from kvstore.rpc.server import (
    SERVICES,
    Sockets,
    UnusableAddress,
    build_server,
    call_threads,
    listen,
)
from kvstore.rpc.servicers.prefix_cache import IN_FLIGHT, KV_CACHE_GROUPS, PREFETCH, STEP
from kvstore.runtime_dir import RuntimeDir, UnusableRuntimeDir
from kvstore.service.attached_processes import Process, Processes
from kvstore.service.call_durations import CallTimes
from kvstore.service.clock import MONOTONIC, Clock
from kvstore.service.matching import Sampler
from kvstore.service.periodic_threads import (
    CarrierKeeper,
    Collector,
    DiskWriteTicker,
    Grower,
    JournalCleaner,
    MoveTicker,
    PinRefreshTicker,
    Reaper,
    RemoteChecks,
    Ticker,
)
from kvstore.service.random_ids import random_ids
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.service_manager import ServiceManager
from kvstore.signals import Signals, ignore_parent_death
from kvstore.storage.arenas import Arenas
from kvstore.storage.errors import DeviceUnavailable, SlabInUse
from kvstore.storage.memory_tiers import Tiers
from kvstore.succession.store_succession import Succession

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

INDEXES: dict[str, IndexFactory] = {"hash": HashIndex, "radix": RadixIndex}
# Seconds between two calls of the garbage collector's step.
COLLECT_SECONDS = 0.25
# Seconds for which a thread may run Python while others wait. A call waits so long, some times,
# for each thread that works in the background. Python's default is 5 ms: beside three such threads
# a match then takes 19 ms in the median, and 2.5 ms with this. Less costs many callers throughput:
# 1 % with 0.5 ms, 12 % with 0.2 ms.
SWITCH_SECONDS = 0.0005
# Seconds between two looks if the carrier of the memory is lost.
CARRIER_SECONDS = 0.5
# Seconds between two looks at the settings of the remote tier's engine.
REMOTE_CHECK_SECONDS = 60.0
# Seconds between two steps of the refreshes of named pins, each of which is bounded.
PIN_REFRESH_SECONDS = 1.0
NO_TRACES = "the extra otel has them; nothing is traced"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Seconds for running calls to end, after the leases ended or the grace is over.
CALL_GRACE = 1.0
# Seconds that a health check waits for the lock of the store.
OWNER_PATIENCE = 0.25
# Seconds that a server which leaves its memory to the next still serves, to leave a small journal.
CLEAN_PATIENCE = 2.0
# Seconds that it then waits for calls, and for that lock.
FREEZE_PATIENCE = 5.0
# Seconds after the grace until the process ends by force.
STOP_PATIENCE = 15.0
# Reasons not to start. The message of each is for the operator.
REFUSALS = (
    *(CarrierRefused, DeviceUnavailable, InstanceRunning, NotReplaced, SlabInUse),
    *(UnusableAddress, UnusableEndpoint, UnusableHttpAddress, UnusableRuntimeDir),
    *(UnusableStateFolder, WrongNumbers),
)
EXIT_FAILED = 1
EXIT_USAGE = 2


def run(arguments: Sequence[str] | None = None, *, clock: Clock = MONOTONIC) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit status. A second signal ends at once.

    With ``config`` as the first argument it prints the settings instead. Tests pass a ``clock``.
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
    sys.setswitchinterval(SWITCH_SECONDS)
    if tracing.WANTED and not tracing.ON:
        log.warning("tracing_unavailable", missing=tracing.missing(), advice=NO_TRACES)
    try:
        with (
            tracing.exported(PROGRAM, __version__),
            Signals((*STOP_SIGNALS, signal.SIGHUP, TAKE)) as signals,
        ):
            serve(config, access, signals, partial(load_config, given), clock)
    except REFUSALS as error:
        _complain(str(error))
        return EXIT_FAILED
    return 0


class Parts(NamedTuple):
    """The running parts of a server."""

    store: KVStore
    credentials: Credentials
    tickers: Iterable[Ticker]
    health: Health
    manager: ServiceManager
    threads: CallThreads
    # The TCP port, or None without a TCP address.
    port: int | None


def serve(
    config: Config,
    access: Access,
    signals: Signals,
    read_again: Callable[[], Config],
    clock: Clock,
) -> None:
    """Serves until one of STOP_SIGNALS, then drains and stops. SIGHUP calls ``read_again``.

    Raises the errors of ``REFUSALS``.
    """
    runtime_dir = RuntimeDir(config.runtime_dir, access.sockets.group_id)
    # What writes to the memory ends with ``stack``: threads, calls and the disk. So does the lock.
    # Then the next server gets the memory, and ``rest`` takes its time.
    with ExitStack() as rest, ExitStack() as stack:
        succession = succession_of(config)
        rest.callback(succession.close)
        listener = take_place(config, access, runtime_dir, succession, clock, stack)
        store = build_store(config, succession, access, clock, rest, stack, signals)
        rest.callback(succession.leave)
        parts = start(config, access, runtime_dir, store, clock, stack, listener)
        parts.health.begin_serving()
        parts.manager.ready()
        log.info(
            "server_started",
            version=__version__,
            runtime_dir=str(runtime_dir.path),
            store_epoch=store.epoch,
            instance=succession.instance,
            tier1_bytes=config.tier1_bytes,
            tier2_bytes=config.tier2_bytes,
            tier3_bytes=store.tier3.use().disk.size_bytes,
            device=config.device,
            listen=config.listen,
            port=parts.port,
        )
        if config.insecure_tcp:
            log.warning("insecure_tcp", listen=config.listen, port=parts.port)
        reloader = Reloader(
            config,
            changes(store, parts.tickers),
            read=read_again,
            read_tenants=partial(access.reload, parts.credentials, store.change_rates),
        )
        while (received := signals.wait()) not in STOP_SIGNALS:
            if received == signal.SIGHUP:
                reloader.reload()
            elif is_replaced(runtime_dir) and succession.is_kept():
                break
            else:
                log.warning("replacement_refused", why="nobody waits, or the holder lacks memory")
        if received == TAKE or (received == signal.SIGTERM and succession.is_kept()):
            leave_to_the_next(parts, received, signals)
        else:
            succession.leave_for_good()
            drain(parts, received, signals, reloader.config.drain_grace)
    log.info("server_stopped")


def take_place(
    config: Config,
    access: Access,
    runtime_dir: RuntimeDir,
    succession: Succession,
    clock: Clock,
    stack: ExitStack,
) -> socket.socket | None:
    """Takes the lock of the folder and the memory that was left, before anything of it is written.

    A server that runs is replaced if the settings say so. Then this returns a socket on which
    workers wait already, so that they need not try again. Raises ``InstanceRunning``,
    ``NotReplaced`` or ``CarrierRefused``.
    """
    lock = InstanceLock(runtime_dir)
    try:
        stack.enter_context(lock)
    except InstanceRunning as running:
        if not config.replace:
            raise
        # While slots are poisoned, a cache that is only read would write to them. Keys of tenants
        # are in a folder that the other server has still open.
        is_read = not config.debug_poison_freed_slots and access.remote is None
        make = cache_maker(config, access.known.quotas) if is_read else None
        with ReplacementLock(runtime_dir):
            replace_server(running.pid, runtime_dir.attach_socket, succession, make, clock)
            # The other server gave it up before the memory.
            stack.enter_context(lock)
        listener = stack.enter_context(new_listener())
        listen_at(runtime_dir.attach_socket, access.sockets, listener)
        return listener
    if config.replace:
        log.info("nothing_to_replace", runtime_dir=str(runtime_dir.path))
    succession.own()
    return None


def cache_maker(
    config: Config,
    quotas: QuotaTable,
    recycled: Recycled | None = None,
    page_stores: int = 0,
    tenant_key: TenantKeys = no_key,
) -> Callable[[int], PrefixCache]:
    """Returns what makes an empty cache of the settings and an epoch."""

    def make(epoch: int) -> PrefixCache:
        return PrefixCache(
            epoch,
            Limits(min_ttl=config.min_ttl, default_ttl=config.default_ttl, max_ttl=config.max_ttl),
            POLICIES[config.eviction_policy],
            quotas=quotas,
            arena_ids=random_ids(),
            recycled=recycled,
            index=INDEXES[config.prefix_cache_backend],
            tier_policy=config.tier_policy(on_gpu=config.cuda_device is not None),
            page_stores=page_stores,
            tenant_key=tenant_key,
        )

    return make


def build_store(
    config: Config,
    succession: Succession,
    access: Access,
    clock: Clock,
    rest: ExitStack,
    stack: ExitStack,
    signals: Signals,
) -> KVStore:
    """Returns a store over the memory and the disk of the settings.

    ``rest`` closes the memory, and ``stack`` the disk before it.

    It goes on with what the server before it left, if that fits. One of ``signals`` ends the wait
    for a device. Raises ``DeviceUnavailable``, ``SlabInUse``, ``UnusableStateFolder`` or
    ``CarrierRefused``.
    """
    extent_ids = random_ids()
    arenas = Arenas(
        budget_bytes=config.tier1_bytes,
        extent_bytes=config.bytes_of_an_extent,
        source=tier_1_source(config, rest, signals, succession.held),
        extent_ids=extent_ids,
    )
    lower = tier_2(config, extent_ids, arenas.source, succession.held)
    memory = Tiers(arenas) if lower is None else Tiers(arenas, lower)
    rest.callback(memory.close)
    # It is closed first: writes and reads end before their memory is unmapped, or another's.
    slow_tiers, tenant_key = tiers_below(config, access, clock, stack)

    make = cache_maker(
        config,
        access.known.quotas,
        memory.poison if config.debug_poison_freed_slots else None,
        sum(each.page_store is not None for each in slow_tiers),
        tenant_key,
    )
    store = KVStore(
        succession.begin(memory.arenas, make, clock),
        arenas=arenas,
        lower=lower,
        clock=clock,
        sampler=Sampler(config.verify_rate),
        slow_tiers=slow_tiers,
        prefix_cache_backend=config.prefix_cache_backend,
        succession=succession,
    )
    if config.metrics_listen is not None:
        store.call_times |= {"grpc": CallTimes(), "lane": CallTimes()}
    return store


def start(
    config: Config,
    access: Access,
    runtime_dir: RuntimeDir,
    store: KVStore,
    clock: Clock,
    stack: ExitStack,
    listener: socket.socket | None = None,
) -> Parts:
    """Starts the threads, the sockets and the health of a server. ``stack`` ends them all.

    ``listener`` is that of the attach server, if it listens already.
    """
    succession = store.succession
    credentials = Credentials(tenants=access.known.tenants, key=succession.credential_key)
    processes = Processes(succession.held, succession.left)
    processes.restore(Process(*each) for each in succession.processes)
    tickers = _tickers(store, clock, config.reaper_interval)
    for each in tickers.values():
        each.start()
        stack.callback(each.close)
    publisher = _publish_kv_events(config, access, store, clock, stack)
    _collect(clock, stack)
    _keep_carrier(store, clock, stack)
    _check_remote(store, clock, stack)
    _refresh_pins(store, clock, stack)
    lanes = stack.enter_context(HotLanes(store, credentials, clock))
    attach = AttachServer(
        runtime_dir.attach_socket,
        store=store,
        credentials=credentials,
        clock=clock,
        access=access.sockets,
        lanes=lanes,
        processes=processes,
    )
    attach.start(listener)
    stack.callback(attach.close)

    threads = call_threads()
    owner = OwnerProbe(store.responds, clock, patience=OWNER_PATIENCE)
    calls = PoolProbe(threads, clock)
    manager = ServiceManager.from_environment()
    health = Health(
        SERVICES,
        {"attach": attach, "calls": calls, "lanes": lanes, "owner": owner, **tickers},
        clock=clock,
        looks=(owner.look, calls.look, lanes.look),
        heartbeat=manager.alive,
    )
    stack.callback(health.close)
    store.device.on_lost(health.fail)
    server = build_server(
        store,
        credentials,
        health,
        sockets=Sockets(
            runtime_dir.grpc_socket,
            runtime_dir.attach_socket,
            access.sockets,
            features_of(store),
        ),
        version=__version__,
        clock=clock,
        threads=threads,
    )
    port = None if config.listen is None else listen(server, config.listen, access.tls)
    if publisher is not None:
        health.watch("kv_events", publisher)
    if config.metrics_listen is not None:
        listen_for_metrics(config.metrics_listen, store, health, owner, clock, stack)
    # Those of the server before this one. Until then no page is loaded into their namespaces.
    store.tier3.removals.settle()
    server.start()
    # Nobody could renew a lease before.
    store.restart_ttls()
    stack.callback(lambda: server.stop(CALL_GRACE).wait())
    stack.callback(store.events.close)
    return Parts(store, credentials, tickers.values(), health, manager, threads, port)


def features_of(store: KVStore) -> tuple[str, ...]:
    """Returns the features that the server of a store offers beside the basics."""
    features = HOT_LANE, IN_FLIGHT, KV_CACHE_GROUPS, STEP
    return (*features, PREFETCH) if store.tier3.present else features


def leave_to_the_next(parts: Parts, received: signal.Signals, signals: Signals) -> None:
    """Plans that the memory stays for the next server, which workers wait for.

    First it cleans the journal, all of which the next one reads before it answers, unless that one
    has read it already. Then the threads and sockets end as after a drain: each finishes the calls
    that it has read. Calls over gRPC that are not finished then may still copy pages, so they are
    waited for too.
    """
    ignore_parent_death()
    # A second signal ends the process at once, and leaves the memory to the next as well.
    signals.let_go(STOP_SIGNALS)
    _end_in_time(STOP_PATIENCE)
    if received != TAKE:
        parts.store.cleaning.finish(CLEAN_PATIENCE)
    log.info("memory_left_to_the_next", signal=received.name)
    parts.health.begin_draining()
    parts.manager.stopping()
    parts.store.succession.leave_to_the_next(
        lambda: parts.threads.wait_idle(FREEZE_PATIENCE) and parts.store.freeze(FREEZE_PATIENCE)
    )


def drain(parts: Parts, received: signal.Signals, signals: Signals, grace: float) -> None:
    """Refuses new leases and waits until all leases ended, at most ``grace`` seconds."""
    ignore_parent_death()
    # A second signal ends the process at once: the kernel frees all that it holds.
    signals.let_go(STOP_SIGNALS)
    _end_in_time(grace + STOP_PATIENCE)
    log.info("drain_started", signal=received.name, grace=grace)
    parts.health.begin_draining()
    parts.manager.stopping()
    parts.store.begin_draining()
    left = parts.store.wait_drained(grace)
    log.info("drain_finished", drained=not left, leases_left=left)


def _tickers(store: KVStore, clock: Clock, interval: float) -> dict[str, Ticker]:
    """Returns the periodic threads of a store by their names in health."""
    tickers: dict[str, Ticker] = {"reaper": Reaper(store, clock=clock, interval=interval)}
    for name, growth in zip(("growth", "growth_of_tier_2"), store.growths, strict=False):
        tickers[name] = Grower(growth, clock=clock, interval=interval)
    if len(store.growths) > 1:
        tickers["mover"] = MoveTicker(store, clock=clock, interval=interval)
    for keeper in store.tier3.keepers:
        tickers[keeper.name] = DiskWriteTicker(keeper, clock=clock, interval=interval)
    if store.succession.journal is not None:
        tickers["cleaner"] = JournalCleaner(store, clock=clock, interval=interval)
    return tickers


def _end_in_time(seconds: float) -> None:
    """Ends the process with EXIT_FAILED after some seconds, even if one of its threads is stuck."""

    def give_up() -> None:
        log.error("stop_overdue", stacks=stacks())
        os._exit(EXIT_FAILED)

    overdue = Timer(seconds, give_up)
    overdue.daemon = True
    overdue.start()


def _publish_kv_events(
    config: Config, access: Access, store: KVStore, clock: Clock, stack: ExitStack
) -> Ticking | None:
    """Starts the publisher of KV events, if the settings say so. Only then it needs ZeroMQ."""
    if not config.kv_events:
        return None
    from kvstore.assembly.kv_events_setup import publish_kv_events  # noqa: PLC0415

    return publish_kv_events(config, access, store, clock, stack)


def _collect(clock: Clock, stack: ExitStack) -> None:
    """Starts the thread that collects young garbage and leaves the index alone."""
    collector = Collector(clock)
    collector.begin()
    ticker = Ticker("collector", (collector.step,), clock=clock, interval=COLLECT_SECONDS)
    ticker.start()
    stack.callback(ticker.close)


def _keep_carrier(store: KVStore, clock: Clock, stack: ExitStack) -> None:
    """Starts the thread that finds a lost carrier again. It may take as long as a process's start.

    Health does not watch it: the store answers all the same.
    """
    if store.succession.held.outlives:
        ticker = CarrierKeeper(store, clock=clock, interval=CARRIER_SECONDS)
        ticker.start()
        stack.callback(ticker.close)


def _check_remote(store: KVStore, clock: Clock, stack: ExitStack) -> None:
    """Starts the thread that asks the remote tier's engine for its settings, if there is one.

    Health does not watch it, since the engine may be away.
    """
    about = store.tier3.about
    if about is not None:
        checks = RemoteChecks(about, clock=clock, interval=REMOTE_CHECK_SECONDS)
        checks.start()
        stack.callback(checks.close)


def _refresh_pins(store: KVStore, clock: Clock, stack: ExitStack) -> None:
    """Starts the thread that refreshes named pins in the remote tier, if there is one.

    Health does not watch it, since the engine may be away.
    """
    if store.tier3.pin_refreshers:
        refreshers = store.tier3.pin_refreshers.values()
        refreshes = PinRefreshTicker(refreshers, clock=clock, interval=PIN_REFRESH_SECONDS)
        refreshes.start()
        stack.callback(refreshes.close)


def _allow_descriptors() -> None:
    """Raises the limit of descriptors to the hard limit: connections and extents need them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _complain(message: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {message}\n")
