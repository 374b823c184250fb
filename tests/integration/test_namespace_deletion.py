"""The deletion of a namespace that real workers use, and of one in tier 3."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvstore_client.errors import NamespaceNotFound
from kvstore_client.testing import RunningStore, running_store, wait_until
from kvstore_ctl.app import app
from pages.stamped_pages import (
    LAYOUT,
    SMALL_STORE,
    TOKENS,
    holds_tokens,
    nothing_held,
    open_client,
    write_and_insert,
)

LIMIT = 30.0
PAGES = len(TOKENS) // LAYOUT.page_tokens


def delete(store: RunningStore, *more: str, typed: str = "") -> tuple[int, str]:
    """Deletes the store's only namespace. Returns the exit status and the output."""
    arguments = ["namespaces", "delete", "tiny", *more, "--runtime-dir", str(store.runtime_dir)]
    result = CliRunner().invoke(app, arguments, input=typed)
    return result.exit_code, result.stdout


def test_a_namespace_goes_under_its_workers() -> None:
    """After a deletion held pages stay readable, reserved ones are refused, and workers reopen."""
    with running_store(*SMALL_STORE) as store:
        first, writer = open_client(store.runtime_dir)
        second, reader = open_client(store.runtime_dir)
        write_and_insert(writer, TOKENS)
        [info] = first.admin.namespaces()
        with (
            reader.match(TOKENS) as match,
            writer.acquire([7] * 9, total_page_count=2) as acquired,
        ):
            assert match.page_count == PAGES
            assert acquired.reservation is not None
            assert delete(store, typed="n\n")[0] == 1
            status, printed = delete(store, "--yes", "--json")
            assert (status, json.loads(printed)["detached_page_count"]) == (0, PAGES)
            assert holds_tokens(reader, TOKENS, list(match.pages))
            assert match.current
            with pytest.raises(NamespaceNotFound):
                acquired.reservation.insert([7] * 8, position=0)
        missed = reader.match(TOKENS)
        assert isinstance(missed.failure, NamespaceNotFound)
        for each in (reader, writer):
            with each.match(TOKENS):
                pass
            assert each.wait_open(LIMIT), each.failure
        write_and_insert(writer, TOKENS)
        with reader.match(TOKENS) as match:
            assert holds_tokens(reader, TOKENS, list(match.pages))
            assert match.page_count == PAGES
        [fresh] = first.admin.namespaces()
        assert fresh.namespace_id != info.namespace_id
        assert wait_until(lambda: nothing_held(first))
        assert first.admin.stats().detached_page_count == 0
        first.admin.delete_namespace(info.namespace_id)
        assert len(first.admin.namespaces()) == 1
        for client in (first, second):
            client.close()
        assert "namespace_deleted" in store.log
        assert "Traceback" not in store.log


def test_a_deleted_namespace_does_not_return(tmp_path: Path) -> None:
    """An answered deletion is final in tier 3, even if the store is killed right after it."""
    tier_3 = ("--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", str(4 << 20))
    with running_store(*SMALL_STORE, *tier_3, "--tier3-write", "through") as store:
        client, namespace = open_client(store.runtime_dir)
        write_and_insert(namespace, TOKENS)
        [info] = client.admin.namespaces()

        def kept() -> bool:
            peeked = client.admin.peek_prefix(info.namespace_id, TOKENS)
            return peeked.tier_3_token_count == PAGES * LAYOUT.page_tokens

        assert wait_until(kept)
        assert delete(store, "--yes")[0] == 0
        store.kill()
        client.close()
        store.start()
        client, namespace = open_client(store.runtime_dir)
        [again] = client.admin.namespaces()
        peeked = client.admin.peek_prefix(again.namespace_id, TOKENS)
        assert peeked.tier_3_token_count == 0
        with namespace.match(TOKENS) as match:
            assert match.page_count == 0
        client.close()
