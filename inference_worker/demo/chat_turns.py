"""An experiment: when the first token of each turn of a chat comes, with the cache and without.

Each chat has two turns. Its first line is its own, so that its first turn is cold; the second turn
goes on from the first. Chats with the cache and without take turns, and medians count.
"""

from statistics import median
from typing import Any, Final

from inference_worker.chat.chat import Chat, ChatTurn
from inference_worker.commands.local_worker import LocalWorker
from inference_worker.engine.engine import Engine

RUNS: Final = 5
ANSWER_TOKENS: Final = 32
LONGEST: Final = 1_024
# Milliseconds to the first token of two turns, elsewhere: another machine, model and prompt.
PUBLISHED_MS: Final = (38.0, 9.0)
ABOUT: Final = (
    "You are the guide of a small museum of clocks. It has three rooms: sundials and water clocks, "
    "clocks of towers, and watches. It is open from ten to five, on Mondays it is closed, and "
    "children pay nothing. Please tell a visitor in one sentence what there is to see. "
)
SECOND: Final = "And when may we come, and what does it cost for my two children and me?"


def measure_chat_turns(worker: LocalWorker, runs: int = RUNS) -> dict[str, Any]:
    """Have ``runs`` chats with the cache and as many without, in turn; gives the report."""
    alone = Engine(worker.model, None, longest=LONGEST)
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
    """Says what of a report is not as it has to be, in sentences; times are the machine's."""
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
