"""kvstore-ctl doctor on real stores, each in a state that it should report."""

import os
import resource
from collections.abc import Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from kvstore_client import Client, Namespace
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import RunningStore, wait_until
from kvstore_ctl.app import app
from kvstore_ctl.doctor import store_checks
from kvstore_ctl.doctor.findings import Finding, Verdict
from kvstore_ctl.doctor.host_checks import HostFacts, descriptors_check, server_pid, socket_check
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    SMALL_STORE,
    TOKENS,
    open_client,
    write_and_insert,
)
from processes.diagnosis import SERVER_CHECKS, diagnose, outcomes
from processes.other_user import POSSIBLE, as_user

SLOTS = 32


def prompt(number: int) -> list[int]:
    """Returns a prompt of four pages and a token that shares no prefix with others."""
    return [10_000 + number * 100 + each for each in range(len(TOKENS))]


# A store of 32 slots that verifies each page before it hands the page out.
pytestmark = pytest.mark.store(*SMALL_STORE, "--verify-rate", "1")


@pytest.fixture
def client(store: RunningStore) -> Iterator[Client]:
    """Provides a worker with an open namespace."""
    client, _ = open_client(store.runtime_dir)
    yield client
    client.close()


@pytest.fixture
def namespace(client: Client) -> Namespace:
    """Provides the worker's namespace."""
    namespace = client.namespace(IDENTITY, LAYOUT)
    assert namespace.wait_open(30)
    return namespace


def test_a_store_that_is_well_is_said_to_be(store: RunningStore, client: Client) -> None:
    """A healthy store passes all checks, in JSON and in the table."""
    assert client.connected
    status, found = diagnose(store.runtime_dir)
    assert status == 0
    assert outcomes(found, {*SERVER_CHECKS, "socket", "versions", "memfd", "tier 3"}) == {"ok"}
    shown = CliRunner().invoke(app, ["doctor", "--runtime-dir", str(store.runtime_dir)])
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in found)


def test_a_folder_open_to_others_is_seen(store: RunningStore) -> None:
    """A folder is reported while it is open to others."""
    store.runtime_dir.chmod(0o705)
    finding = socket_check(RuntimeDir(store.runtime_dir))
    store.runtime_dir.chmod(0o700)
    assert (finding.outcome, "chmod 700" in finding.advice) == (Verdict.WARNING, True)


@pytest.mark.skipif(not POSSIBLE, reason="needs root")
def test_another_user_is_told_whose_it_is(store: RunningStore) -> None:
    """A user without access to the folder or the sockets is told who owns them."""
    paths = RuntimeDir(store.runtime_dir)
    paths.path.parent.chmod(0o711)
    for mode in (0o700, 0o711):
        paths.path.chmod(mode)
        finding = as_user(12_345, 12_345, lambda: socket_check(paths))
        assert (finding.outcome, "uid 0" in finding.advice) == (Verdict.FAILED, True), finding
    paths.path.chmod(0o700)


def test_descriptors_that_run_out_are_seen(store: RunningStore) -> None:
    """The doctor warns if the server's process has reached its limit of descriptors."""
    facts = HostFacts()
    assert server_pid(facts, RuntimeDir(store.runtime_dir)) == store.pid
    soft, hard = resource.prlimit(store.pid, resource.RLIMIT_NOFILE)
    used = facts.open_file_count(store.pid) or 0
    resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (used, hard))
    try:
        finding = descriptors_check(facts, store.pid)
    finally:
        resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert (finding.outcome, "LimitNOFILE" in finding.advice) == (Verdict.FAILED, True)


def finding_of(client: Client, name: str, **settings: float) -> Finding:
    """Returns a check's finding for the store's present state."""
    return getattr(store_checks, f"{name}_check")(client.admin.stats(), **settings)  # type: ignore[no-any-return]


def test_holds_that_are_forgotten_are_seen(client: Client, namespace: Namespace) -> None:
    """Forgotten holds are reported with their worker and its process."""
    write_and_insert(namespace, TOKENS)
    with namespace.match(TOKENS):
        finding = finding_of(client, "long_holds", long_hold=0.0)
    assert (finding.outcome, f"pid {os.getpid()}" in finding.found) == (Verdict.WARNING, True)
    assert client.flush(30)
    assert finding_of(client, "long_holds", long_hold=0.0).outcome is Verdict.OK


def test_few_hits_are_seen(client: Client, namespace: Namespace) -> None:
    """A low hit rate is reported once there are enough lookups."""
    for number in range(1000, 1000 + store_checks.FEW):
        namespace.match(prompt(number)).release()
    finding = finding_of(client, "hit_rate")
    assert (finding.outcome, "kvstore-ctl identity" in finding.advice) == (
        Verdict.WARNING,
        True,
    )


def is_whole(client: Client, namespace: Namespace) -> bool:
    """Lets the pool run low. Returns whether the worker has mapped both extents."""
    namespace.reserve(start_page=0, page_count=SLOTS // 2).abort()
    (lease,) = client.admin.leases()
    return [each.mapped_extent_count for each in lease.processes] == [2]


def test_pages_that_go_too_early_are_seen(client: Client, namespace: Namespace) -> None:
    """Prompts that return after their pages were evicted are reported as a pool too small."""
    # In a smaller pool they would be gone for longer than what is told as too early.
    assert wait_until(lambda: is_whole(client, namespace))
    for _ in range(3):
        for number in range(SLOTS // 4 + 2):
            write_and_insert(namespace, prompt(number))
    finding = finding_of(client, "thrash")
    assert (finding.outcome, "--tier1-bytes" in finding.advice) == (Verdict.WARNING, True), finding


def test_a_pool_that_is_held_is_seen(client: Client, namespace: Namespace) -> None:
    """The doctor warns of a full pool if lookups find no free slots."""
    assert finding_of(client, "room").outcome is Verdict.OK
    assert wait_until(lambda: is_whole(client, namespace))
    with namespace.reserve(start_page=0, page_count=SLOTS):
        for number in range(2000, 2000 + store_checks.FEW):
            namespace.acquire(prompt(number), total_page_count=4).release()
        finding = finding_of(client, "room")
    assert (finding.outcome, "kvstore-ctl leases" in finding.advice) == (Verdict.WARNING, True)


def test_salts_that_use_up_namespaces_are_seen(client: Client) -> None:
    """Many namespaces that differ only by salt are reported, as is their limit."""
    salted = [client.namespace(replace(IDENTITY, salt=bytes([n])), LAYOUT) for n in range(3)]
    assert all(each.wait_open(30) for each in salted)
    listed = client.admin.namespaces()
    check = store_checks.namespaces_check
    assert check(listed, 10_000).outcome is Verdict.OK
    many = check(listed, 10_000, many_salts=4)
    assert (many.outcome, "4 differ only by their salts" in many.found) == (
        Verdict.WARNING,
        True,
    )
    assert check(listed, 5).outcome is Verdict.FAILED


def test_a_model_under_two_identities_is_seen(store: RunningStore, client: Client) -> None:
    """Two namespaces of one name that share nothing are reported with the factor that differs."""
    assert diagnose(store.runtime_dir)[1]["identities"]["outcome"] == "ok"
    other = client.namespace(replace(IDENTITY, model_digest=b"quantized"), LAYOUT)
    assert other.wait_open(30)
    found = diagnose(store.runtime_dir)[1]["identities"]
    assert (found["outcome"], "differ in model" in found["found"]) == ("warning", True)


def test_pages_that_were_written_over_are_seen(client: Client, namespace: Namespace) -> None:
    """An overwritten page is reported once a match has verified it."""
    assert finding_of(client, "corruption").outcome is Verdict.OK
    write_and_insert(namespace, TOKENS)
    with namespace.match(TOKENS) as match:
        namespace.page(match.pages[0])[:4] = b"oops"
    namespace.match(TOKENS).release()
    finding = finding_of(client, "corruption")
    assert (finding.outcome, "page_corrupt" in finding.advice) == (Verdict.FAILED, True)
