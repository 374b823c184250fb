"""Whether a match is the one that took a pin, asked again.

The tokens that it matched are the pinned path's, which has them for as long as the pin
is there: they are compared when an id comes again, and not digested each time that one
comes first, which takes longer than the match (100,000 tokens: 106 us, and the match 25).
"""

from kvstore.core.holds import Pin
from kvstore.core.namespace import Namespace
from kvstore.core.values.requests import MatchWishes, Sequence
from kvstore.core.values.tokens import TOKEN_BYTES


def fingerprint_of(
    namespace: Namespace, sequence: Sequence, wishes: MatchWishes, depth: int
) -> int:
    """Return what tells a match from another under the same pin id.

    Except for the tokens of the pinned path, whose ``depth`` is in pages.
    """
    rest = sequence.tokens[_matched(namespace, sequence, depth) :]
    return hash(
        (
            namespace.namespace_id,
            sequence.position,
            sequence.base_pin_id,
            sequence.base_reservation_id,
            wishes.pin_id,
            wishes.source_pin_id,
            wishes.accept_next_token,
            len(sequence.tokens),
            rest,
        )
    )


def took(pin: Pin, namespace: Namespace, sequence: Sequence, wishes: MatchWishes) -> bool:
    """Return whether this very match took a pin; costs as much as its path is long."""
    depth = pin.held_end
    if pin.fingerprint != fingerprint_of(namespace, sequence, wishes, depth):
        return False
    matched = _matched(namespace, sequence, depth)
    start = sequence.position * TOKEN_BYTES
    return pin.tokens()[start : start + matched] == sequence.tokens[:matched]


def _matched(namespace: Namespace, sequence: Sequence, depth: int) -> int:
    """Return how many bytes of a sequence are on the path of its pin: its first ones."""
    return max(depth * namespace.layout.page_tokens - sequence.position, 0) * TOKEN_BYTES
