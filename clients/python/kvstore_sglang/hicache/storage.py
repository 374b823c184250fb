"""SGLang's ``HiCacheStorage`` over a store: an L3 that all engines of a host share."""

import logging
import secrets
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, NoReturn

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from kvstore_client import OpaqueContent, PageLayout
from kvstore_client.engines.canonical import canonical_json, mixed_salt
from kvstore_client.engines.log import log_with
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.engines.usage_log import UsageLog
from kvstore_sglang import plugin
from kvstore_sglang.engine.identity import engine_identity
from kvstore_sglang.engine.rank_facts import RankFacts
from kvstore_sglang.hicache.hash_path import WORDS, HashPath
from kvstore_sglang.hicache.hash_store import HashStore
from kvstore_sglang.hicache.host_pages import HostPages
from kvstore_sglang.hicache.refusals import require_prefix_keys, require_supported
from kvstore_sglang.hicache.settings import HicacheSettings

_logger = logging.getLogger(__name__)

# Seconds that the engine's start waits for its namespace: without it the first pages are not saved.
OPENING: Final = 2.0
SALT_BYTES: Final = 16
# The storages of this process, which hear of new weights.
STORAGES: Final = weakref.WeakSet["KvstoreHiCache"]()


class KvstoreHiCache(HiCacheStorage):
    """Finds, loads and saves HiCache's pages by their hashes.

    SGLang makes one in the process of each rank, and calls it on threads of its own. Raises
    ``ValueError`` at the start if the store cannot serve the engine; the message names the
    setting to change. Later it raises nothing: a store that is absent, slow, stopped or restarted
    has no pages.
    """

    def __init__(self, storage_config: Any, _: Mapping[str, Any] | None = None) -> None:  # noqa: ANN401  # a HiCacheStorageConfig
        plugin.require_installed()
        log_with(logging.getLogger(), "kvstore_sglang")
        require_supported(storage_config)
        self._config = storage_config
        self._settings = HicacheSettings.read(storage_config.extra_config)
        self._counts: Counter[str] = Counter()
        self._said = False

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:  # noqa: ANN401  # a HostKVCache
        """Opens the namespace of this pool's pages; SGLang calls it once, before all others."""
        super().register_mem_pool_host(mem_pool_host)
        anchor = getattr(mem_pool_host, "anchor_entry", None)
        pages = HostPages(mem_pool_host if anchor is None else anchor.host_pool)
        config = self._config
        context: Any = import_module("sglang.srt.runtime_context")
        require_prefix_keys(context.get_memory().hicache_storage_backend_extra_config)
        facts = RankFacts.of(
            context.get_server_args(),
            device_type=str(pages.device).partition(":")[0],
            # All ranks of an MLA model have the same pages, which the first one saves.
            rank=0 if config.is_mla_model else config.tp_rank,
            rank_count=1 if config.is_mla_model else config.tp_size,
        )
        fingerprint = sha256(canonical_json(pages.facts(), "host pool")).digest()
        layout = PageLayout(WORDS, pages.page_bytes, OpaqueContent(fingerprint))
        self._access = StoreAccess(
            self._settings.runtime_dir,
            engine_identity(facts, self._settings, layout),
            layout,
            name=facts.lease_name,
            call_timeout=self._settings.lookup_timeout,
        )
        self._usage = UsageLog(self._access.facts, self._counts)
        namespace = self._access.memory
        namespace.wait_open(OPENING)
        self._store = HashStore(namespace, pages, self._counts)
        STORAGES.add(self)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:  # noqa: ANN401  # SGLang's own
        """Accepts the pool of keys and values; raises ``ValueError`` for any other.

        Such a pool has windows or states beside the pages, and a page without them is wrong.
        """
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != "kv":
            raise ValueError(
                f"the engine has a host pool {host_pool_name} beside its keys and values, which "
                "KvstoreHiCache does not store: leave --hicache-storage-backend out"
            )

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:  # noqa: ANN401  # a HiCacheStorageExtraInfo
        """Returns how many of the pages, from the first on, can be loaded."""
        self._note_usage()
        path = self._path(keys, extra_info)
        return 0 if path is None else self._store.find(path, keys)

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: Any,  # noqa: ANN401  # a tensor
        extra_info: Any = None,  # noqa: ANN401  # a HiCacheStorageExtraInfo
    ) -> list[bool]:
        """Copies pages into the host pool; returns which of them landed."""
        path = self._path(keys, extra_info)
        return [False] * len(keys) if path is None else self._store.load(path, keys, host_indices)

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: Any,  # noqa: ANN401  # a tensor
        extra_info: Any = None,  # noqa: ANN401  # a HiCacheStorageExtraInfo
    ) -> list[bool]:
        """Stores pages of the host pool; returns which of them the store has."""
        path = self._path(keys, extra_info)
        return [False] * len(keys) if path is None else self._store.save(path, host_indices)

    def clear(self) -> None:
        """Separates this engine from all pages until now; the store evicts them in time."""
        self._renew()
        _logger.info("storage_cleared")

    def weights_changed(self) -> None:
        """Separates all later pages from those of the weights until now."""
        self._renew()
        _logger.info("weights_changed")

    def close(self) -> None:
        """Gives everything back, and the lease."""
        self._store.close()
        self._access.close()

    def exists(self, key: str) -> bool:
        """Returns whether the page can be loaded."""
        return self.batch_exists([key]) == 1

    def get(self, *_: object, **__: object) -> NoReturn:
        """Raises ``NotImplementedError``: with ``interface_v1`` SGLang copies pages in place."""
        raise NotImplementedError("pages are copied in place")

    batch_get = set = batch_set = get

    def _path(self, keys: Sequence[str], extra_info: Any) -> HashPath | None:  # noqa: ANN401  # SGLang's own
        """Returns the path of pages; None if a key is no hash, which is logged once.

        SGLang passes no prefix for pages that begin a prompt.
        """
        try:
            return HashPath.of(keys, getattr(extra_info, "prefix_keys", None))
        except ValueError as error:
            if not self._said:
                self._said = True
                _logger.warning("pages_not_stored", extra={"reason": str(error)})
            return None

    def _renew(self) -> None:
        """Uses a namespace of a salt of chance from now on, which no other engine has."""
        salt = mixed_salt(
            base=self._access.memory.identity.salt, renewed=secrets.token_bytes(SALT_BYTES)
        )
        self._store.use(self._access.namespace(salt))

    def _note_usage(self) -> None:
        if self._access.tried:
            self._usage.note(usable=self._access.usable)


def weights_changed() -> None:
    """Tells all storages of this process that the weights change."""
    for storage in list(STORAGES):
        storage.weights_changed()
