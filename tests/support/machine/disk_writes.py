"""The cache machine's rules about disk writes, to a disk that is a set here."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvstore.core.values.page_hash import page_digests
from machine.moves import pair
from machine.state import COUNTS, SELDOM, MachineState
from naive.disk import ModelDiskWrite

# What a disk has from before the start.
FROM_BEFORE = ([0, 1, 2, 3], [0, 0], [2, 0, 1], [3, 3, 3])


@initialize()
def begin_with_a_disk(machine: MachineState) -> None:
    """Some pages are on the disk."""
    for pages in FROM_BEFORE:
        machine.model.disk.prefixes.update(machine.model.prefixes(machine.tokens(pages)))


def digest_of(machine: MachineState, prefix: bytes) -> bytes:
    """Returns the digest of a prefix's last page, taken from all its tokens."""
    if prefix not in machine.known_digests:
        digest = machine.cache.namespaces[machine.namespace_id].digest
        for each in page_digests(digest, prefix, machine.model.width):
            digest = each
        machine.known_digests[prefix] = digest
    return machine.known_digests[prefix]


def tell(machine: MachineState) -> None:
    """Tells the disk what it must not have any more.

    A page that it does not have may be told too. What continues that page leaves it as well.
    """
    disk = machine.model.disk
    removed = machine.cache.take_removed()
    for each in removed:
        paths = {path for prefix in disk.prefixes for path in machine.model.prefixes(prefix)}
        known = {digest_of(machine, path): path for path in paths}
        if each.page_digest is None:
            disk.prefixes.clear()
        elif each.page_digest in known:
            disk.lose(known[each.page_digest])
    for prefix in disk.forbidden:
        kept = [each for each in disk.prefixes if each.startswith(prefix)]
        assert not kept, "a removed page stays in tier 3"
    disk.forbidden.clear()
    machine.cache.finish_removed(removed)


@rule(data=st.data(), most=st.sampled_from([1, 3, 100]), late=SELDOM, loses=SELDOM)
def keep_what_was_touched(
    machine: MachineState, data: st.DataObject, most: int, *, late: bool, loses: bool
) -> None:
    """Pages are written, some or all of them; that is known at once, or later.

    Perhaps some are lost before it is.
    """
    COUNTS["keep_what_was_touched"] += 1
    tell(machine)
    plan(machine, data, most)
    if loses:
        lose(machine, data)
    if not late:
        finish_keeping(machine, range(len(machine.writes)))


def whole(machine: MachineState) -> list[bytes]:
    """Returns the cached whole pages of paths."""
    return sorted(each for each in machine.model.paths() if len(each) % machine.model.width == 0)


def plan(machine: MachineState, data: st.DataObject, most: int) -> set[bytes]:
    """Plans disk writes, writes some of their pages, and returns the plan."""
    machine.just_written = set()
    offered: set[bytes] = set()
    writes = machine.cache.plan_writes(most)
    assert sum(len(write.pages) for write in writes) <= most
    for write in writes:
        prefixes = machine.model.pages_of(write.tokens())
        path = [(p, pair(slot)) for p, slot in zip(prefixes, write.slots(), strict=True)]
        assert machine.model.attached(path) == path, "what is not there is to be written"
        end = data.draw(st.sampled_from([write.held_end, write.held_end, write.start]))
        for page in write.pages:
            prefix = prefixes[page.end - 1]
            copy = machine.model.lower.get(prefix, machine.model.cached[prefix])
            assert pair(page.slot) == copy, "another copy than the best is to be written"
            above = prefix[: -machine.model.width]
            assert write.digests.through(page.end - 1) == digest_of(machine, above)
            assert write.digests.through(page.end) == digest_of(machine, prefix)
            offered.add(prefix)
            if page.end <= end:
                machine.just_written.add(prefix)
        machine.model.disk.writes[id(write)] = ModelDiskWrite(path, end)
        machine.writes.append(write)
    machine.model.disk.prefixes |= machine.just_written
    COUNTS["pages offered"] += len(offered)
    return offered


@precondition(lambda machine: machine.writes)
@rule(data=st.data())
def finish_writes(machine: MachineState, data: st.DataObject) -> None:
    """Finishes the disk writes that were begun before, perhaps the later ones first."""
    COUNTS["finish_keeps"] += 1
    finish_keeping(machine, data.draw(st.permutations(range(len(machine.writes)))))


def finish_keeping(machine: MachineState, order: range | list[int]) -> None:
    """Finishes all writes under way."""
    for number in order:
        write = machine.writes[number]
        known = machine.model.disk.writes.pop(id(write))
        stale = machine.model.attached(known.path) != known.path
        assert machine.cache.write_is_stale(write) == stale
        machine.cache.finish_writes([write], [known.written])
    machine.writes.clear()


@precondition(lambda machine: machine.model.disk.prefixes)
@rule(data=st.data(), loses=SELDOM)
def lose_a_page(machine: MachineState, data: st.DataObject, *, loses: bool) -> None:
    """The disk loses a page, and says so."""
    COUNTS["lose_a_page"] += 1
    tell(machine)
    if loses:
        lose(machine, data)


def lose(machine: MachineState, data: st.DataObject) -> None:
    """Loses a page, if there is any."""
    if machine.model.disk.prefixes:
        machine.model.disk.lose(data.draw(st.sampled_from(sorted(machine.model.disk.prefixes))))
    machine.cache.forget_kept([machine.cache.namespaces[machine.namespace_id].digest])


@invariant()
def what_is_kept_is_on_the_disk(machine: MachineState) -> None:
    """Nothing is believed to be in tier 3 that is not; pages to be written have their bytes."""
    space = machine.cache.namespaces.get(machine.namespace_id)
    above = {0: b""}
    for node in [] if space is None else space.index.nodes.values():
        known = node.page_hashes
        pages = 0 if known is None else known.kept_in(0, node.tree.losses)
        if not pages:
            continue
        prefix = _tokens_through(machine, node.number, above)
        first = len(prefix) - len(node.edge) + machine.model.width
        ends = range(first, first + pages * machine.model.width, machine.model.width)
        kept = {prefix[:end] for end in ends}
        untold = bool(machine.model.disk.forbidden)
        assert untold or kept <= machine.model.disk.prefixes, "a page that is lost is kept"
    for known in machine.model.disk.writes.values():
        for prefix, slot in known.path:
            assert machine.model.memory[slot] == prefix, "a page was recycled while it is written"


def _tokens_through(machine: MachineState, number: int, above: dict[int, bytes]) -> bytes:
    """Returns all tokens through the last of a node."""
    if number not in above:
        node = machine.cache.namespaces[machine.namespace_id].index.nodes[number]
        assert node.parent is not None
        above[number] = _tokens_through(machine, node.parent.number, above) + node.edge
    return above[number]
