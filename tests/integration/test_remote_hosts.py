"""Hosts that share an engine: real servers, real clients, and a real Valkey between them."""

import signal
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from kvstore.core.values.layout import NamespaceIdentity, PagedContent, PageLayout
from kvstore.core.values.page_hash import namespace_digest, page_digests
from kvstore.v1 import store_pb2
from kvstore_client.testing import wait_until
from pages.stamped_pages import IDENTITY, LAYOUT, page_bytes, page_count, prompt
from remote.server_hosts import TENANT, Hosts, running_hosts
from remote.valkey_server import ValkeyServer, valkey_server

PROMPT, OTHER, THIRD = prompt(1), prompt(2), prompt(3)
PAGES = page_count(PROMPT)
# Bytes of a secret that a dump may not have in a row.
LEGIBLE = 8


@pytest.fixture
def engine() -> Iterator[ValkeyServer]:
    """Provides an engine, in a folder whose path is short enough for a socket."""
    with (
        tempfile.TemporaryDirectory(prefix="kv-") as folder,
        valkey_server(Path(folder)) as server,
    ):
        yield server


@pytest.fixture
def hosts(engine: ValkeyServer) -> Iterator[Hosts]:
    """Provides hosts on the engine."""
    with (
        tempfile.TemporaryDirectory(prefix="kv-") as folder,
        running_hosts(Path(folder), engine) as made,
    ):
        yield made


def values_of(engine: ValkeyServer, pattern: str) -> dict[bytes, bytes]:
    """Returns the engine's values by their names, as its administrator reads them."""
    names = engine.admin("KEYS", pattern)
    assert isinstance(names, list)
    found = {name: engine.admin("GET", name) for name in sorted(names)}
    assert all(isinstance(value, bytes) for value in found.values())
    return found  # type: ignore[return-value]  # checked above


def test_a_second_host_hits_what_the_first_computed(hosts: Hosts) -> None:
    """Its first match has every page, byte for byte; pages that it computes go the other way."""
    first, second = hosts.add(), hosts.add()
    first.publish(PROMPT)
    second.open()
    assert second.matched(PROMPT) == PAGES
    assert second.remote.read_page_count == PAGES
    second.publish(OTHER)
    assert first.matched(OTHER) == PAGES
    assert (first.remote.key_id, len(first.remote.key_id)) == (second.remote.key_id, 4)


def test_another_secret_and_another_tenant_find_nothing(hosts: Hosts) -> None:
    """Each of them asks the engine, and has no page of it."""
    first = hosts.add()
    first.publish(PROMPT)
    strangers = {
        "another key": hosts.add(key=bytes(32)),
        "another tenant": hosts.add(tenant="rivals"),
        "a tenant's key": hosts.add(tenant_key=b"k" * 32),
        "another producer": hosts.add("--remote-producer", "h200"),
        "a uid": hosts.add(tenant=None),
    }
    for name, each in strangers.items():
        assert each.looks_in_vain(PROMPT), name
    assert hosts.add().matched(PROMPT) == PAGES


def test_a_tenant_with_its_key_finds_its_pages(hosts: Hosts) -> None:
    """Both hosts have the key, and a third one with another does not."""
    first, second = (hosts.add(tenant_key=b"k" * 32) for _ in range(2))
    first.publish(PROMPT)
    assert second.matched(PROMPT) == PAGES
    assert hosts.add(tenant_key=b"l" * 32).looks_in_vain(PROMPT)


def test_a_uid_finds_its_own_pages_after_a_restart(hosts: Hosts) -> None:
    """Its host has the key for it, over restarts, and no other host has."""
    first = hosts.add(tenant=None)
    first.publish(PROMPT)
    first.restart()
    assert first.matched(PROMPT) == PAGES
    assert hosts.add(tenant=None).looks_in_vain(PROMPT)


def test_uids_that_are_trusted_share(hosts: Hosts) -> None:
    """The operator said that they are the same people."""
    first, second = (hosts.add("--remote-trust-uids", tenant=None) for _ in range(2))
    first.publish(PROMPT)
    assert second.matched(PROMPT) == PAGES


def test_what_one_host_removes_no_host_finds(hosts: Hosts) -> None:
    """A host that never had it, and one that has it in memory and then looks for something."""
    first, second = hosts.add(), hosts.add()
    first.publish(PROMPT)
    assert second.matched(PROMPT) == PAGES
    assert not first.evict(PROMPT).unsettled
    assert hosts.add().looks_in_vain(PROMPT)
    assert first.matched(PROMPT) == 0

    def forgotten() -> bool:
        second.matched(OTHER)  # a lookup, by which it learns of the removal
        return second.matched(PROMPT) == 0

    assert wait_until(forgotten), second.store.log
    assert hosts.add().looks_in_vain(PROMPT)


def test_a_host_that_only_reads_writes_nothing(hosts: Hosts) -> None:
    """It hits what others wrote, and its own pages are its own."""
    reader, writer = hosts.add("--remote-write", "off"), hosts.add()
    writer.publish(PROMPT)
    assert reader.matched(PROMPT) == PAGES
    names = set(values_of(hosts.engine, "kv1/*"))
    with reader.open().acquire(OTHER, total_page_count=PAGES) as acquired:
        assert acquired.reservation is not None
        for number, page in enumerate(acquired.reservation.pages):
            reader.open().page(page)[:] = page_bytes(OTHER, number)
        acquired.reservation.insert(OTHER[: PAGES * LAYOUT.page_tokens], position=0)
    writer.publish(THIRD)
    assert reader.remote.written_page_count == 0
    assert len(set(values_of(hosts.engine, "kv1/*")) - names) == PAGES
    assert writer.looks_in_vain(OTHER)


def test_a_server_starts_and_serves_without_its_engine(hosts: Hosts) -> None:
    """It says so before anybody asks, and comes back to the engine by itself once that runs."""
    hosts.engine.kill()
    host = hosts.add()
    away = store_pb2.RemoteStats.STATE_AWAY
    assert wait_until(lambda: host.remote.state == away), host.remote
    assert host.matched(PROMPT) == 0
    assert host.remote.state != store_pb2.RemoteStats.STATE_FAILED
    hosts.engine.start()
    opened = store_pb2.RemoteStats.STATE_OPEN
    assert wait_until(lambda: host.remote.state == opened), host.remote
    host.publish(PROMPT)
    assert hosts.add().matched(PROMPT) == PAGES


def test_a_removal_while_the_engine_is_away_outlives_the_server(hosts: Hosts) -> None:
    """The answer says that it is not confirmed; the next server confirms it with the engine."""
    first, second = hosts.add(), hosts.add()
    first.publish(PROMPT)
    hosts.engine.send(signal.SIGSTOP)
    assert first.evict(PROMPT).unsettled
    first.restart()
    hosts.engine.send(signal.SIGCONT)
    for host in (first, second):  # the second one may have found the engine stopped
        assert wait_until(lambda host=host: _is_confirmed(host.remote)), host.store.log
    assert second.looks_in_vain(PROMPT)
    assert first.matched(PROMPT) == 0


def _is_confirmed(remote: store_pb2.RemoteStats) -> bool:
    is_open = remote.state == store_pb2.RemoteStats.STATE_OPEN
    return is_open and not remote.pending_removal_count


def test_a_replaced_server_goes_on_with_the_engine(hosts: Hosts) -> None:
    """The next server takes the folder of removals with the memory."""
    with tempfile.TemporaryDirectory(prefix="kv-") as holder:
        first = hosts.add("--holder", holder)
        first.publish(PROMPT)
        first.close()
        first.store.replace()
        assert first.matched(PROMPT) == PAGES
        first.publish(OTHER)
        assert hosts.add().matched(OTHER) == PAGES
        assert not first.evict(PROMPT).unsettled


def test_a_dump_of_the_engine_tells_nothing(hosts: Hosts) -> None:
    """No eight bytes of a token's page, a digest, a checksum, a name or a key are in it."""
    first = hosts.add()
    for tokens in (PROMPT, OTHER):
        first.publish(tokens)
    dump = hosts.engine.everything()
    assert len(dump) > 2 * PAGES * LAYOUT.page_bytes
    identity = NamespaceIdentity(
        IDENTITY.model_digest, IDENTITY.adapter_digest, IDENTITY.salt, IDENTITY.display_name
    )
    layout = PageLayout(LAYOUT.page_tokens, LAYOUT.page_bytes, 1, PagedContent(4, 2, 16, "float32"))
    namespace = namespace_digest(TENANT, identity, layout)
    secrets = [bytes(range(32)), namespace, first.namespace_id]
    for tokens in (PROMPT, OTHER):
        whole = tokens[: PAGES * LAYOUT.page_tokens]
        packed = struct.pack(f"<{len(whole)}I", *whole)
        secrets += [packed, *page_digests(namespace, packed, 4 * LAYOUT.page_tokens)]
        for page in range(PAGES):
            content = page_bytes(tokens, page)
            checksum = xxh3_64_intdigest(content)
            secrets += [content, checksum.to_bytes(8, "little"), checksum.to_bytes(8, "big")]
    seen = _windows(dump, LEGIBLE)
    assert seen & _windows(next(iter(values_of(hosts.engine, "kv1/*"))), LEGIBLE)
    assert [each[:16] for each in secrets if seen & _windows(each, LEGIBLE)] == []
    seen = _windows(dump, 2 * LEGIBLE)
    in_digits = [each.hex().encode() for each in (*secrets, TENANT.encode() * LEGIBLE)]
    assert [each[:32] for each in in_digits if seen & _windows(each, 2 * LEGIBLE)] == []


def _windows(data: bytes, length: int) -> set[bytes]:
    """Returns all runs of so many bytes. Runs of one or two values are no secret."""
    runs = {data[start : start + length] for start in range(len(data) - length + 1)}
    return {each for each in runs if len(set(each)) > 2}


def test_an_administrator_of_the_engine_makes_nothing_match(hosts: Hosts) -> None:
    """Swapped, cut, changed or forged values are misses, and the host computes."""
    first = hosts.add()
    first.publish(PROMPT)
    # A host that runs may write its pages again.
    first.store.stop()
    pages = values_of(hosts.engine, "kv1/*")
    names = list(pages)
    one, other = names[0], names[1]
    attacks = {
        "swapped": {one: pages[other], other: pages[one]},
        "cut": {each: value[:-1] for each, value in pages.items()},
        "longer": {each: value + b"\x00" for each, value in pages.items()},
        "flipped": {each: value[:-1] + bytes([value[-1] ^ 1]) for each, value in pages.items()},
        "empty": dict.fromkeys(pages, b""),
    }
    for name, values in attacks.items():
        for each, value in (pages | values).items():
            hosts.engine.admin("SET", each, value, "PX", 10_000_000)
        victim = hosts.add()
        # Its bytes are compared. Of swapped pages those before the first swapped one may match.
        assert victim.matched(PROMPT) < PAGES, name
        victim.store.stop()
    for each, value in pages.items():
        hosts.engine.admin("SET", each, value, "PX", 10_000_000)
    assert hosts.add().matched(PROMPT) == PAGES


def test_what_was_removed_stays_removed_when_the_engine_is_rolled_back(hosts: Hosts) -> None:
    """An old dump brings its revision back; the host that removed knows a later one."""
    first, second = hosts.add(), hosts.add()
    first.publish(PROMPT)
    old = values_of(hosts.engine, "*")
    assert not first.evict(PROMPT).unsettled
    for each, value in old.items():
        hosts.engine.admin("SET", each, value, "PX", 10_000_000)
    assert first.looks_in_vain(PROMPT)
    assert second.looks_in_vain(PROMPT)
    assert hosts.add().looks_in_vain(PROMPT)


def test_a_forged_revision_is_counted_and_makes_nothing_match(hosts: Hosts) -> None:
    """Nobody without the key can make one."""
    first = hosts.add()
    first.publish(PROMPT)
    # A host that runs may replace the revision, and write its pages under the new one.
    first.store.stop()
    for each, value in values_of(hosts.engine, "kvr/*").items():
        hosts.engine.admin("SET", each, bytes([value[0] ^ 0x40]) + value[1:], "PX", 10_000_000)
    victim = hosts.add()
    assert victim.matched(PROMPT) == 0
    assert victim.remote.forged_revision_count > 0
