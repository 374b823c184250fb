"""The page in a browser while its store stops and comes back empty."""

from pathlib import Path

import pytest

from docs.browser import MISSING, browsing, chromium
from stores.page_stage import joined, page_of, page_store, run

pytestmark = pytest.mark.skipif(chromium() is None, reason=MISSING)

BARS = "document.querySelectorAll('#tree-picture .bar').length"


def test_it_says_when_the_server_is_gone_and_goes_on_by_itself(tmp_path: Path) -> None:
    """A banner shows while the store is down. The page of a new, empty store says how it fills."""
    with (
        page_store() as store,
        page_of(store, "--tokens") as address,
        browsing(tmp_path) as browser,
    ):
        with joined(store, "tiny") as namespace:
            run(namespace, list(range(64)))
            browser.open(address)
            browser.wait(f"{BARS} === 1")
            detail = "document.querySelector('#tree-detail').innerText"
            assert "First tokens: 0 1 2 3 " in browser.look(detail)
            assert "shows tokens of prompts" in browser.look("document.body.innerText")
        store.kill()
        browser.wait("!document.querySelector('#stale').hidden")
        assert "No answer from the store since" in browser.look("document.body.innerText")
        assert browser.look(BARS) == 1
        store.start()
        browser.wait("document.querySelector('#stale').hidden")
        browser.wait(f"{BARS} === 0")
        empty = browser.look("document.querySelector('#tree-picture').innerText")
        assert empty.startswith("No pages yet: no worker has opened a namespace.")
