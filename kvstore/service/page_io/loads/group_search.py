"""The search for pages of KV cache groups that a match lacks, and loads of all of them or none."""

from collections import Counter
from math import inf

from kvstore.core import Caller
from kvstore.core.index.path_hashes import PageName
from kvstore.core.tiers.group_reads import GroupRead, LocatedGroups
from kvstore.core.tiers.load_or_recompute import Wanted
from kvstore.core.tiers.read_slots import CAREFUL_SHARE, EvictionBound
from kvstore.core.values.layout import PageLayout
from kvstore.service.page_io.loads.group_load import GroupLoad
from kvstore.service.page_io.loads.load_call import LoadCall
from kvstore.service.page_io.loads.load_places import HeldPlaces
from kvstore.service.page_io.loads.load_source import LoadSource
from kvstore.service.page_io.loads.path_load import LoadParts, PathLoad
from kvstore.service.page_io.loads.path_search import Loads
from kvstore.service.serving_turn import let_others_serve


class GroupSearch:
    """Finds pages of groups, and begins loads of them. Thread-safe."""

    def __init__(self, parts: LoadParts, loads: Loads) -> None:
        self._parts = parts
        self._loads = loads

    def bring(self, call: LoadCall) -> bool:
        """Loads the pages of groups that a match lacks at the end of its path, all or none.

        Waits as the call's terms allow. Returns True if it waited for the load of another call,
        which is over and may have brought only some of the pages. Raises the errors of a match.
        """
        parts = self._parts
        assert call.options is not None  # a prefetch loads no groups
        assert isinstance(call.caller, Caller)  # as a match has
        asked = call.caller, call.namespace_id, call.sequence
        rooms = [each.room for each in parts.sources.values() if each.usable() is not None]
        if not rooms:
            # The last one went away during the search before.
            return False
        with parts.mutex:
            located = parts.cache.locate_groups(*asked, call.options, min(rooms))
            layout = parts.cache.namespaces[call.namespace_id].layout
            held = HeldPlaces(call.tenant, is_alone=len(parts.cache.table.tenants) <= 1)
        if not located.pages:
            return False
        with held:
            numbers = self._find(call, located, layout, held)
            if numbers is None:
                return False
            load, is_joined = self._begin(call, located, numbers)
            if load is None:
                return False
            is_over = load.progress.wait(call.terms)
            if not is_over:
                load.next_source().note_late()
        return is_joined and is_over

    def _find(
        self, call: LoadCall, located: LocatedGroups, layout: PageLayout, held: HeldPlaces
    ) -> dict[bytes, int] | None:
        """Returns the page store of each page by its digest; None if they are not to be loaded."""
        numbers: dict[bytes, int] = {}
        saved = (located.end - located.match_end) * layout.page_tokens
        for source in self._parts.sources.values():
            left = [each for each in located.page_names() if each.digest not in numbers]
            if left and source.usable() is not None:
                wanted = Wanted(len(left) * layout.page_bytes, saved)
                found = self._find_in(source, call, (located.namespace_digest, left), wanted, held)
                numbers.update(dict.fromkeys(found, source.number))
        if len(numbers) < len(located.pages):
            return None
        counts = Counter(numbers.values())
        for number, count in counts.items():
            source = self._parts.sources[number]
            wanted = Wanted(count * layout.page_bytes, saved)
            if not (source.worth_loading(wanted, call.speed) and held.take(source.waiting)):
                return None
        return numbers

    def _find_in(
        self,
        source: LoadSource,
        call: LoadCall,
        asked: tuple[bytes, list[PageName]],
        wanted: Wanted,
        held: HeldPlaces,
    ) -> list[bytes]:
        """Returns the digests of those pages that a page store has. A shared one has all or none.

        ``asked`` are the namespace's digest and the pages.
        """
        namespace, names = asked
        if not source.is_shared:
            return [each.digest for each in names if source.look(namespace, [each], 1, inf)]
        patience = call.terms.shared - self._parts.clock()
        if patience <= 0 or not source.worth_looking(wanted, call.speed, patience):
            return []
        if not (held.take(source.waiting) and held.take(source.looking)):
            return []
        count = source.look(namespace, names, len(names), call.terms.shared)
        held.give_back(source.looking)
        return [each.digest for each in names] if count == len(names) else []

    def _begin(
        self, call: LoadCall, located: LocatedGroups, numbers: dict[bytes, int]
    ) -> tuple[PathLoad | GroupLoad | None, bool]:
        """Begins a load of all pages, or joins that of another call."""
        parts = self._parts
        is_careful = any(parts.sources[each].is_shared for each in set(numbers.values()))
        assert isinstance(call.caller, Caller)  # as a match has
        asked = call.caller, call.namespace_id, call.sequence
        with parts.mutex:
            bound = None
            if is_careful:
                since = parts.cache.recent_uses.since(parts.clock())
                bound = EvictionBound(CAREFUL_SHARE, since)
            read = parts.cache.begin_group_read(*asked, located, numbers, bound)
            if read is None:
                return None, False
            if read in self._loads:
                return self._loads[read], True
            parts.took(read.namespace.arena)
            load = self._loads[read] = GroupLoad(parts, read, lambda: self._ended(read))
        # A page store's tables may be in use for long.
        let_others_serve()
        load.go_on()
        return load, False

    def _ended(self, read: GroupRead) -> None:
        """Forgets a load that is over. Under the store's mutex."""
        del self._loads[read]
