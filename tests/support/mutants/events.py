"""The faults about events and deleted namespaces that the cache machine has to find in the core."""

from mutants.mutant import Mutant

EVENT_MUTANTS = [
    Mutant(
        "pages-come-untold",
        "kvstore.core.pool.pages",
        "publish",
        "note_pages(namespace, PagesChange.INSERTED, cause, *end, len(slots), arena.tier)",
        "pass",
    ),
    Mutant(
        "evicted-copies-told-as-pages",
        "kvstore.core.pool.pages",
        "_note_evicted",
        "pages > elsewhere",
        "pages > (elsewhere := keep)",
    ),
    Mutant(
        "pages-below-a-removed-one-go-untold",
        "kvstore.core.pool.pages",
        "remove",
        "for node in subtree(top):\n    _note_removed(namespace, node, cause)",
        "_note_removed(namespace, top, cause)",
    ),
    Mutant(
        "a-path-told-by-another-digest",
        "kvstore.core.pool.pages",
        "note_pages",
        "digests.through(depth)",
        "digests.through(digests.start)",
    ),
    Mutant(
        "a-lease-ends-untold",
        "kvstore.core.verbs.lease_lifecycle",
        "Lifecycle._end",
        "self._note(lease, LeaseStep.ENDED, now)",
        "pass",
    ),
    Mutant(
        "a-deleted-namespace-is-found-by-its-identity",
        "kvstore.core.verbs.namespaces",
        "Namespaces.delete_namespace",
        "del self._by_identity[namespace.identity.key(namespace.tenant)]",
        "pass",
    ),
    Mutant(
        "counts-of-a-deleted-namespace-are-lost",
        "kvstore.core.verbs.namespaces",
        "Namespaces.delete_namespace",
        "deleted.add(namespace.counters)",
        "pass",
    ),
    Mutant(
        "loaded-before-tier-3-forgot-a-deleted-namespace",
        "kvstore.core.pool.disk_state",
        "DiskState.open",
        "namespace.removing = self.untold.pop(namespace.digest, none)",
        "self.untold.pop(namespace.digest, none)",
    ),
]
# Where a page may have copies in two tiers.
OF_TWO_TIERS = {"evicted-copies-told-as-pages"}
