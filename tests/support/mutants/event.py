"""The faults about events and deleted namespaces that the cache machine has to find in the core."""

from mutants.core import Mutant

EVENT_MUTANTS = [
    Mutant(
        "pages-come-untold",
        "pool/pages.py",
        "    note_pages(PagesChange.INSERTED, cause, *end, len(slots), arena.tier)\n",
        "",
    ),
    Mutant(
        "evicted-copies-told-as-pages",
        "pool/pages.py",
        "    if pages > elsewhere:\n",
        "    if pages > keep:\n        elsewhere = keep\n",
    ),
    Mutant(
        "pages-below-a-removed-one-go-untold",
        "pool/pages.py",
        "    for node in subtree(top):\n        note_removed(node, cause)\n",
        "    note_removed(top, cause)\n",
    ),
    Mutant(
        "a-path-told-by-another-digest",
        "pool/pages.py",
        "digests.through(depth)[:EVENT_DIGEST_BYTES]",
        "digests.through(digests.start)[:EVENT_DIGEST_BYTES]",
    ),
    Mutant(
        "a-lease-ends-untold",
        "leases/lifecycle.py",
        "        self._note(lease, LeaseStep.ENDED, now)\n",
        "",
    ),
    Mutant(
        "a-deleted-namespace-is-found-by-its-identity",
        "verbs/namespaces.py",
        "        del self._by_identity[namespace.identity.key(namespace.tenant)]\n",
        "",
    ),
    Mutant(
        "counts-of-a-deleted-namespace-are-lost",
        "verbs/namespaces.py",
        "        deleted.add(namespace.counters)\n",
        "",
    ),
    Mutant(
        "loaded-before-tier-3-forgot-a-deleted-namespace",
        "pool/disk.py",
        "        namespace.removing = self.untold.pop(namespace.digest, 0)\n",
        "        self.untold.pop(namespace.digest, 0)\n",
    ),
]
# Where a page may have copies in two tiers.
OF_TWO_TIERS = {"evicted-copies-told-as-pages"}
