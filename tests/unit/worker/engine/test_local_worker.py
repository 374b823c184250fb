"""A worker in this process uses its store, waits for one, or works without one."""

import pytest

from inference_worker.engine.local_worker import local_worker
from inference_worker.errors import BackendMismatchError, DeviceLostError
from inference_worker.model.model import PagedModel
from inference_worker.store.backend import PrefixCacheBackend
from kvstore_client import Namespace
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import running_store


def test_it_uses_the_store_that_is_there(qwen: PagedModel) -> None:
    """A worker starts with an open store under its own name, unless its index is another."""
    with (
        running_store("--tier1-bytes", "16MiB") as store,
        local_worker(
            qwen,
            runtime_dir=store.runtime_dir,
            name="here",
            longest=100,
            backend=PrefixCacheBackend.RADIX,
        ) as worker,
    ):
        assert worker.without_store is None
        assert worker.client is not None
        assert [each.display_name for each in worker.client.admin.leases()] == ["here"]
        ids = list(range(40))
        assert worker.engine.generate(ids, 2).matched_tokens == 0
        assert worker.engine.generate(ids, 2).matched_tokens >= 32
        with (
            pytest.raises(BackendMismatchError) as raised,
            local_worker(qwen, runtime_dir=store.runtime_dir, backend=PrefixCacheBackend.HASH),
        ):
            pass
        assert (raised.value.wanted, raised.value.found) == ("hash", "radix")


def test_it_does_not_wait_for_a_store_that_is_absent(qwen: PagedModel) -> None:
    """A worker says why it has no store, and finds the store once it starts."""
    with (
        running_store("--tier1-bytes", "16MiB", start=False) as store,
        local_worker(qwen, runtime_dir=store.runtime_dir, longest=100) as worker,
    ):
        assert str(worker.without_store).startswith("no store: ")
        assert len(worker.engine.generate([1, 2, 3], 2).output_ids) == 2
        store.start()
        assert worker.namespace is not None
        assert worker.namespace.wait_open(30.0)
        assert worker.without_store is None


def test_it_does_not_wait_for_a_store_that_was_killed(
    qwen: PagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a store leaves its sockets."""
    waits: list[float] = []
    monkeypatch.setattr(Namespace, "wait_open", lambda _, timeout: waits.append(timeout))
    with running_store("--tier1-bytes", "16MiB") as store:
        store.kill()
        assert RuntimeDir(store.runtime_dir).attach_socket.exists()
        with local_worker(qwen, runtime_dir=store.runtime_dir, longest=100) as worker:
            assert len(worker.engine.generate([1, 2, 3], 2).output_ids) == 2
    assert waits == [0.0]


def test_the_backend_none_uses_no_store(qwen: PagedModel) -> None:
    """The backend none has no client, so a repeated prompt is computed again."""
    with local_worker(qwen, backend=PrefixCacheBackend.NONE, longest=100) as worker:
        assert (worker.client, worker.namespace) == (None, None)
        assert worker.without_store == "the store is not used"
        ids = list(range(40))
        assert [worker.engine.generate(ids, 2).matched_tokens for _ in range(2)] == [0, 0]


def test_a_worker_that_lost_its_device_does_not_close_its_client(qwen: PagedModel) -> None:
    """A close would wait for holds, and for threads that may wait for the device forever."""
    with running_store("--tier1-bytes", "16MiB") as store:
        with (
            pytest.raises(DeviceLostError),
            local_worker(qwen, runtime_dir=store.runtime_dir, longest=100) as worker,
        ):
            raise DeviceLostError("cuda:0 fails for good")
        assert worker.client is not None
        assert worker.client.connected
        worker.client.close()
        assert not worker.client.connected
