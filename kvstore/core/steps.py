"""Which pages of a node were used when: a tail may be younger, or less asked for, than its start.

A page is used whenever a page below it is, so what is kept is where uses ended. A
node's ``last_use`` and ``hits`` are of the matches that went through its last page;
``steps`` has those that ended before. A page's last use is the latest, and its hits
are the sum, over all ends at or below it; what ended below the node is inherited as
the nodes there go. A match thus notes one end, whatever the length of its path.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from kvstore.core.values.requests import NO_HINT, Hint

if TYPE_CHECKING:
    from kvstore.core.node import Node, Position


class Step(NamedTuple):
    """Matches that ended after ``end`` pages of a node; ``hint`` is of the pages just before."""

    end: int
    last_use: int
    hits: int
    hint: Hint


class Tail(NamedTuple):
    """The last pages of a node, from ``start`` to ``end`` within it, alike in all of this."""

    start: int
    end: int
    last_use: int
    hits: int
    hint: Hint


def tail_of(node: "Node", pages: int) -> Tail:
    """Return the last of a node's first ``pages`` pages that were used alike. ``pages`` > 0."""
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


def note_use(at: "Position", now: int, hits: int = 0) -> None:
    """Note that ``at``'s path was used, and ``hits`` more times asked for."""
    node, pages = at
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


def begin_pages(node: "Node", pages: int, hint: Hint = NO_HINT) -> None:
    """Note that a node's pages from ``pages`` on are new, and what is expected of them.

    ``pages`` MUST NOT be before the last step's end.
    """
    steps = node.steps or []
    begun = bool(steps) and steps[-1].end == pages
    if pages and not begun and (node.hits or node.hint != hint):
        node.steps = steps
        steps.append(Step(pages, node.last_use, node.hits, node.hint))
        node.hits = 0
    node.hint = hint


def divide_uses(upper: "Node", node: "Node", pages: int) -> None:
    """Give ``upper``, which is new, what ended in ``node``'s first ``pages`` pages.

    What ended below stays; ``upper`` inherits it as ``node`` goes.
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


def join_uses(upper: "Node", pages: int, node: "Node") -> None:
    """Let ``node`` have what ended in ``upper``, whose ``pages`` pages come before its own."""
    below = [step._replace(end=step.end + pages) for step in node.steps or ()]
    own = Step(pages, upper.last_use, upper.hits, upper.hint)
    alike = not own.hits and not below and own.hint == node.hint and own.last_use <= node.last_use
    node.steps = [*(upper.steps or ()), *([] if alike else [own]), *below] or None


def cut_uses(node: "Node", keep: int) -> None:
    """Leave a node's first ``keep`` pages: what ended below them ends with them."""
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


def inherit_uses(node: "Node", gone: "Node") -> None:
    """Let ``node`` have what ended in ``gone``, a child of it without pages left."""
    node.last_use = max(node.last_use, gone.last_use)
    node.hits += gone.hits


def _end(step: Step) -> int:
    return step.end
