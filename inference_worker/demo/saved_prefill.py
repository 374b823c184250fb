"""An experiment: how many positions the model runs, with the cache and without.

A prompt of 97 tokens that an earlier request had too, and 5 of its own, is continued by 20 tokens
in pages of 16: one comes of the prefill, the others take a step of decoding each. Without a cache
that is 102 + 19 positions. Reuse in whole pages leaves 25, which a teaching engine published; to
the token it leaves 24.
"""

from typing import Any, Final

from inference_worker.commands.local_worker import LocalWorker
from inference_worker.demo.script import DemoScript
from inference_worker.engine.generation import Generation
from inference_worker.model.model import PagedModel

SHARED_TOKENS: Final = 97
OWN_TOKENS: Final = 5
DECODE_STEPS: Final = 19
PAGE_TOKENS: Final = 16
# Enough for the prompt and its output.
LONGEST: Final = 256
# By the teaching engine, without and with its cache.
PUBLISHED: Final = (121, 25)
WITHOUT: Final = SHARED_TOKENS + OWN_TOKENS + DECODE_STEPS
MOST_WITH: Final = OWN_TOKENS + DECODE_STEPS


def measure_saved_prefill(worker: LocalWorker) -> dict[str, Any]:
    """Runs the request without the cache, and with it after another one; gives the report.

    The worker's pages have ``PAGE_TOKENS`` tokens, its store nothing of this. Positions are
    counted by the engine as it runs the model's steps.
    """
    mine, other = _prompts(worker.model)
    tokens = DECODE_STEPS + 1
    alone = worker.engine.generate(mine, tokens, use_store=False)
    first = worker.engine.generate(other, tokens)
    cached = worker.engine.generate(mine, tokens)
    return {
        "page_tokens": PAGE_TOKENS,
        "shared_tokens": SHARED_TOKENS,
        "own_tokens": OWN_TOKENS,
        "decode_steps": DECODE_STEPS,
        "store_failure": first.store_failure or cached.store_failure,
        "without": _row(alone),
        "with": _row(cached),
        "published": {"without": PUBLISHED[0], "with": PUBLISHED[1]},
        "identical": alone.output_ids == cached.output_ids,
    }


def saved_prefill_faults(report: dict[str, Any]) -> list[str]:
    """Says what of a report is not as it has to be, in sentences."""
    wrong = []
    if report["store_failure"] is not None:
        wrong.append(f"the store failed: {report['store_failure']}")
    if report["without"]["computed_tokens"] != WITHOUT:
        wrong.append(f"without the cache {WITHOUT} positions have to run")
    if report["with"]["computed_tokens"] > MOST_WITH:
        wrong.append(f"with the cache at most {MOST_WITH} positions may run")
    if not report["identical"]:
        wrong.append("the outputs differ")
    return wrong


def _prompts(model: PagedModel) -> tuple[list[int], list[int]]:
    """Gives two prompts that share exactly their first tokens, of the demo's text."""
    text = DemoScript(model.tokenizer).document
    mine = text[: SHARED_TOKENS + OWN_TOKENS]
    # From further on, where the text goes on with another token.
    places = range(len(mine), len(text) - OWN_TOKENS)
    place = next(place for place in places if text[place] != mine[SHARED_TOKENS])
    return mine, mine[:SHARED_TOKENS] + text[place : place + OWN_TOKENS]


def _row(found: Generation) -> dict[str, Any]:
    names = ("matched_tokens", "copied_tokens", "prefilled_tokens", "computed_tokens")
    plain = found.plain()
    return {name: plain[name] for name in names}
