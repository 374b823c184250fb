"""The cache machine's rules about tier 3: pages kept there, loaded from there, lost and removed."""

from itertools import takewhile
from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from machine_moving import pair
from machine_state import COUNTS, PAGES, SELDOM, MachineState
from naive_copies import FIRST, Path, Slot
from naive_holds import ModelLease
from naive_third import ModelKeep, ModelLoad

from kvstore.core.keep import Keep
from kvstore.core.load import Load, Located
from kvstore.core.page_digest import page_digests
from kvstore.core.requests import MatchWishes, Sequence

# What a disk has from before the start.
FROM_BEFORE = ([0, 1, 2, 3], [0, 0], [2, 0, 1], [3, 3, 3])


class ThirdTierRules(MachineState):
    """Pages come and go between memory and a disk, while everything else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.keeping: list[Keep] = []
        self.loading: list[Load] = []
        self.known_digests: dict[bytes, bytes] = {}

    @initialize()
    def begin_with_a_disk(self) -> None:
        """Some pages are on the disk."""
        for pages in FROM_BEFORE:
            self.model.disk.prefixes.update(self.model.prefixes(self.tokens(pages)))

    def digest_of(self, prefix: bytes) -> bytes:
        """Return the digest of a prefix's last page, taken from all its tokens."""
        if prefix not in self.known_digests:
            digest = self.cache.namespaces[self.namespace_id].digest
            for each in page_digests(digest, prefix, self.model.width):
                digest = each
            self.known_digests[prefix] = digest
        return self.known_digests[prefix]

    def tell(self) -> None:
        """Tell the disk what it must not have any more."""
        disk = self.model.disk
        removed = self.cache.take_removed()
        for each in removed:
            known = {self.digest_of(prefix): prefix for prefix in disk.prefixes}
            if each.page_digest is None:
                disk.prefixes.clear()
            elif each.page_digest in known:
                disk.lose(known[each.page_digest])
        for prefix in disk.forbidden:
            kept = [each for each in disk.prefixes if each.startswith(prefix)]
            assert not kept, "a removed page stays in tier 3"
        disk.forbidden.clear()
        self.cache.finish_removed(removed)

    # To the disk.

    @rule(data=st.data(), most=st.sampled_from([1, 3, 100]), late=SELDOM)
    def keep_what_was_touched(self, data: st.DataObject, most: int, *, late: bool) -> None:
        """Pages are written, some or all of them; that is known at once, or later."""
        COUNTS["keep_what_was_touched"] += 1
        self.tell()
        self.plan(data, most)
        if not late:
            self.finish_keeping(range(len(self.keeping)))

    @precondition(lambda self: self.model.leases and self.whole())
    @rule(data=st.data())
    def offer_what_is_not_there(self, data: st.DataObject) -> None:
        """What is matched and not on the disk is offered to it, however often it was before."""
        COUNTS["offer_what_is_not_there"] += 1
        lease = self.member(data)
        if lease is None:
            return
        self.tell()
        tokens = data.draw(st.sampled_from(self.whole()))
        pin_id, caller = self.fresh(), self.caller(lease)
        sequence = Sequence(tokens + self.tokens([0]))
        wishes = MatchWishes(pin_id)
        match = self.cache.match(caller, self.namespace_id, sequence, wishes, self.now)
        self.cache.release(caller, [pin_id], self.now)
        lease.dead_pins.add(pin_id)
        offered = self.plan(data, 10_000)
        found = self.model.prefixes(sequence.tokens[: match.matched_token_count * 4])
        assert offered.issuperset(set(found) - self.model.disk.prefixes - self.just_written)
        self.finish_keeping(range(len(self.keeping)))

    def whole(self) -> list[bytes]:
        """Return the cached whole pages."""
        return sorted(each for each in self.model.cached if len(each) % self.model.width == 0)

    def plan(self, data: st.DataObject, most: int) -> set[bytes]:
        """Let the core name what to keep, write some of it, and return what was named."""
        self.just_written: set[bytes] = set()
        offered: set[bytes] = set()
        keeps = self.cache.plan_keeps(most)
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
    def finish_keeps(self, data: st.DataObject) -> None:
        """What was written before is known to be now, the later ones perhaps first."""
        COUNTS["finish_keeps"] += 1
        self.finish_keeping(data.draw(st.permutations(range(len(self.keeping)))))

    def finish_keeping(self, order: range | list[int]) -> None:
        """Finish all keeps under way."""
        for number in order:
            keep = self.keeping[number]
            known = self.model.disk.keeps.pop(id(keep))
            stale = self.model.attached(known.path) != known.path
            assert self.cache.keeps_stale(keep) == stale
            self.cache.finish_keeps([keep], [known.written])
        self.keeping.clear()

    @precondition(lambda self: self.model.disk.prefixes)
    @rule(data=st.data())
    def lose_a_page(self, data: st.DataObject) -> None:
        """The disk loses a page, and says so."""
        COUNTS["lose_a_page"] += 1
        self.tell()
        if self.model.disk.prefixes:
            self.model.disk.lose(data.draw(st.sampled_from(sorted(self.model.disk.prefixes))))
        self.cache.forget_kept([self.cache.namespaces[self.namespace_id].digest])

    # From the disk.

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), pages=PAGES, late=st.booleans())
    def load(self, data: st.DataObject, pages: list[int], *, late: bool) -> None:
        """What comes after the cached pages of a sequence is read, well or not."""
        COUNTS["load"] += 1
        lease = self.member(data)
        if lease is None:
            return
        known = sorted(self.model.disk.prefixes)
        tokens = data.draw(st.sampled_from([b"", *known])) + self.tokens(pages)
        sequence, width = Sequence(tokens), self.model.width
        caller = self.caller(lease)
        located = self.cache.locate(caller, self.namespace_id, sequence)
        path = self.model.longest(tokens, len(tokens) // width)
        matchable = max(len(tokens) // 4 - 1, 0) // self.page_tokens
        assert located.end == len(path)
        assert located.page_count == max(matchable - len(path), 0)
        if self.cache.third is not None and self.cache.third.removed:
            args = (caller, self.namespace_id, sequence, located.page_count, located)
            assert self.cache.begin_load(*args) is None, "loaded before the disk was told"
            self.tell()
        beyond = self.model.prefixes(tokens)[len(path) : matchable]
        assert list(located.page_digests()) == [self.digest_of(each) for each in beyond]
        there = list(takewhile(self.model.disk.prefixes.__contains__, beyond))
        self.begin_one(data, lease, sequence, located, path, there)
        if not late:
            self.finish_loading()

    def begin_one(
        self,
        data: st.DataObject,
        lease: ModelLease,
        sequence: Sequence,
        located: Located,
        path: Path,
        there: list[bytes],
    ) -> None:
        """Begin to load pages that are there, and judge what went for them."""
        free = self.model.free_slots()
        lasting = self.model.lasting_in(FIRST)
        usable = lease.usable(lasting)
        load = self.cache.begin_load(
            self.caller(lease), self.namespace_id, sequence, len(there), located
        )
        under_way = {p for known in self.model.disk.loads.values() for p, _ in known.pages}
        fresh = list(takewhile(lambda each: each not in under_way, there))
        if load is not None and load.callers > 1:
            assert not fresh, "a load that is under way was to be waited for"
            assert there[0] in {p for p, _ in self.model.disk.loads[id(load)].pages}
            return
        assert bool(fresh) == bool(there), "a page is loaded twice"
        count = 0 if load is None else len(load.targets)
        assert count <= len(fresh)
        targets = [] if load is None else [pair(slot) for slot in load.targets]
        held = self.model.held(FIRST) | self.model.held_in([path], FIRST)
        gone = self.model.judge_dropped(self.cached_now(), FIRST, held)
        self.model.forget_ends()
        most = max(len(fresh) - len(free), 0) if len(usable) == len(lasting) else 0
        assert len(gone) <= most, "more was evicted than a load needs"
        if count < len(fresh):
            left = {slot for slot in self.model.free_slots() if slot[0] in usable}
            assert left <= set(targets), "fewer pages are loaded than could be"
        if load is None:
            return
        assert set(targets) <= self.model.free_slots(), "a slot in use is loaded into"
        assert {slot[0] for slot in targets} <= usable
        pages = list(zip(fresh[:count], targets, strict=True))
        good = data.draw(st.sampled_from([count, count, 0, count // 2]))
        known = ModelLoad(path, pages, good, self.model.disk.removals)
        self.model.disk.loads[id(load)] = known
        self.loading.append(load)
        COUNTS["pages loading"] += count

    @precondition(lambda self: self.loading)
    @rule()
    def finish_loads(self) -> None:
        """What was begun before is read."""
        COUNTS["finish_loads"] += 1
        self.finish_loading()

    def finish_loading(self) -> None:
        """Finish all loads under way, and compare."""
        for load in self.loading:
            known = self.model.disk.loads.pop(id(load))
            intact = self.model.attached(known.path) == known.path
            may = intact and known.removals == self.model.disk.removals
            good = list(takewhile(self._lasts, known.pages[: known.good])) if may else []
            checksums = []
            for prefix, slot in known.pages[: known.good]:
                self.model.memory[slot] = prefix
                self.digests[slot] = crc32(prefix, slot[1]) + 1
                self.flipped.discard(slot)
                checksums.append(self.digests[slot])
            published = self.cache.finish_load(load, known.good, checksums)
            fresh = [each for each in good if each[0] not in self.model.cached]
            for prefix, slot in fresh:
                self.model.publish(prefix, slot)
            assert published == len(fresh), "another number of pages was published"
            COUNTS["pages loaded"] += published
        self.loading.clear()

    def _lasts(self, page: tuple[bytes, Slot]) -> bool:
        return page[1][0] in self.model.lasting

    # What holds after every step.

    @invariant()
    def what_is_kept_is_on_the_disk(self) -> None:
        """Nothing is believed to be in tier 3 that is not; pages to be written have their bytes."""
        space = self.cache.namespaces.get(self.namespace_id)
        above = {0: b""}
        for node in [] if space is None else space.index.nodes.values():
            chain = node.chain
            if chain is None or not chain.kept or chain.losses != node.namespace.losses:
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
        """Return all tokens through the last of a node."""
        if number not in above:
            node = self.cache.namespaces[self.namespace_id].index.nodes[number]
            assert node.parent is not None
            above[number] = self._tokens_through(node.parent.number, above) + node.edge
        return above[number]
