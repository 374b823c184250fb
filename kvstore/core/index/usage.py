"""The use of a node's pages: its first pages may be used later, and more often, than its last.

A use of a page is a use of every page above it, so only the ends of uses are stored.
A node's ``last_use`` and ``hits`` count the matches that went through its last page.
``steps`` has the matches that ended before that. A page's last use is the latest, and
its hits are the sum, over all ends at or below it. A node inherits the ends below it as
the nodes there leave. A match thus records one end, however long its path is.
"""

from bisect import bisect_left
from typing import NamedTuple, Protocol

from kvstore.core.values.requests import NO_HINT, Hint
from kvstore.core.values.slots import Slots


class Step(NamedTuple):
    """The matches that ended after ``end`` pages of a node, and the hint of the pages before."""

    end: int
    last_use: int
    hits: int
    hint: Hint


class Tail(NamedTuple):
    """The last pages of a node, from ``start`` to ``end`` within it, with the same use and hint."""

    start: int
    end: int
    last_use: int
    hits: int
    hint: Hint


class Used(Protocol):
    """A node, as far as its use is concerned."""

    slots: Slots
    last_use: int
    hits: int
    hint: Hint
    steps: list[Step] | None


def tail_of(node: Used, pages: int) -> Tail:
    """Returns the last of a node's first ``pages`` pages that were used alike. ``pages`` > 0."""
    last_use, hits, hint = node.last_use, node.hits, node.hint
    if node.steps is None:
        return Tail(0, pages, last_use, hits, hint)
    start = 0
    for step in reversed(node.steps):
        if step.end < pages:
            start = step.end
            break
        last_use, hits, hint = max(last_use, step.last_use), hits + step.hits, step.hint
    return Tail(start, pages, last_use, hits, hint)


def note_use(node: Used, pages: int, now: int, hits: int = 0) -> None:
    """Records a use of the path through a node's first ``pages`` pages, with ``hits`` more hits."""
    if pages >= len(node.slots):
        node.last_use = max(node.last_use, now)
        node.hits += hits
        return
    steps = node.steps = node.steps or []
    place = bisect_left(steps, pages, key=_end)
    if place < len(steps) and steps[place].end == pages:
        step = steps[place]
        steps[place] = step._replace(last_use=max(step.last_use, now), hits=step.hits + hits)
    else:
        hint = steps[place].hint if place < len(steps) else node.hint
        steps.insert(place, Step(pages, now, hits, hint))


def begin_pages(node: Used, pages: int, hint: Hint = NO_HINT) -> None:
    """Records that a node's pages from ``pages`` on are new, and the hint for them.

    ``pages`` MUST NOT be before the last step's end.
    """
    steps = node.steps or []
    begun = bool(steps) and steps[-1].end == pages
    if pages and not begun and (node.hits or node.hint != hint):
        node.steps = steps
        steps.append(Step(pages, node.last_use, node.hits, node.hint))
        node.hits = 0
    node.hint = hint


def divide_uses(upper: Used, node: Used, pages: int) -> None:
    """Gives ``upper``, which is new, the uses that ended in ``node``'s first ``pages`` pages.

    Uses that ended below stay with ``node``. ``upper`` inherits them when ``node`` leaves.
    """
    upper.hint = tail_of(node, pages).hint
    steps, node.steps = node.steps or [], None
    for step in steps:
        if step.end > pages:
            node.steps = node.steps or []
            node.steps.append(step._replace(end=step.end - pages))
        elif step.end == pages:
            upper.last_use, upper.hits = step.last_use, step.hits
        else:
            upper.steps = upper.steps or []
            upper.steps.append(step)


def join_uses(upper: Used, pages: int, node: Used) -> None:
    """Gives ``node`` the uses that ended in ``upper``, whose ``pages`` pages precede its own."""
    below = [step._replace(end=step.end + pages) for step in node.steps or ()]
    own = Step(pages, upper.last_use, upper.hits, upper.hint)
    alike = not own.hits and not below and own.hint == node.hint and own.last_use <= node.last_use
    node.steps = [*(upper.steps or ()), *([] if alike else [own]), *below] or None


def cut_uses(node: Used, keep: int) -> None:
    """Leaves a node's first ``keep`` pages: uses that ended below them now end with them."""
    steps = node.steps
    if steps is None:
        return
    if keep == 0:
        node.last_use = max(node.last_use, *(step.last_use for step in steps))
        node.hits += sum(step.hits for step in steps)
        node.steps = None
        return
    tail = tail_of(node, keep)
    node.last_use, node.hits, node.hint = tail.last_use, tail.hits, tail.hint
    node.steps = [step for step in steps if step.end < keep] or None


def inherit_uses(node: Used, gone: Used) -> None:
    """Gives ``node`` the uses that ended in ``gone``, a child of it without pages left."""
    node.last_use = max(node.last_use, gone.last_use)
    node.hits += gone.hits


def _end(step: Step) -> int:
    return step.end
