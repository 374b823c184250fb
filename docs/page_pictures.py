"""Writes docs/images/page-*.png: the page in a browser, while the small model's demo runs.

Run it after a change of the page's looks: `.venv/bin/python docs/page_pictures.py`. It needs
Chromium (`make chromium`), and takes half a minute.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

from inference_worker.demo.line_process import LineProcess, worker_process
from inference_worker.demo.script import DemoScript, DemoTurn
from inference_worker.model.model import model_folder
from inference_worker.model.tokenizer import load_tokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from docs.browser import Browser, browsing  # noqa: E402  # a folder of the tree, and no package
from stores.page_stage import page_of, page_store  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MODEL = "tiny"
LONGEST = 4096
OUTPUT_TOKENS = 16
# The demo's pages, and half as much again.
SIZE = ("--tier1-bytes", "12MiB", "--extent-bytes", "12MiB")
# Seconds between two requests: as a person asks, and as a picture of time shows.
PAUSE = 1.5
SIZES = {"page-1280": (1280, 900, "light"), "page-375": (375, 800, "light")} | {
    "page-1280-dark": (1280, 900, "dark")
}


def main() -> None:
    """Runs the demo's prompts on two workers, and takes the pictures before they end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES, help="the folder of the pictures")
    out: Path = parser.parse_args().out
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(page_store(*SIZE))
        address = stack.enter_context(page_of(store))
        log = stack.enter_context((folder / "workers.log").open("wb"))
        workers = {
            name: stack.enter_context(
                worker_process(name, MODEL, store.runtime_dir, log=log, longest=LONGEST, threads=1)
            )
            for name in ("A", "B")
        }
        for each in workers.values():
            each.wait_ready()
        browser = stack.enter_context(browsing(folder))
        browser.resize(1280, 900)
        browser.open(address)
        play(workers, DemoScript(load_tokenizer(model_folder(MODEL))))
        show(browser)
        for name, (width, height, scheme) in SIZES.items():
            browser.prefer(scheme)
            browser.resize(width, height)
            browser.wait(f"document.querySelector('.icicle').clientWidth <= {width}")
            browser.picture(out / f"{name}.png")


def play(workers: dict[str, LineProcess], script: DemoScript) -> None:
    """Asks the demo's questions and its chat; worker A keeps a pin, so that a hold is shown."""

    def ask(turn: DemoTurn, prompt_ids: list[int]) -> list[int]:
        Event().wait(PAUSE)
        request: dict[str, Any] = {"op": "generate", "prompt_ids": prompt_ids}
        answer = workers[turn.worker].ask(**request, max_tokens=OUTPUT_TOKENS)
        output: list[int] = answer["output_ids"]
        return output

    for turn in (*script.questions(), script.again()):
        ask(turn, script.document + turn.ids)
    history = list(script.document)
    for turn in script.chat():
        history += turn.ids
        history += ask(turn, history)
    workers["A"].ask(op="keep_pin", prompt_ids=history)


def show(browser: Browser) -> None:
    """Opens the lease that holds something, and waits until all of it is drawn."""
    browser.wait("document.querySelectorAll('#tree-picture .mark').length > 0")
    browser.wait("document.querySelector('#figures').innerText.includes('1 pin')")
    browser.click("#lease-table .opens")
    browser.wait("document.querySelectorAll('#lease-table tr.holds td table').length === 1")


if __name__ == "__main__":
    main()
