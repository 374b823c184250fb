"""Two workers on a device made of files. Everything else is real."""

import os
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from inference_worker.demo.line_process import LineProcess, worker_process
from kvstore_client.testing import running_store

SUPPORT = Path(__file__).parents[1] / "support"
DOCUMENT = [(7 * n + n * n // 5) % 256 for n in range(330)]
QUESTIONS = ([1, 2, 3, 4, 5], [9, 8, 7])
# Extents of 2 MiB, 32 pages of the small model each: the document lies in one, and then in two.
EXTENT_BYTES = str(2 << 20)

pytestmark = pytest.mark.skipif(find_spec("cupy") is not None, reason="the real cupy is here")


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every process that is started a cupy whose device is a folder."""
    folders = [str(SUPPORT / "shared_card"), str(SUPPORT)]
    device = tmp_path / "card"
    device.mkdir()
    monkeypatch.setenv("KVSTORE_TEST_CARD", str(device))
    monkeypatch.setenv("KVSTORE_CACHE", str(tmp_path / "models"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, *sys.path]))


def ask(worker: LineProcess, prompt_ids: list[int], *, use_store: bool = True) -> dict[str, Any]:
    """Runs a request of eight tokens."""
    return worker.ask(op="generate", prompt_ids=prompt_ids, max_tokens=8, use_store=use_store)


def test_workers_share_a_device_s_pages(tmp_path: Path) -> None:
    """The second worker continues from the first one's pages, with the tokens of a cold run."""
    sizes = ("--tier1-bytes", str(16 << 20), "--extent-bytes", EXTENT_BYTES)
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        store = stack.enter_context(running_store("--device", "cuda:0", *sizes))
        first, second = (
            stack.enter_context(
                worker_process(name, "tiny", store.runtime_dir, log=log, longest=512, threads=1)
            )
            for name in ("A", "B")
        )
        for worker in (first, second):
            worker.wait_ready()
        cold = ask(first, DOCUMENT + QUESTIONS[0])
        assert (cold["matched_tokens"], cold["store_failure"]) == (0, None)
        prompt = DOCUMENT + QUESTIONS[1]
        hit = ask(second, prompt)
        assert hit["matched_tokens"] == len(DOCUMENT) // 16 * 16
        assert {tuple(page) for page in hit["matched_pages"]} <= {
            tuple(page) for page in cold["published_pages"]
        }
        assert hit["output_ids"] == ask(second, prompt, use_store=False)["output_ids"]
