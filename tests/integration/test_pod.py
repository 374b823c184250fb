"""Containers that share a folder and see each other's processes, as in deploy/kubernetes.

Store and workers are the first processes of neighbouring PID namespaces. The folder is in a volume,
like an emptyDir with fsGroup. The workers mount it read-only.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deploy.manifests import Pod, resources
from deploy.units import DEPLOY
from kvstore_client import Admin, connect_admin
from kvstore_client.testing import wait_until
from processes.contained import Contained, why_not

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
# What a worker does that computes a prompt of 40 tokens, and is then busy with another.
WORKER = """
import sys
from kvstore_client import Client, NamespaceIdentity, PagedContent, PageLayout
content = PagedContent(layer_count=2, kv_head_count=4, head_dim=8, dtype="float32")
layout = PageLayout.paged(16, content)
with Client(sys.argv[1]) as client:
    namespace = client.namespace(NamespaceIdentity(b"a model"), layout)
    assert namespace.wait_open(30)
    tokens = list(range(40))
    with namespace.acquire(tokens, total_page_count=3) as acquired:
        match, reservation = acquired.match, acquired.reservation
        for page in reservation.pages:
            namespace.page(page)[:] = bytes(layout.page_bytes)
        start = match.token_count
        reservation.insert(tokens[start:], position=start, base=match)
        with namespace.reserve(start_page=0, page_count=4):
            print("matched", start, flush=True)
            sys.stdin.read()
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Provides a folder that everybody may write and that passes on its group."""
    made = tmp_path / "volume"
    made.mkdir()
    made.chmod(0o2777)
    return made


@pytest.fixture
def store(volume: Path) -> Iterator[Contained]:
    """Provides a store in a folder that it made below the volume."""
    with contained_store(volume) as made:
        yield made


@contextmanager
def contained_store(volume: Path, *flags: str) -> Iterator[Contained]:
    """Runs a store in a folder that it makes below the volume, until the end of the block."""
    own = ("--runtime-dir", str(volume / "store"), "--tier1-bytes", "64MiB")
    with Contained("-m", "kvstore", *own, "--log-format", "json", *flags) as made:
        made.hear("server_started")
        yield made


def slots_of(admin: Admin) -> tuple[int, int]:
    """Returns how many slots are cached, and how many are reserved or in quarantine."""
    stats = admin.stats()
    held = sum(each.reserved_slot_count for each in stats.arenas)
    cached = sum(each.cached_slot_count for each in stats.arenas)
    return cached, held + stats.quarantined_slot_count


def test_a_pod_shares_pages_and_loses_nothing(store: Contained, volume: Path) -> None:
    """A worker finds another's pages, a killed one's slots are freed, and the store drains."""
    mounted = (volume, volume.with_name("mounted"))
    worker = ("-c", WORKER, str(mounted[1] / "store"))
    with connect_admin(volume / "store") as admin:
        with Contained(*worker, volume=mounted) as first:
            assert first.hear("matched") == "matched 0"
            with Contained(*worker, volume=mounted) as second:
                assert second.hear("matched") == "matched 32"
                assert sum(each.reserved_slot_count for each in admin.stats().arenas) > 0
                second.signal(signal.SIGKILL)
                second.wait()
                assert wait_until(lambda: len(admin.stats().leases) == 1)
        assert wait_until(lambda: not admin.stats().leases)
        stats = admin.stats()
        assert sum(each.reserved_slot_count for each in stats.arenas) == 0
        assert sum(each.cached_slot_count for each in stats.arenas) > 0
    store.signal(signal.SIGTERM)
    assert store.wait() == 0


def manifest_s_holder(volume: Path) -> list[str]:
    """Returns the arguments of the manifest's holder for a folder below another volume."""
    (pod,) = Pod.all_of(resources(DEPLOY / "kubernetes" / "sidecar"))
    holder = pod.containers["holder"]
    _, *words = (
        each.replace(holder.mounts["holder"], str(volume)) for each in holder.spec["command"]
    )
    return words


def test_a_pod_that_is_replaced_begins_empty(volume: Path) -> None:
    """Its store ends, then its holder, and those of the next pod find nothing of them."""
    mounted = (volume, volume.with_name("mounted"))
    for pod in ("first", "second"):
        words = manifest_s_holder(volume.with_name(pod))
        held = ("--holder", words[0], "--no-holder-start")
        with ExitStack() as stack:
            holder = stack.enter_context(Contained("-m", "kvstore.holder", *words))
            holder.hear("serves")
            store = stack.enter_context(contained_store(volume, *held))
            admin = stack.enter_context(connect_admin(volume / "store"))
            assert slots_of(admin) == (0, 0)
            succession = admin.stats().succession
            assert (succession.clean_start_reason, succession.instance) == (
                "no journal is there",
                1,
            )
            with Contained("-c", WORKER, str(mounted[1] / "store"), volume=mounted) as worker:
                assert worker.hear("matched") == "matched 0"
            # As the kubelet does, in reverse order.
            for each in (store, holder):
                each.signal(signal.SIGTERM)
                assert each.wait() == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_store_s_container_restarts_beside_its_holder(volume: Path, end: signal.Signals) -> None:
    """The next store has the pages and the worker's holds. SIGTERM ends the holder too.

    The holder's command is that of the manifest.
    """
    mounted = (volume, volume.with_name("mounted"))
    words = manifest_s_holder(volume.with_name("for the holder"))
    held = ("--holder", words[0], "--no-holder-start")
    with Contained("-m", "kvstore.holder", *words) as holder, ExitStack() as stack:
        holder.hear("serves")
        with contained_store(volume, *held) as store:
            worker = Contained("-c", WORKER, str(mounted[1] / "store"), volume=mounted)
            stack.enter_context(worker)
            worker.hear("matched")
            with connect_admin(volume / "store") as admin:
                before = slots_of(admin)
            store.signal(end)
            assert store.wait() == 0 or end is signal.SIGKILL
        with contained_store(volume, *held), connect_admin(volume / "store") as admin:
            assert slots_of(admin) == before
            worker.signal(signal.SIGKILL)
            worker.wait()
            assert wait_until(lambda: slots_of(admin) == (before[0], 0))
        holder.signal(signal.SIGTERM)
        assert holder.wait() == 0
