"""The cache machine's rules about pages that are loaded from tier 3."""

from itertools import takewhile
from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore.core.index.node import Position
from kvstore.core.tiers.disk_reads import DiskRead, Located
from kvstore.core.values.requests import MatchOptions, ReservationRequest, Sequence
from machine.keeping import KeepRules
from machine.moving import MoveRules, pair
from machine.retiring import RetireRules
from machine.state import COUNTS, OWNER, PAGES, SELDOM
from naive.copies import FIRST, Path, Slot
from naive.holds import ModelLease
from naive.third import ModelLoad

# What happens while pages are read.
MEANWHILE = st.sampled_from(
    ["nothing", "later", "an operator removes", "its path retires", "others insert"]
)


class LoadRules(KeepRules, MoveRules, RetireRules):
    """Pages come from the disk, while everything else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.loading: list[DiskRead] = []

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), pages=PAGES, meanwhile=MEANWHILE)
    def load(self, data: st.DataObject, pages: list[int], meanwhile: str) -> None:
        """What comes after the cached pages of a sequence is read, well or not."""
        pages = pages or [0, 1]
        COUNTS["load"] += 1
        lease = self.member(data)
        if lease is None:
            return
        known = sorted({b"", *self.model.disk.prefixes, *self.whole()})
        if meanwhile == "its path retires":
            known = self.whole() or known
        tokens = data.draw(st.sampled_from(known)) + self.tokens(pages)
        if meanwhile == "its path retires" and self.cache.state.wanted is not None:
            self.copy_down(tokens)
        sequence, width = Sequence(tokens), self.model.width
        caller = self.caller(lease)
        located = self.cache.locate(caller, self.namespace_id, sequence)
        path = self.model.longest(tokens, len(tokens) // width)
        matchable = max(len(tokens) // 4 - 1, 0) // self.page_tokens
        assert located.end == len(path)
        assert located.page_count == max(matchable - len(path), 0)
        if self.cache.state.disk is not None and self.cache.state.disk.removed:
            args = (caller, self.namespace_id, sequence, located.page_count, located)
            assert self.cache.begin_read(*args) is None, "loaded before the disk was told"
        self.tell()
        beyond = self.model.prefixes(tokens)[len(path) : matchable]
        assert list(located.page_digests()) == [self.digest_of(each) for each in beyond]
        if not data.draw(SELDOM):
            # Whoever was here before kept it.
            self.model.disk.prefixes.update(self.model.prefixes(tokens))
        there = list(takewhile(self.model.disk.prefixes.__contains__, beyond))
        self.begin_one(data, lease, sequence, located, path, there)
        if not self.loading or meanwhile == "later":
            return
        self.let_happen(data, meanwhile, lease, (tokens, len(path)))
        self.finish_loading()

    def let_happen(
        self, data: st.DataObject, meanwhile: str, lease: ModelLease, asked: tuple[bytes, int]
    ) -> None:
        """Let something happen to what is loaded, or to what is above it."""
        (tokens, depth), width = asked, self.model.width
        if meanwhile == "an operator removes":
            self.model.remove(tokens[:width])
            self.model.disk.forbid(tokens[:width])
            self.cache.evict_prefix(OWNER, self.namespace_id, tokens[:width])
        elif meanwhile == "others insert":
            self.acquire_one(lease, tokens[: (depth + 1) * width], self.page_tokens - 1)
        elif meanwhile == "its path retires":
            [*_, known] = self.model.disk.loads.values()
            copies = [*self.model.first.items(), *self.model.lower.items()]
            above = {prefix for prefix, _ in known.path}
            apart = {slot[0] for prefix, slot in copies if prefix in above}
            apart -= {slot[0] for _, slot in known.pages}
            if apart & self.model.lasting.keys():
                COUNTS["paths of loads retired"] += 1
                self.retire(data, min(apart & self.model.lasting.keys()))

    def copy_down(self, tokens: bytes) -> None:
        """Have what is cached of a sequence copied to tier 2, where it is in another extent."""
        index = self.cache.namespaces[self.namespace_id].index
        at = index.descend(Position(index.root, 0), tokens, len(tokens) // self.model.width)
        if self.cache.state.wanted is not None:
            self.cache.state.wanted.to_lower[at.node] = None
        self.plan_once(6)
        self.finish_all(copied=True)

    def begin_one(
        self,
        data: st.DataObject,
        lease: ModelLease,
        sequence: Sequence,
        located: Located,
        path: Path,
        there: list[bytes],
    ) -> None:
        """Begins to load pages that are there, and judge what went for them."""
        free = self.model.free_slots()
        lasting = self.model.lasting_in(FIRST)
        usable = lease.usable(lasting)
        load = self.cache.begin_read(
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

    @precondition(lambda self: self.model.leases and self.whole())
    @rule(data=st.data(), then=st.sampled_from(["nothing", "a split", "a cut"]))
    def offer_what_is_not_there(self, data: st.DataObject, then: str) -> None:
        """What is matched and not on the disk is offered to it, however often it was before."""
        COUNTS["offer_what_is_not_there"] += 1
        lease = self.member(data)
        if lease is None:
            return
        self.tell()
        tokens = data.draw(st.sampled_from(self.whole()))
        pin_id, caller = self.fresh(), self.caller(lease)
        sequence = Sequence(tokens + self.tokens([0]))
        options = MatchOptions(pin_id)
        match = self.cache.match(caller, self.namespace_id, sequence, options, self.now)
        self.cache.release(caller, [pin_id], self.now)
        lease.dead_pins.add(pin_id)
        offered = self.plan(data, 10_000)
        found = self.model.prefixes(sequence.tokens[: match.matched_token_count * 4])
        assert offered.issuperset(set(found) - self.model.disk.prefixes - self.just_written)
        self.finish_keeping(range(len(self.keeping)))
        if then == "a split":
            pages = data.draw(st.integers(0, len(tokens) // self.model.width - 1))
            self.acquire_one(lease, tokens[: pages * self.model.width] + self.tokens([2]), 0)
        elif then == "a cut":
            # All but one page of what may go goes: the tail of what was just used, as a rule.
            evictable = len(self.model.first) - len(self.model.held(FIRST))
            count = max(len(self.model.free_slots()) + evictable - 1, 1)
            request = ReservationRequest(self.fresh(), 0, count)
            if self.reserve_and_check(lease, [request]):
                self.cache.abort(caller, [request.reservation_id], self.now)
                del lease.reservations[request.reservation_id]
                lease.dead_reservations.add(request.reservation_id)

    @precondition(lambda self: self.loading)
    @rule()
    def finish_loads(self) -> None:
        """What was begun before is read."""
        COUNTS["finish_loads"] += 1
        self.finish_loading()

    def finish_loading(self) -> None:
        """Finishes all loads under way, and compare."""
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
            published = self.cache.finish_read(load, known.good, checksums)
            fresh = [each for each in good if each[0] not in self.model.cached]
            for prefix, slot in fresh:
                self.model.publish(prefix, slot)
            assert published == len(fresh), "another number of pages was published"
            COUNTS["pages loaded"] += published
        self.loading.clear()

    def _lasts(self, page: tuple[bytes, Slot]) -> bool:
        return page[1][0] in self.model.lasting
