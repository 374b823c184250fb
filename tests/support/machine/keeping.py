"""The cache machine's rules about pages that are kept in tier 3, which is a disk here."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvstore.core.tiers.disk_writes import DiskWrite
from kvstore.core.values.page_hash import page_digests
from machine.moving import pair
from machine.state import COUNTS, SELDOM, MachineState
from naive.third import ModelKeep

# What a disk has from before the start.
FROM_BEFORE = ([0, 1, 2, 3], [0, 0], [2, 0, 1], [3, 3, 3])


class KeepRules(MachineState):
    """Pages go to a disk, which loses some, while everything else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.keeping: list[DiskWrite] = []
        self.known_digests: dict[bytes, bytes] = {}

    @initialize()
    def begin_with_a_disk(self) -> None:
        """Some pages are on the disk."""
        for pages in FROM_BEFORE:
            self.model.disk.prefixes.update(self.model.prefixes(self.tokens(pages)))

    def digest_of(self, prefix: bytes) -> bytes:
        """Returns the digest of a prefix's last page, taken from all its tokens."""
        if prefix not in self.known_digests:
            digest = self.cache.namespaces[self.namespace_id].digest
            for each in page_digests(digest, prefix, self.model.width):
                digest = each
            self.known_digests[prefix] = digest
        return self.known_digests[prefix]

    def tell(self) -> None:
        """Tells the disk what it must not have any more.

        A page that it does not have may be told too. What continues that page leaves it as well.
        """
        disk = self.model.disk
        removed = self.cache.take_removed()
        for each in removed:
            paths = {path for prefix in disk.prefixes for path in self.model.prefixes(prefix)}
            known = {self.digest_of(path): path for path in paths}
            if each.page_digest is None:
                disk.prefixes.clear()
            elif each.page_digest in known:
                disk.lose(known[each.page_digest])
        for prefix in disk.forbidden:
            kept = [each for each in disk.prefixes if each.startswith(prefix)]
            assert not kept, "a removed page stays in tier 3"
        disk.forbidden.clear()
        self.cache.finish_removed(removed)

    @rule(data=st.data(), most=st.sampled_from([1, 3, 100]), late=SELDOM, loses=SELDOM)
    def keep_what_was_touched(
        self, data: st.DataObject, most: int, *, late: bool, loses: bool
    ) -> None:
        """Pages are written, some or all of them; that is known at once, or later.

        Perhaps some are lost before it is.
        """
        COUNTS["keep_what_was_touched"] += 1
        self.tell()
        self.plan(data, most)
        if loses:
            self.lose(data)
        if not late:
            self.finish_keeping(range(len(self.keeping)))

    def whole(self) -> list[bytes]:
        """Returns the cached whole pages."""
        return sorted(each for each in self.model.cached if len(each) % self.model.width == 0)

    def plan(self, data: st.DataObject, most: int) -> set[bytes]:
        """Let the core name what to keep, write some of it, and return what was named."""
        self.just_written: set[bytes] = set()
        offered: set[bytes] = set()
        keeps = self.cache.plan_writes(most)
        assert sum(len(keep.pages) for keep in keeps) <= most
        for keep in keeps:
            prefixes = self.model.pages_of(keep.tokens())
            path = [(p, pair(slot)) for p, slot in zip(prefixes, keep.slots(), strict=True)]
            assert self.model.attached(path) == path, "what is not there is to be kept"
            end = data.draw(st.sampled_from([keep.held_end, keep.held_end, keep.start]))
            for page in keep.pages:
                prefix = prefixes[page.end - 1]
                copy = self.model.lower.get(prefix, self.model.cached[prefix])
                assert pair(page.slot) == copy, "another copy than the best is to be kept"
                above = prefix[: -self.model.width]
                assert keep.digests.through(page.end - 1) == self.digest_of(above)
                assert keep.digests.through(page.end) == self.digest_of(prefix)
                offered.add(prefix)
                if page.end <= end:
                    self.just_written.add(prefix)
            self.model.disk.keeps[id(keep)] = ModelKeep(path, end)
            self.keeping.append(keep)
        self.model.disk.prefixes |= self.just_written
        COUNTS["pages offered"] += len(offered)
        return offered

    @precondition(lambda self: self.keeping)
    @rule(data=st.data())
    def finish_writes(self, data: st.DataObject) -> None:
        """What was written before is known to be now, the later ones perhaps first."""
        COUNTS["finish_keeps"] += 1
        self.finish_keeping(data.draw(st.permutations(range(len(self.keeping)))))

    def finish_keeping(self, order: range | list[int]) -> None:
        """Finishes all keeps under way."""
        for number in order:
            keep = self.keeping[number]
            known = self.model.disk.keeps.pop(id(keep))
            stale = self.model.attached(known.path) != known.path
            assert self.cache.write_is_stale(keep) == stale
            self.cache.finish_writes([keep], [known.written])
        self.keeping.clear()

    @precondition(lambda self: self.model.disk.prefixes)
    @rule(data=st.data(), loses=SELDOM)
    def lose_a_page(self, data: st.DataObject, *, loses: bool) -> None:
        """The disk loses a page, and says so."""
        COUNTS["lose_a_page"] += 1
        self.tell()
        if loses:
            self.lose(data)

    def lose(self, data: st.DataObject) -> None:
        """Loses a page, if there is any."""
        if self.model.disk.prefixes:
            self.model.disk.lose(data.draw(st.sampled_from(sorted(self.model.disk.prefixes))))
        self.cache.forget_kept([self.cache.namespaces[self.namespace_id].digest])

    # What holds after every step.

    @invariant()
    def what_is_kept_is_on_the_disk(self) -> None:
        """Nothing is believed to be in tier 3 that is not; pages to be written have their bytes."""
        space = self.cache.namespaces.get(self.namespace_id)
        above = {0: b""}
        for node in [] if space is None else space.index.nodes.values():
            chain = node.chain
            if chain is None or not chain.kept or chain.losses != node.tree.losses:
                continue
            prefix = self._tokens_through(node.number, above)
            first = len(prefix) - len(node.edge) + self.model.width
            ends = range(first, first + chain.kept * self.model.width, self.model.width)
            kept = {prefix[:end] for end in ends}
            untold = bool(self.model.disk.forbidden)
            assert untold or kept <= self.model.disk.prefixes, "a page that is lost is kept"
        for known in self.model.disk.keeps.values():
            for prefix, slot in known.path:
                assert self.model.memory[slot] == prefix, "a page was recycled while it is kept"

    def _tokens_through(self, number: int, above: dict[int, bytes]) -> bytes:
        """Returns all tokens through the last of a node."""
        if number not in above:
            node = self.cache.namespaces[self.namespace_id].index.nodes[number]
            assert node.parent is not None
            above[number] = self._tokens_through(node.parent.number, above) + node.edge
        return above[number]
