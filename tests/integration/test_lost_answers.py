"""Inserts whose server is killed before the answer leaves, over lanes and over gRPC."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kvstore_client import ClientConfig
from kvstore_client.testing import RunningStore, wait_until
from pages.stamped_pages import (
    LIMIT,
    SMALL_STORE,
    TOKENS,
    hits,
    holds_tokens,
    nothing_held,
    open_client,
    page_bytes,
)
from processes.holder_folder import HolderFolder
from processes.lost_answer_server import AFTER, BEFORE, FILE, PROGRAM


@pytest.mark.parametrize("hot_lane", [False, True], ids=["grpc", "lanes"])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_an_insert_is_repeated_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, *, hot_lane: bool
) -> None:
    """The next server publishes the pages if the one before had not, and answers the same."""
    lost = tmp_path / "lost"
    monkeypatch.setenv(FILE, str(lost))
    runtime_dir = tmp_path / "run"
    runtime_dir.mkdir(mode=0o700)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        holder = stack.enter_context(HolderFolder(tmp_path / "holder"))
        settings = ("--holder", str(holder.path), "--no-holder-start")
        store = RunningStore(runtime_dir, (*SMALL_STORE, *settings), program=PROGRAM)
        store.start()
        stack.callback(store.kill)
        # Longer than a start of a server on a busy machine: afterwards a session ends.
        config = ClientConfig(call_timeout=LIMIT, ttl=LIMIT, hot_lane=hot_lane)
        client, namespace = open_client(runtime_dir, config)
        with closing(client), namespace.acquire(TOKENS, total_page_count=4) as acquired:
            reservation = acquired.reservation
            assert reservation is not None
            for number, page in enumerate(reservation.pages):
                namespace.page(page)[:] = page_bytes(TOKENS, number)
            lost.write_text(when, encoding="utf-8")
            insert = pool.submit(reservation.insert, TOKENS[:16], position=0)
            assert store._started().wait(LIMIT) < 0
            assert lost.read_text(encoding="utf-8").startswith("kvstore-lane") is hot_lane
            store.start()
            inserted = insert.result(LIMIT)
            assert (len(inserted.pages), inserted.published_page_count) == (4, 4)
            assert inserted.pages == reservation.pages
            with namespace.match(TOKENS) as match:
                assert match.page_count == 4
                assert holds_tokens(namespace, TOKENS, match.pages)
            acquired.release()
            assert hits(namespace)
            assert client.flush(LIMIT)
            assert wait_until(lambda: nothing_held(client))
            assert client.admin.stats().namespaces[0].cached_page_count == 4
        assert "clean_start" not in store.log.partition("server_started")[2]
