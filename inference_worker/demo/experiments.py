"""Two experiments: the first token of each turn of a chat, and the positions that the model runs.

Chat turns: each chat has two turns. Its first line is unique, so its first turn is cold; the second
turn continues the first. Chats with the cache and without it alternate, and medians count.

Saved prefill: a prompt of 97 tokens that an earlier request shares, and 5 of its own, is continued
by 20 tokens in pages of 16. The first token comes from the prefill, each other one from a decoding
step. Without a cache that is 102 + 19 positions. Reuse in whole pages leaves 25, which a teaching
engine published; reuse to the token leaves 24.
"""

from statistics import median
from typing import Any, Final

from inference_worker.chat.chat import Chat, ChatTurn
from inference_worker.demo.script import DemoScript
from inference_worker.engine.engine import Engine
from inference_worker.engine.local_worker import LocalWorker
from inference_worker.engine.request import Generation
from inference_worker.model.model import PagedModel

RUNS: Final = 5
ANSWER_TOKENS: Final = 32
CHAT_LONGEST: Final = 1_024
# Milliseconds to the first token of two turns, elsewhere: another machine, model and prompt.
PUBLISHED_MS: Final = (38.0, 9.0)
ABOUT: Final = (
    "You are the guide of a small museum of clocks. It has three rooms: sundials and water clocks, "
    "clocks of towers, and watches. It is open from ten to five, on Mondays it is closed, and "
    "children pay nothing. Please tell a visitor in one sentence what there is to see. "
)
SECOND: Final = "And when may we come, and what does it cost for my two children and me?"


def measure_chat_turns(worker: LocalWorker, runs: int = RUNS) -> dict[str, Any]:
    """Runs ``runs`` chats with the cache and as many without it, in turn; returns the report."""
    alone = Engine(worker.model, None, longest=CHAT_LONGEST)
    kinds = {"with": worker.engine, "without": alone}
    # The first forward of a length pays for what all later ones find done.
    for engine in kinds.values():
        _chat(engine, worker, "0. Not counted")
    found: dict[str, list[list[ChatTurn]]] = {kind: [] for kind in kinds}
    for run in range(runs):
        for kind, engine in kinds.items():
            found[kind].append(_chat(engine, worker, f"{run + 1}. visitor"))
    turns = [_turn(number, found) for number in range(2)]
    return {
        "runs": runs,
        "answer_tokens": ANSWER_TOKENS,
        "turns": turns,
        "published_ms": list(PUBLISHED_MS),
        "identical": [_said(each) for each in found["with"]]
        == [_said(each) for each in found["without"]],
    }


def chat_turns_faults(report: dict[str, Any]) -> list[str]:
    """Returns the faults of a report in sentences; times are not judged."""
    wrong = [] if report["identical"] else ["the outputs differ"]
    second = report["turns"][1]
    known = second["prompt_tokens"] - second["prefilled_tokens"]
    if known <= report["turns"][0]["prompt_tokens"]:
        wrong.append(f"the second turn reused {known} tokens, not all of the first")
    return wrong


def _chat(engine: Engine, worker: LocalWorker, name: str) -> list[ChatTurn]:
    chat = Chat(engine, worker.model, answer_tokens=ANSWER_TOKENS)
    return [chat.say(text, lambda _: None) for text in (f"{name}. {ABOUT}", SECOND)]


def _said(turns: list[ChatTurn]) -> list[list[int]]:
    return [turn.generation.output_ids for turn in turns]


def _turn(number: int, found: dict[str, list[list[ChatTurn]]]) -> dict[str, Any]:
    """Sums up one turn: the tokens of the last chat with the cache, and the medians' times."""
    last = found["with"][-1][number].generation
    row: dict[str, Any] = {
        "prompt_tokens": last.prompt_tokens,
        "matched_tokens": last.matched_tokens,
        "copied_tokens": last.copied_tokens,
        "prefilled_tokens": last.prefilled_tokens,
    }
    for kind, chats in found.items():
        times = [chat[number].generation.time_to_first_token * 1e3 for chat in chats]
        row[f"ttft_ms_{kind}"] = median(times)
        row[f"ttft_ms_{kind}_all"] = times
    return row


SHARED_TOKENS: Final = 97
OWN_TOKENS: Final = 5
DECODE_STEPS: Final = 19
PAGE_TOKENS: Final = 16
# Enough for the prompt and its output.
PREFILL_LONGEST: Final = 256
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
    """Returns the faults of a report in sentences."""
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
    """Returns two prompts of the demo's text that share exactly their first tokens."""
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
