"""Matches and acquires: the calls whose answers are looked at before they are given."""

from contextlib import suppress

from kvstore.core import Caller, Grant, Match, MatchOptions, Sequence
from kvstore.core.tiers.moves import Move
from kvstore.errors import KVStoreError
from kvstore.service.members import Members
from kvstore.service.memory.growth import Growth
from kvstore.service.tiers.disk_reader import NO_TERMS, LoadTerms
from kvstore.service.tiers.disk_tier import Tier3
from kvstore.service.tiers.mover import Mover
from kvstore.service.verification import Verifier


class Matching(Members):
    """What hands out pages that others wrote. Raises what the core's methods raise."""

    growth: Growth
    mover: Mover
    tier3: Tier3
    _verifier: Verifier

    def match(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        terms: LoadTerms = NO_TERMS,
    ) -> Match:
        """Pins the longest cached prefix and returns it; a miss takes no pin.

        What tier 3 has of it beyond that is loaded first, as ``terms`` allow. Pages that are
        found corrupt leave the index before, and so are no part of it. Raises, besides
        what the core raises, StoreDraining.
        """
        on_disk = self._bring(caller, namespace_id, sequence, options, terms)

        def ask() -> Match:
            now = self._clock()
            match = self._cache.match(caller, namespace_id, sequence, options, now, to_verify=True)
            self._note_use(namespace_id)
            return match

        return _with_tier_3(self._verifier.answer(ask, caller, options), on_disk)

    def acquire(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        *,
        reservation_id: int,
        total_page_count: int,
        terms: LoadTerms = NO_TERMS,
        yield_idle: float | None = None,
    ) -> tuple[Match, Grant | None]:
        """Match, and reserve the rest of ``total_page_count`` pages; None if it can't be had.

        With ``yield_idle`` neither, where another reservation that advanced within so many
        seconds is to compute more of the sequence: the answer tells of it. Loaded and
        looked at as a match is. Raises, besides what the core raises, StoreDraining.
        """
        on_disk = self._bring(caller, namespace_id, sequence, options, terms)

        def ask() -> tuple[Match, Grant | None]:
            match, grant = self._cache.acquire(
                caller,
                namespace_id,
                sequence,
                options,
                reservation_id=reservation_id,
                total_page_count=total_page_count,
                now=self._clock(),
                to_verify=True,
                yield_idle=yield_idle,
            )
            lacking = 0
            if grant is None and (yield_idle is None or match.in_flight is None):
                lacking = total_page_count - sum(len(run.indexes) for run in match.runs)
            if lacking:
                # What it matched is to stay, whatever else goes for the rest.
                kept = sum(len(run.indexes) for run in match.runs if run.tier == 1)
                self._note(namespace_id, lacking, kept)
            elif grant is not None and grant.runs:
                # A whole hit takes no slot, and lacks none.
                self._note(namespace_id)
            self._note_use(namespace_id)
            return match, grant

        match, grant = self._verifier.answer(ask, caller, options)
        return _with_tier_3(match, on_disk) if on_disk else match, grant

    def _bring(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        terms: LoadTerms,
    ) -> int:
        """Brings what lower tiers have of a sequence nearer; returns the tokens that tier 3 has.

        Raises StoreDraining.
        """
        self._require_open()
        on_disk = 0
        if self._cache.state.disk is not None:
            on_disk = self.tier3.loader.load(caller, namespace_id, sequence, options, terms)
        if self._cache.state.wanted is not None:
            self._promote(caller, namespace_id, sequence, options)
        # The device may have failed for good since the match began.
        self._require_open()
        return on_disk

    def _promote(
        self, caller: Caller, namespace_id: bytes, sequence: Sequence, options: MatchOptions
    ) -> None:
        """Copies what a match would find in tier 2 alone to tier 1, where that is wanted.

        What is wrong with a call is the match's to say, which may have been answered before.
        """
        if self._cache.state.tier_policy.promote:
            moves: list[Move] = []
            with suppress(KVStoreError), self._mutex:
                moves = self._cache.plan_promotion(caller, namespace_id, sequence, options)
            self.mover.carry_out(moves)

    def _note_use(self, namespace_id: bytes) -> None:
        """Have pages moved that the match made nearer, or further, to other tiers."""
        if self._cache.state.wanted is not None:
            # What is promoted wants slots, of which there may be none.
            self._note(namespace_id)
            self.mover.note()
        if self._cache.state.disk is not None:
            self.tier3.keeper.note()

    def _note(self, namespace_id: bytes, wanted: int = 0, kept: int = 0) -> None:
        self.growth.note(self._cache.namespaces[namespace_id].arena, wanted, kept)


def _with_tier_3(match: Match, token_count: int) -> Match:
    """Says which of the first ``token_count`` tokens tier 3 has that a match does not hand out."""
    beyond = token_count - match.matched_token_count
    return match._replace(tier_3_token_count=beyond) if beyond > 0 else match
