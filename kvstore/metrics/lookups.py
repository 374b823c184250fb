"""Metrics of lookups and their hits, by tenant and namespace."""

from typing import Final

from kvstore.core.stats import NamespaceStats
from kvstore.core.values.counters import Counters
from kvstore.metrics.metric import Sheet, counter, gauge
from kvstore.metrics.names import TenantNames
from kvstore.metrics.view import View

BY: Final = "tenant namespace"
OF_NAMES: Final = "`other` are those beyond the bound on names."

LOOKUPS: Final = counter(
    "kvstore_lookups_total",
    f"{BY} outcome",
    f"Matches answered: `full`, `partial`, or `miss`. {OF_NAMES}",
    "Mostly `miss` where prompts begin alike: how-to-monitor.md, low hit rate.",
)
ASKED: Final = counter(
    "kvstore_asked_tokens_total",
    BY,
    "Tokens of the prompts that matches asked about.",
    "Stands still while workers serve: they do not use the store; see their log and `doctor`.",
)
MATCHED: Final = counter(
    "kvstore_matched_tokens_total",
    BY,
    "Of the asked tokens, those found and used in place. Over the asked: the hit rate.",
    "Falls against the asked: how-to-monitor.md, low hit rate.",
)
COPIED: Final = counter(
    "kvstore_copied_tokens_total",
    BY,
    "Of the asked tokens, those found in a page to be copied, whose end is another's.",
    "Large against the matched: prompts part early within pages; try smaller pages.",
)
NEXT_TOKENS: Final = counter(
    "kvstore_next_tokens_total",
    BY,
    "Matches that gave the stored next token too, so that nothing had to be computed.",
    "Zero where greedy prompts repeat: the engine does not ask for it.",
)
INSERTED: Final = counter(
    "kvstore_inserted_pages_total",
    BY,
    "Pages published.",
    "Stands still with misses: workers cannot reserve; see `kvstore_exhausted_reserves_total`.",
)
EVICTED: Final = counter(
    "kvstore_evicted_pages_total",
    f"{BY} reason",
    "Pages that left the index: for want of room (`pressure`), replaced by a fuller page "
    "(`superseded`), or `removed`, of which `kvstore_removed_pages_total` has the causes.",
    "`pressure` grows as fast as pages are inserted: more memory, or tier 2; sizing.md.",
)
CACHED: Final = gauge(
    "kvstore_cached_pages",
    BY,
    "Pages in the index now, in whichever memory tier.",
    "Falls without pressure: an operator removed pages, or a tenant's extents went to another.",
)
METRICS: Final = (LOOKUPS, ASKED, MATCHED, COPIED, NEXT_TOKENS, INSERTED, EVICTED, CACHED)


class Lookups:
    """Sums namespaces by their labels. Deleted namespaces stay in the sums."""

    def __init__(self, names: TenantNames) -> None:
        self._names = names
        self._last: dict[bytes, NamespaceStats] = {}
        # Sums of deleted namespaces by their labels, and each tenant's part of them.
        self._gone: dict[tuple[str, str], Counters] = {}
        self._shown: dict[str, Counters] = {}

    def write(self, view: View, sheet: Sheet) -> None:
        """Adds this module's metrics to the sheet."""
        current = {each.namespace_id: each for each in view.stats.namespaces}
        for namespace_id, last in self._last.items():
            if namespace_id not in current:
                self._gone.setdefault(self._labels(last), Counters()).add(last.counters)
                self._shown.setdefault(last.tenant, Counters()).add(last.counters)
        self._last = current
        for labels, counters in self._gone.items():
            _write(sheet, counters, *labels)
        # Lookups that a namespace counted after its last view; their labels would be a guess.
        for tenant, counters in view.stats.deleted.items():
            unseen = counters.less(self._shown.get(tenant, Counters()))
            _write(sheet, unseen, *self._names.others(tenant))
        for each in current.values():
            labels = self._labels(each)
            _write(sheet, each.counters, *labels)
            sheet.add(CACHED, each.cached_page_count, *labels)

    def _labels(self, namespace: NamespaceStats) -> tuple[str, str]:
        name = namespace.identity.display_name or namespace.namespace_id.hex()[:8]
        return self._names.namespace(namespace.tenant, name)


def _write(sheet: Sheet, counters: Counters, tenant: str, namespace: str) -> None:
    for metric, value, *more in (
        (LOOKUPS, counters.full_hit_count, "full"),
        (LOOKUPS, counters.partial_hit_count, "partial"),
        (LOOKUPS, counters.miss_count, "miss"),
        (ASKED, counters.asked_token_count),
        (MATCHED, counters.matched_token_count),
        (COPIED, counters.copied_token_count),
        (NEXT_TOKENS, counters.next_token_count),
        (INSERTED, counters.inserted_page_count),
        (EVICTED, counters.evicted_page_count, "pressure"),
        (EVICTED, counters.superseded_page_count, "superseded"),
        (EVICTED, counters.removed_page_count, "removed"),
    ):
        sheet.add(metric, value, tenant, namespace, *more)
