"""Faults put into the core on purpose: each has to be caught by the cache machine.

A mutant is the core's source with one place changed, in a folder of its own,
run in a process of its own with a fixed seed.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import kvstore

SEED = 20_26
EXAMPLES = 150
SUPPORT = Path(__file__).parents[1] / "support"


class Mutant(NamedTuple):
    """One fault: in ``file``, ``old`` (which stands there once) becomes ``new``."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant("unchanged", "radix.py", "RadixIndex", "RadixIndex"),
    Mutant(
        "missing-reference-on-match",
        "holds.py",
        "        if at.pages:\n            self.anchors.append(Anchor(self, at.node, at.pages))\n",
        "",
    ),
    Mutant(
        "eviction-ignores-pins",
        "eviction.py",
        "len(node.slots) - node.held_pages",
        "len(node.slots)",
    ),
    Mutant(
        "slot-recycled-early",
        "holds.py",
        "if not published])",
        "])",
    ),
    Mutant(
        "rounding-up",
        "tokens.py",
        "max(count - 1, 0) // page_tokens",
        "-(-max(count - 1, 0) // page_tokens)",
    ),
    Mutant(
        "matches-the-last-token",
        "tokens.py",
        "max(count - 1, 0) // page_tokens",
        "count // page_tokens",
    ),
    Mutant(
        "children-shared-after-a-split",
        "radix.py",
        "        upper.children.add(node.edge[: self.width], node)\n",
        "        for key, child in node.children.items():\n"
        "            upper.children.add(key, child)\n"
        "        upper.children.add(node.edge[: self.width], node)\n",
    ),
    Mutant("stale-parent-after-a-split", "radix.py", "        node.parent = upper\n", ""),
    Mutant(
        "pins-stay-below-a-split",
        "radix.py",
        "anchor.move(upper, anchor.pages)",
        "anchor.pages -= 0",
    ),
    Mutant(
        "page-lists-sliced-by-token-count",
        "cache.py",
        "reservation.slots()[first:end]",
        "reservation.slots()[sequence.position : length]",
    ),
    Mutant(
        "empty-slot-list-on-a-cached-start",
        "radix.py",
        "        slots.extend(part)\n",
        "        slots.extend(part[:0])\n",
    ),
    Mutant(
        "duplicates-dropped-on-insert",
        "inserting.py",
        "[False] * duplicates",
        "[True] * duplicates",
    ),
    Mutant(
        "pin-tombstone-forgotten",
        "cache.py",
        "            lease.pin_tombstones.leave(pin_id, now)\n",
        "",
    ),
    Mutant(
        "reservation-tombstone-forgotten",
        "cache.py",
        "            lease.reservation_tombstones.leave(reservation_id, now)\n",
        "",
    ),
    Mutant(
        "published-slot-granted-and-written-again",
        "slots.py",
        "        del self.available[split:]\n",
        "",
    ),
    Mutant(
        "reservations-of-an-ended-lease-kept",
        "membership.py",
        "            self.drop_reservation(lease, reservation)\n        self.ended",
        "            pass\n        self.ended",
    ),
    Mutant(
        "pins-of-an-ended-lease-kept",
        "membership.py",
        "            self.drop_pin(lease, pin)\n        for",
        "            pass\n        for",
    ),
    Mutant(
        "living-holder-past-its-ttl-loses-its-slots",
        "membership.py",
        "        lease.state = LeaseState.EXPIRED\n        for each",
        "        return [self.end(lease, now)]\n        for each",
    ),
    Mutant(
        "insert-under-a-detached-path",
        "inserting.py",
        "    if parent.node.detached:\n",
        "    if False:\n",
    ),
    Mutant(
        "what-is-above-a-removed-page-loses-its-pin",
        "pages.py",
        "            if above.parent is not None:\n",
        "            if False:\n",
    ),
    Mutant(
        "named-pin-holds-no-page",
        "named_pin.py",
        "        self.anchors.append(Anchor(self, at.node, at.pages))\n",
        "        Anchor(self, at.node, at.pages).move(namespace.index.root, 0)\n",
    ),
    Mutant(
        "named-pin-survives-a-removal",
        "pages.py",
        "        if isinstance(anchor.hold, NamedPin):\n",
        "        if False:\n",
    ),
    Mutant(
        "unpinned-prefix-stays-held",
        "pages.py",
        "    let_go(pin.anchors)\n",
        "",
    ),
    Mutant(
        "named-pin-answers-for-another-prefix",
        "named_pins.py",
        "pin is not None and pin.fingerprint != fingerprint",
        "False",
    ),
    Mutant(
        "named-pin-of-one-page-too-few",
        "named_pins.py",
        "at = namespace.index.descend(at, request.tokens, pages)",
        "at = namespace.index.descend(at, request.tokens, max(pages - 1, 0))",
    ),
    Mutant(
        "repeated-pin-keeps-its-first-end",
        "named_pins.py",
        "        pin.due = inf",
        "        if pin.due == inf: pin.due = inf",
    ),
    Mutant(
        "part-pinned-where-all-is-required",
        "named_pins.py",
        "request.require_all and held < pages",
        "False",
    ),
    Mutant(
        "failed-reserve-evicts",
        "eviction.py",
        "        if missing == 0:\n            return self._victims\n",
        "        return self._victims\n",
    ),
    Mutant(
        "slots-of-unmapped-extents-handed-out",
        "lookup.py",
        "    if len(usable) == len(namespace.arena.extents):\n        return at\n",
        "    if usable or not usable:\n        return at\n",
    ),
    Mutant(
        "generation-not-counted",
        "slots.py",
        "        self.generations[index] += 1\n",
        "        self.generations[index] = 0\n",
    ),
]


def run(mutant: Mutant, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the machine on a copy of the core with the mutant's change."""
    source = Path(kvstore.__file__).parent
    copy = folder / "kvstore"
    shutil.copytree(source / "core", copy / "core", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "errors.py"):
        shutil.copy(source / name, copy / name)
    path = copy / "core" / mutant.file
    text = path.read_text()
    if mutant.name != "unchanged":
        assert text.count(mutant.old) == 1, f"{mutant.name} does not fit {mutant.file} any more"
        path.write_text(text.replace(mutant.old, mutant.new))
    return subprocess.run(
        [sys.executable, SUPPORT / "mutant_runner.py", str(SEED), str(EXAMPLES)],
        env={"PYTHONPATH": f"{folder}:{SUPPORT}", "PYTHONHASHSEED": "0"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_in_the_core_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    """The cache machine fails on each mutant, and passes on the core as it is."""
    outcome = run(mutant, tmp_path)
    if mutant.name == "unchanged":
        assert outcome.returncode == 0, outcome.stderr[-2000:]
    else:
        # Found by a rule or an invariant after a step, not by code that does not even load.
        assert outcome.returncode == 1, f"{mutant.name} survived"
        assert "state.teardown()" in outcome.stderr, outcome.stderr[-2000:]
