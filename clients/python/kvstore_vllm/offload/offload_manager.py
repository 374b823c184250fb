"""vLLM's OffloadingManager over a store: which pages are loadable, and where new ones go."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count, groupby
from typing import Any, Final

from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_group_idx,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvstore_client import DatedRun, Match
from kvstore_client.engines.canonical import mixed_salt
from kvstore_client.engines.counters import COUNTED, count_loaded
from kvstore_client.pages.match import DISK_TIER, REMOTE_TIER
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.engine.reuse_hints import ReuseHints
from kvstore_vllm.identity.adapters import AdapterDigests
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.key_groups import KeyGroups
from kvstore_vllm.offload.matched_pages import GroupPage, MatchedPages
from kvstore_vllm.offload.messages import LeaseToJoin, OffloadReport, StorePages, latest_flushes
from kvstore_vllm.offload.publication import Publication, Written
from kvstore_vllm.offload.reserve import Reserve
from kvstore_vllm.offload.store_path import Stored, StorePath
from kvstore_vllm.scheduler.engine_speed import EngineSpeed
from kvstore_vllm.scheduler.prefetches import Prefetches
from kvstore_vllm.scheduler.prefix_lookups import PrefixLookups
from kvstore_vllm.scheduler.store_attachment import StoreAttachment
from kvstore_vllm.scheduler.store_threads import ThreadedAnswers
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.store_events import StoreEvents

# A client has as many lanes; one is left for publications.
THREADS: Final = 3
SALT_BYTES: Final = 16
# Seconds that a step waits if it computes nothing because all requests wait for the store.
IDLE_WAIT: Final = 0.001
# The sources of pages that were loaded for their lookup. vLLM has none of its own for remote.
SOURCES: Final = {
    DISK_TIER: CacheHitSource.DISK,
    REMOTE_TIER: CacheHitSource.EXTERNAL_UNSPECIFIED,
}
STATES: Final[dict[bool | None, LookupResult]] = {
    None: LookupResult.RETRY,
    False: LookupResult.MISS,
    True: LookupResult.HIT,
}


class KvstoreOffloadingManager(OffloadingManager):
    """Looks requests up in a store, and gives vLLM slots of it. The scheduler's thread uses it.

    No method raises, and none waits longer than a few milliseconds: what the store cannot do
    is a miss. Pages are held from their lookup's answer until all ranks ended their copies.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        attachment: StoreAttachment,
        salt: bytes,
        adapters: AdapterDigests,
        counts: "Counter[str]",
        *,
        groups: KeyGroups,
        most_spare: int,
        events: StoreEvents,
    ) -> None:
        """``most_spare`` bounds the slots that are reserved ahead.

        ``events`` makes events of the store's pages.
        """
        self._groups = groups
        self._settings = settings
        self._attachment = attachment
        self._salt = self._base_salt = salt
        self._adapters = adapters
        self._counts = counts
        self._most_spare = most_spare
        self._events = events
        self._tracked: dict[str, Stored] = {}
        self._answers = ThreadedAnswers(THREADS)
        self._publications = ThreadedAnswers(1)
        work = StoreWork(attachment.access, settings.page_tokens, settings.lookup_timeout)
        self._publication = Publication(work, settings.page_tokens)
        self._reserves: dict[Any, Reserve] = {}
        self._lookups = PrefixLookups(
            settings,
            work,
            self._answers,
            counts,
            usable=attachment.usable,
            joining=attachment.is_joining,
            groups=groups.windows,
            news=events,
        )
        self._lookups.prefetches = self._prefetches = Prefetches(
            work,
            ThreadedAnswers(1),
            counts,
            lookup_threads=THREADS,
            offered=attachment.prefetches,
        )
        self._matched = MatchedPages(self._lookups)
        self._stores = StorePath(
            settings.page_tokens,
            self._publication,
            self._publications,
            counts,
            usable=attachment.usable,
            reserve_of=self._reserve_of,
            news=events,
            ended=self._forget_if_idle,
        )
        access = attachment.access
        events.check_with(work.cached_pages, lambda: access.usable)
        self._hints = ReuseHints(counts)
        self.speed = EngineSpeed(attachment.access.state_speed)
        self._numbers = count(1)
        # The keys of copies under way by their numbers, for reports of failures.
        self._copies: dict[int, tuple[str, frozenset[OffloadKey]]] = {}
        self._failed_keys: set[tuple[str, OffloadKey]] = set()
        self.reset_count = 0
        # The latest reset by rank, before which all its copies have ended.
        self._flushed: dict[int, int] = {}
        # What ranks may still copy from or to, by the reset that ended its use.
        self._condemned: list[tuple[int, list[Match], Reserve | None, list[Written]]] = []

    # The connector's part, beyond vLLM's interface.

    def arrived(self, request: Any) -> None:  # noqa: ANN401  # a Request
        """Begins a request's lookup, if anything of it may be shared."""
        self.speed.arrived(request)
        key = RequestKey.of(request, base_salt=self._salt, adapters=self._adapters)
        if key is None:
            return
        tracked = Stored(request, key, self._hints.read(request), may_load=key.reads)
        self._tracked[request.request_id] = tracked
        if tracked.may_load:
            self._lookups.begin(tracked)

    def is_known(self, request_id: str) -> bool:
        """Returns whether lookups of a request can be answered now.

        Waits for the store's answer once a request, and ``scheduling_wait`` at most in a step.
        """
        self._answers.deliver()
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return True
        if tracked.may_load and self._lookups.find(tracked) is None:
            return False
        if tracked.may_store and self._attachment.usable():
            found = 0 if tracked.lookup is None else tracked.lookup.page_count
            pages = tracked.request.num_prompt_tokens // self._settings.page_tokens
            missing = pages - max(found, tracked.stored_pages)
            self._reserve_of(tracked.key).want(missing * len(self._groups.numbers))
        return True

    def store_nothing(self, request_id: str) -> None:
        """Stores no more pages of a request, because its blocks may be wrong."""
        if tracked := self._tracked.get(request_id):
            tracked.may_store = False

    def store_nothing_under_way(self) -> None:
        """Stores no more pages of any request until now, because their blocks may be wrong."""
        for tracked in self._tracked.values():
            self._stores.distrust(tracked)

    def allocated(self, request_id: str) -> None:
        """Releases what is held for a request that got blocks, and of which nothing is loaded."""
        if tracked := self._tracked.get(request_id):
            self._lookups.drop(tracked)

    def join(self) -> LeaseToJoin | None:
        """Returns how ranks of other processes reach the store's memory; None if none has to."""
        if not self._attachment.tells_ranks:
            return None
        lease, plain = self._attachment.share(), self._attachment.access.memory
        return None if lease is None else LeaseToJoin(lease, plain.identity, plain.layout)

    def begin_step(self, *, idle: bool) -> None:
        """Delivers answers; an idle step waits for some at most two milliseconds."""
        self._lookups.end_step()
        self._attachment.begin_step(idle=idle)
        if idle:
            self._answers.wait(IDLE_WAIT)
            self._publications.wait(IDLE_WAIT)

    def take_kv_events(self) -> Sequence[KVCacheEvent]:
        """Returns the events of the store's pages since the last call, if events are on."""
        return self._events.take()

    def publish_copied(self) -> None:
        """Publishes what the requests of a step have copied, all in one call."""
        self._stores.send()

    def reported(self, report: OffloadReport, failed_request_ids: Collection[str]) -> None:
        """Takes what ranks report of a step, before vLLM reports the same copies as ended."""
        self.speed.output_arrived()
        for number in report.failed:
            request_id, keys = self._copies.get(number, ("", frozenset()))
            self._failed_keys.update((request_id, key) for key in keys)
        for request_id in failed_request_ids:
            if tracked := self._tracked.get(request_id):
                # The tokens are computed after one failure, because retries might never end.
                tracked.may_load = False
        self._attachment.joined(report.joined)
        self._counts["load_faults"] += report.faults
        self._flushed = latest_flushes(self._flushed, report.flushed)
        self._release_flushed()

    # vLLM's interface.

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Returns whether a page is loadable."""
        tracked, page = self._place(key, req_context)
        if tracked is None or page is None:
            return LookupResult.MISS
        return STATES[self._matched.has(tracked, page)]

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Returns the source of a page: the host's memory, its disk, or the store hosts share."""
        tracked, page = self._place(key, req_context)
        if tracked is None or page is None:
            return CacheHitSource.HOST
        return SOURCES.get(self._matched.tier(tracked, page), CacheHitSource.HOST)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> StorePages:
        """Returns the pages to copy from, and holds them until :meth:`complete_load`."""
        tracked = self._tracked.get(req_context.req_id)
        places = [self._place(key, req_context)[1] for key in keys]
        pages = [page for page in places if page is not None]
        runs: tuple[DatedRun, ...] | None = None
        if tracked is not None and len(pages) == len(keys):
            runs = self._matched.take(tracked, pages)
        return self._pages(req_context.req_id, keys, runs)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Releases the pages of a load that ended at all ranks."""
        failed = self._take_failed(keys, req_context)
        tracked = self._tracked.get(req_context.req_id)
        if tracked is None:
            return
        if failed:
            self._counts["loads_failed"] += 1
        else:
            pages = [self._place(key, req_context)[1] for key in keys]
            path = [page for page in pages if page is not None and not page.group]
            tiers = Counter(self._matched.tier(tracked, page) for page in path)
            count_loaded(self._counts, tiers, self._settings.page_tokens)
        self._matched.loaded(tracked)
        self._forget_if_idle(tracked)

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Returns slots for pages that the store lacks.

        None if slots are under way: vLLM asks again in the next step.
        """
        self._answers.deliver()
        tracked = self._tracked.get(req_context.req_id)
        pages: list[Written] | None = []
        if tracked is not None:
            wanted = [(key, self._place(key, req_context)[1]) for key in keys]
            pages = self._stores.prepare(
                tracked, [(key, page) for key, page in wanted if page is not None]
            )
        if pages is None:
            return None
        # vLLM takes the blocks in the order of its keys.
        by_key = {each.key: each for each in pages}
        kept = [key for key in keys if key in by_key]
        runs = _runs_of([by_key[key] for key in kept])
        return PrepareStoreOutput(kept, self._pages(req_context.req_id, kept, runs), [])

    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,  # noqa: FBT001, FBT002  # vLLM's interface
    ) -> None:
        """Publishes pages that all ranks have copied, in the background."""
        failed = self._take_failed(keys, req_context) or not success
        if tracked := self._tracked.get(req_context.req_id):
            self._stores.copied(tracked, keys, failed=failed)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Does nothing: :meth:`arrived` has the request itself."""
        del req_context
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Releases what a request looked up, and publishes what is left of it."""
        tracked = self._tracked.get(req_context.req_id)
        if tracked is not None:
            self._lookups.drop(tracked)
            self._stores.finish(tracked)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Delivers answers, and reserves the slots that running requests will need."""
        del context
        self._answers.deliver()
        self._publications.deliver()
        for tracked in self._tracked.values():
            self._matched.expire(tracked)
        self._drop_ended_sessions()
        self._end_idle_reserves()

    def has_pending_work(self) -> bool:
        """Returns whether an idle engine has to go on stepping.

        It releases what it holds, and vLLM takes events in steps.
        """
        under_way = self._answers.under_way or self._publications.under_way
        idle = not self._tracked and bool(self._reserves)
        to_say = self._stores.has_waiting or self._events.are_waiting
        return bool(under_way or to_say or self._condemned or idle)

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Returns the counts since the last call."""
        if not self._counts:
            return None
        stats = OffloadingConnectorStats()
        for each in COUNTED:
            if value := self._counts.pop(each.key, 0):
                labels = (each.label,) if each.label else ()
                stats.increase_counter(each.metric, value / each.scale, labels)
        self._counts.clear()
        return None if stats.is_empty() else stats

    def reset_cache(self) -> None:
        """Continues in new, empty namespaces, and releases all once ranks copy nothing of it."""
        self._salt = mixed_salt(base=self._base_salt, reset=os.urandom(SALT_BYTES))
        self.reset_count += 1
        for tracked in self._tracked.values():
            self._lookups.drop(tracked)
            tracked.may_load = False
            matches, tracked.loading = tracked.loading, []
            copying = self._stores.drop(tracked)
            reserve = self._reserve_of(tracked.key) if copying else None
            self._condemned.append((self.reset_count, matches, reserve, copying))
        self._copies.clear()
        self._failed_keys.clear()
        self._events.clear()
        self._condemned = [each for each in self._condemned if each[1] or each[3]]
        for request_id in [key for key, each in self._tracked.items() if each.finished]:
            self._forget_if_idle(self._tracked[request_id])

    def shutdown(self) -> None:
        """Releases everything, including the lease."""
        self._events.close()
        self._prefetches.close()
        self._answers.close()
        self._stores.close()
        for tracked in list(self._tracked.values()):
            self._lookups.drop(tracked)
            self._matched.loaded(tracked)
            self._stores.drop(tracked)
        for reserve in self._reserves.values():
            reserve.close()
        self._attachment.close()

    def _place(
        self, key: OffloadKey, context: ReqContext
    ) -> tuple[Stored | None, GroupPage | None]:
        """Returns the request of a key, and its page; None for an end within a page."""
        tracked = self._tracked.get(context.req_id)
        position = context.get_offload_key_position(key)
        group = self._groups.numbers.get(get_offload_group_idx(key))
        if position is None or group is None or position % self._settings.page_tokens:
            return tracked, None
        return tracked, GroupPage(group, position // self._settings.page_tokens - 1)

    def _pages(
        self, request_id: str, keys: Collection[OffloadKey], runs: tuple[DatedRun, ...] | None
    ) -> StorePages:
        number = next(self._numbers)
        # vLLM makes no copy without keys, and so never reports its end.
        if keys:
            self._copies[number] = request_id, frozenset(keys)
        return StorePages(number, request_id, runs)

    def _take_failed(self, keys: Collection[OffloadKey], context: ReqContext) -> bool:
        """Returns whether a copy of these keys failed at a rank, and forgets the copy."""
        wanted = context.req_id, frozenset(keys)
        for number in [number for number, copy in self._copies.items() if copy == wanted]:
            del self._copies[number]
        named = {(context.req_id, key) for key in keys}
        failed = not named.isdisjoint(self._failed_keys)
        self._failed_keys -= named
        return failed

    def _reserve_of(self, key: RequestKey) -> Reserve:
        found = self._reserves.get(key.namespace)
        if found is None:
            fill: Callable[[int], Any] = lambda slots: self._publication.reserve(key, slots)  # noqa: E731
            found = Reserve(fill, self._answers, self._most_spare, self._settings.scheduling_wait)
            self._reserves[key.namespace] = found
        return found

    def _drop_ended_sessions(self) -> None:
        """Gives up what nobody copies of earlier sessions, which no client attaches beside."""
        still_taken = [reserve.drop_ended() for reserve in self._reserves.values()]
        if any(still_taken):
            for tracked in self._tracked.values():
                self._stores.drop_ended(tracked)

    def _end_idle_reserves(self) -> None:
        """Gives slots back of namespaces without requests, so that an idle engine holds none."""
        used = {id(self._reserve_of(each.key)) for each in self._tracked.values()}
        used |= {id(each[2]) for each in self._condemned}
        for name, reserve in list(self._reserves.items()):
            if id(reserve) not in used and not reserve.is_coming:
                reserve.close()
                del self._reserves[name]

    def _release_flushed(self) -> None:
        kept = []
        for each in self._condemned:
            reset, matches, reserve, copying = each
            ranks = [rank for rank, latest in self._flushed.items() if latest >= reset]
            if len(ranks) < self._settings.rank_count:
                kept.append(each)
                continue
            for match in matches:
                match.release()
            if reserve is not None:
                reserve.give_back(page.spare for page in copying)
        self._condemned = kept

    def _forget_if_idle(self, tracked: Stored) -> None:
        request_id = tracked.request.request_id
        if tracked.idle and self._tracked.get(request_id) is tracked:
            del self._tracked[request_id]


def _runs_of(pages: Iterable[Written]) -> tuple[DatedRun, ...]:
    """Returns the slots of pages in their order, by extent."""
    places = (each.spare.page for each in pages)
    return tuple(
        DatedRun(extent_id, [page.slot for page in run])
        for extent_id, run in groupby(places, key=lambda page: page.extent_id)
    )
