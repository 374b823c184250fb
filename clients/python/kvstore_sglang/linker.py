"""SGLang's ``UnifiedCacheLinker`` over a store: the arena is the L2 of all engines of a host."""

import logging
import weakref
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    LayerWiseLoadCounter,
    UnifiedCacheLinker,
)

from kvstore_client.engines.log import log_with
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.engines.usage_log import UsageLog
from kvstore_client.values.packed_tokens import TOKEN_BYTES
from kvstore_sglang import plugin
from kvstore_sglang.engine.adapters import adapter_digests
from kvstore_sglang.engine.engine_store import EngineStore
from kvstore_sglang.engine.identity import engine_identity
from kvstore_sglang.engine.model_pages import KV_POOL, STATE_POOL, SWA_POOL, ModelPages
from kvstore_sglang.engine.rank_facts import RankFacts
from kvstore_sglang.engine.refusals import component_names, require_supported
from kvstore_sglang.engine.salts import RequestSalts
from kvstore_sglang.engine.settings import LinkerSettings
from kvstore_sglang.engine.token_pages import TokenPages
from kvstore_sglang.linker_events import LinkerEvents, RequestSalt
from kvstore_sglang.metrics import CountReport, LinkerMetrics
from kvstore_sglang.transfers.hanging_pages import HangingPages
from kvstore_sglang.transfers.loads import ComponentLoad, Loads, QueuedLoad
from kvstore_sglang.transfers.lookups import Lookups
from kvstore_sglang.transfers.page_copies import CUDA, PageCopies
from kvstore_sglang.transfers.saves import SavedPages, Saves

_logger = logging.getLogger(__name__)

# Seconds that a start waits for a store that hangs. An absent one is known at once.
ATTACH_SECONDS: Final = 5.0
# The linkers of this process, which hear of new weights.
LINKERS: Final = weakref.WeakSet["KvstoreLinker"]()


class KvstoreLinker(UnifiedCacheLinker):
    """Loads pages that any engine of this host computed, and saves those that it lacks.

    SGLang makes one in the process of each rank; each is a client of its own. Raises
    ``ValueError`` if the store cannot serve the engine; the message names the setting to change.
    A store that is absent, slow, stopped or restarted is a miss, never an error.

    SGLang asks a linker by hashes of pages, which name no path of a tree. So ``plugin`` puts a
    wrapper in front that asks by tokens: :meth:`find`, :meth:`save` and :meth:`drop`. The
    scheduler's thread uses it.
    """

    def __init__(
        self,
        server_args: Any,  # noqa: ANN401  # a ServerArgs
        params: Any,  # noqa: ANN401  # a CacheInitParams
        *,
        components: Any,  # noqa: ANN401  # a set of ComponentType
        extra_config: dict[str, object] | None = None,
        forward_stream: Any = None,  # noqa: ANN401  # a stream of the device
    ) -> None:
        plugin.require_installed()
        log_with(logging.getLogger(), __package__)
        settings = LinkerSettings.read(extra_config)
        self.forward_stream = forward_stream
        facts = RankFacts.read(server_args, params)
        require_supported(
            *(facts.settings, params, components),
            try_recurrent_state=settings.try_recurrent_state,
        )
        model = ModelPages.read(params, component_names(components))
        # SGLang asks it for the pools of each component that is a key here.
        self.pools = dict.fromkeys(PoolName(name) for name in (KV_POOL, *model.others))
        identity = engine_identity(facts, settings, model.layout)
        self._model = model
        self._page_tokens = model.layout.page_tokens
        self._on_device = model.device.type == CUDA
        self._access = StoreAccess(
            settings.runtime_dir,
            identity,
            model.layout,
            name=facts.lease_name,
            call_timeout=settings.lookup_timeout,
            device=model.device.index if self._on_device else None,
        )
        counts: Counter[str] = Counter()
        metrics = LinkerMetrics(facts.labels) if params.enable_metrics else None
        self._report = CountReport(counts, metrics)
        self._usage = UsageLog(self._access.facts, counts)
        self._salts = RequestSalts(settings.salt, adapter_digests(facts.settings))
        self._tokens = TokenPages(self._page_tokens, facts.vocabulary_size)
        store, memory = EngineStore(self._access, model.windows), self._access.memory
        self._lookups = Lookups(
            store, self._tokens.pack, self._page_tokens, settings.lookup_timeout, counts
        )
        self.layer_done_counter = LayerWiseLoadCounter(model.layer_count)
        if STATE_POOL in model.others:
            # SGLang registers it with the KV pool alone.
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self._loads = Loads(
            PageCopies(model.device, memory),
            self.layer_done_counter,
            model.layer_count,
            self._page_tokens,
            counts,
            fault_fraction=settings.fault_load_fraction,
        )
        self._saves = Saves(
            store, model.path, PageCopies(model.device, memory), self._page_tokens, counts
        )
        self._events = LinkerEvents(params, self._tokens.pack)
        self._events.check_with(
            partial(store.cached_pages, page_bytes=self._page_tokens * TOKEN_BYTES),
            lambda: self._access.usable,
        )
        # So that the first requests find the store.
        self._access.wait_attached(ATTACH_SECONDS)
        LINKERS.add(self)

    # Methods by tokens, for the wrapper.

    def find(
        self,
        rid: str,
        extra_key: str | None,
        cache_salt: str | None,
        tokens: Sequence[int],
        device_pages: int,
    ) -> Sequence[int]:
        """Returns how many pages can be loaded of ``tokens`` after the first ``device_pages``.

        Each number is one that can. With windows of other components that is the longest alone:
        the store pins the windows that end there. The pages are pinned until the request loads
        them, or :meth:`drop`.
        """
        salt = self._salts.of(extra_key, cache_salt)
        answered = partial(self._events.found, RequestSalt(extra_key, cache_salt, salt), tokens)
        found = self._lookups.find(rid, salt, tokens, device_pages, answered)
        return range(found if self._model.others else 1, found + 1) if found else ()

    def host_hits(self, page_count: int) -> dict[str, int]:
        """Returns what SGLang counts of other components in a hit, by fields of its match."""
        return {
            "swa_host_hit_length": self._model.needed(SWA_POOL, page_count) * self._page_tokens,
            "mamba_host_hit_length": self._model.needed(STATE_POOL, page_count),
        }

    def drop(self, rid: str) -> None:
        """Releases the pages found for a request."""
        self._lookups.drop(rid)

    def save(
        self,
        extra_key: str | None,
        cache_salt: str | None,
        tokens: Sequence[int],
        slots: torch.Tensor,
        transfers: Sequence[Any] = (),
    ) -> bool:
        """Queues a sequence's pages, whose tokens lie in ``slots`` of the pool.

        ``transfers`` are SGLang's, of the pages of other components at the sequence's end. Returns
        False if there is nothing to save. All ranks return the same.
        """
        packed = self._tokens.pack(tokens)
        if not packed:
            return False
        salt = self._salts.of(extra_key, cache_salt)
        events = self.record_offload_ready() if self._on_device else ()
        named = RequestSalt(extra_key, cache_salt, salt)
        saved = partial(self._note_saved, named, tokens)
        # Pages after the last whole page of text have no place in the store.
        is_whole = len(packed) == len(tokens) * TOKEN_BYTES
        hanging = self._hanging(transfers) if is_whole else []
        self._saves.queue(SavedPages(salt, packed, slots, tuple(events), saved, hanging))
        return True

    def take_events(self) -> list[Any]:
        """Returns the events of the store's pages since the last call, if this rank has some."""
        return self._events.take()

    def weights_changed(self) -> None:
        """Separates all later pages from those of the weights until now."""
        self._salts.renew()
        self._lookups.drop_all()
        self._events.clear()
        _logger.info("weights_changed")

    # SGLang's interface.

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        """Raises ``RuntimeError``: the wrapper asks by tokens."""
        raise RuntimeError(
            f"{rid} was looked up by hashes of {len(transfers)} pools: no token keys"
        )

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        """Raises ``RuntimeError``: the wrapper saves by tokens."""
        raise RuntimeError(f"{len(transfers)} pools were saved by hashes, in session {session_id}")

    def load(self, rid: str, transfers: list[Any]) -> bool:
        """Queues the load of found pages; their keys are the numbers of pages of the sequence.

        Returns True on all ranks. If the pages are not held any more, the load fails later.
        """
        by_pool = {str(each.name.value): each for each in transfers}
        path = by_pool.pop(KV_POOL)
        loads = [ComponentLoad(self._model.path, int(path.keys[0]), path.device_indices)]
        loads += [
            ComponentLoad(self._model.others[name], int(each.keys[0]), each.device_indices)
            for name, each in by_pool.items()
        ]
        first_page, page_count = int(path.keys[0]), len(path.keys)
        load = QueuedLoad(self._lookups.take(rid), first_page, page_count, tuple(loads))
        self._loads.queue(rid, load)
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        """Takes out a load that has not started; returns whether there was one."""
        return self._loads.cancel(rid)

    def start_layer_wise_loading(self) -> int:
        """Starts the queued loads; returns the index that the forward waits for, or -1."""
        events: tuple[torch.cuda.Event, ...] = ()
        if self._on_device:
            # The slots are those that the work so far has freed.
            allocated = torch.cuda.Event()
            allocated.record(torch.cuda.current_stream(self._model.device))
            events = (allocated,)
        return self._loads.start(events)

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Waits for a batch of loads; returns whether all of its pages landed."""
        return self._loads.finish(counter_index)

    def num_completed_offloads(self) -> int:
        """Returns the number of ended saves; SGLang asks between two rounds of scheduling."""
        self._lookups.drop_ended()
        if self._access.tried:
            self._usage.note(usable=self._access.usable)
        self._report.tick()
        return self._saves.completed_count

    def pop_completed_offload(self) -> bool:
        """Returns whether the pages of the oldest ended save are in the store."""
        return self._saves.pop()

    def reset(self) -> None:
        """Ends all transfers, and opens namespaces of a new salt: after a flush, or new weights."""
        self._saves.reset()
        self._loads.reset()
        self._lookups.drop_all()
        self._salts.renew()
        self._events.clear()
        _logger.info("cache_flushed")

    def close(self) -> None:
        """Ends all transfers, and gives the lease back."""
        self._events.close()
        self._saves.close()
        self._loads.close()
        self._lookups.drop_all()
        self._access.close()

    def _hanging(self, transfers: Sequence[Any]) -> list[HangingPages]:
        """Returns the pages that SGLang offers of components besides the path."""
        found = [
            HangingPages(self._model.others[name], each.device_indices)
            for each in transfers
            if (name := str(each.name.value)) in self._model.others
        ]
        return [each for each in found if each.page_count]

    def _note_saved(self, salt: RequestSalt, tokens: Sequence[int]) -> None:
        """Announces pages that were saved, unless a flush since then has separated them."""
        try:
            if salt.store_salt == self._salts.of(salt.extra_key, salt.cache_salt):
                self._events.saved(salt, tokens)
        except Exception:  # none may reach the scheduler
            _logger.exception("pages_not_announced")


def weights_changed() -> None:
    """Tells all linkers of this process that the weights change."""
    for linker in list(LINKERS):
        linker.weights_changed()
