"""Runs the workloads: each request by all variants, one after the other, in a random order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from inference_worker.demo.reference import Reference
from support.workloads.figures import Sample
from support.workloads.judge import Judge
from support.workloads.plan import Batch, Chat, Miss, Mixed, Rag
from support.workloads.requests import (
    ANSWER,
    Asked,
    Conversations,
    batch_requests,
    mixed_requests,
    order_of,
    rag_requests,
)
from support.workloads.text import Text
from support.workloads.world import IDEAL, STORE, TWO, WITHOUT, World

Say = Callable[[str], None]


@dataclass(slots=True)
class Rows:
    """The samples of each variant for each request, in the order of the requests.

    ``seconds`` are of whole batches, by variant and run, and empty otherwise. ``identity`` is the
    report of a :class:`~support.workloads.judge.Judge` on all outputs.
    """

    asked: list[Asked] = field(default_factory=list)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)

    def add(self, asked: Asked, found: dict[str, Sample]) -> None:
        """Adds one request."""
        self.asked.append(asked)
        for name, sample in found.items():
            self.samples.setdefault(name, []).append(sample)


class Runner:
    """Makes the requests of one run. One thread uses it."""

    def __init__(
        self, world: World, text: Text, load: Callable[[], Reference], seed: int, say: Say
    ) -> None:
        """Prepares a run.

        ``load`` loads stock transformers if outputs differ, and ``say`` reports progress.
        """
        self._world = world
        self._text = text
        self._load = load
        self._judge = Judge(load)
        self._order = Random(f"order {seed}")
        self._say = say

    def warm_up(self, token_count: int) -> None:
        """Runs a prompt on each engine, and then a hit on it."""
        ids = self._text.opening(token_count)
        for name in self._world.names:
            for worker in (0, 1) if name == TWO else (0,):
                self._world.ready.prepare(ids)
                for _ in range(2):
                    self._world.one(name, ids, 2, worker)

    def chat(self, shape: Chat) -> Rows:
        """Measures each round's first tokens, and then gets its answers, all at once.

        Nobody continues the last round, so it has no answers.
        """
        rows = Rows()
        chat = Conversations(shape, self._text)
        for number in range(shape.rounds):
            asked = [chat.ask(each) for each in range(shape.conversations)]
            # The worker that gives the answer does not get the next question.
            whose = [(each + number) % 2 for each in range(shape.conversations)]
            for each, worker in zip(asked, whose, strict=True):
                self._say(f"chat, round {number + 1}, {len(each.ids)} tokens")
                rows.add(each, self._measure(f"chat {number + 1}", each, 1, worker))
            if number + 1 == shape.rounds:
                break
            prompts = [each.ids for each in asked]
            answers = {
                name: self._world.many(name, prompts, shape.answer_tokens, whose).samples
                for name in self._world.names
                if name != IDEAL
            }
            for place, each in enumerate(asked):
                outputs = {name: given[place].output_ids for name, given in answers.items()}
                self._judge.look(f"chat {number + 1}, answer {place + 1}", each.ids, outputs)
                chat.tell(place, outputs[WITHOUT])
        return self._judged(rows)

    def rag(self, shape: Rag) -> Rows:
        """Measures questions on documents."""
        return self._each("rag", rag_requests(shape, self._text), shape.answer_tokens)

    def mixed(self, shape: Mixed) -> Rows:
        """Measures prompts of which some share prefixes."""
        return self._each("mixed", mixed_requests(shape, self._text), shape.answer_tokens)

    def batch(self, shape: Batch) -> Rows:
        """Measures whole batches, each with an instruction of its own."""
        rows, world = Rows(), self._world
        whose = [each % 2 for each in range(shape.requests)]
        for run in range(shape.rounds):
            self._say(f"batch, run {run + 1}")
            asked = batch_requests(shape, self._text)
            prompts = [each.ids for each in asked]
            instruction = prompts[0][: shape.instruction_tokens]
            other = self._text.passage(shape.most_input_tokens, after=ANSWER)
            world.publisher.one([*instruction, *other], 1)
            for ids in prompts:
                world.ready.prepare(ids, world.prepared)
            found = {}
            for name in order_of(world.names, self._order):
                found[name] = world.many(name, prompts, shape.answer_tokens, whose)
            for name in world.names:
                rows.seconds.setdefault(name, []).append(found[name].seconds)
            for place, each in enumerate(asked):
                samples = {name: found[name].samples[place] for name in world.names}
                rows.add(each, samples)
                self._look(f"batch {run + 1}, request {place + 1}", each, samples)
        return self._judged(rows)

    def miss(self, shape: Miss) -> dict[int, Rows]:
        """Measures unique prompts without the store and with it, in pairs, by length."""
        misses: dict[int, Rows] = {}
        for length, number in zip(shape.lengths, shape.pairs, strict=True):
            self._say(f"misses of {length} tokens")
            rows = misses[length] = Rows()
            for _ in range(number):
                asked = Asked(self._text.opening(length), None, 0)
                found = {
                    name: self._world.one(name, asked.ids, 1, 0)
                    for name in order_of([WITHOUT, STORE], self._order)
                }
                self._look(f"miss of {length}", asked, found)
                rows.add(asked, {name: found[name] for name in (WITHOUT, STORE)})
            self._judged(rows)
        return misses

    def _each(self, what: str, asked: Sequence[Asked], max_tokens: int) -> Rows:
        rows = Rows()
        turn = count()
        for number, each in enumerate(asked):
            self._say(f"{what}, {number + 1} of {len(asked)}, {len(each.ids)} tokens")
            # One worker computes a prefix first, and the other gets all later requests.
            worker = next(turn) % 2 if each.prefix is None else (each.prefix + each.could_hit) % 2
            rows.add(each, self._measure(f"{what} {number + 1}", each, max_tokens, worker))
        return self._judged(rows)

    def _judged(self, rows: Rows) -> Rows:
        """Adds the verdict on a workload's outputs."""
        rows.identity = self._judge.report()
        self._judge = Judge(self._load)
        return rows

    def _measure(self, where: str, asked: Asked, max_tokens: int, worker: int) -> dict[str, Sample]:
        """Runs a request on each variant in random order. Returns samples in their order."""
        # The ideal's prefix is matched before any variant computes it.
        self._world.ready.prepare(asked.ids)
        found = {
            name: self._world.one(name, asked.ids, max_tokens, worker)
            for name in order_of(self._world.names, self._order)
        }
        ordered = {name: found[name] for name in self._world.names}
        self._look(where, asked, ordered)
        return ordered

    def _look(self, where: str, asked: Asked, found: dict[str, Sample]) -> None:
        outputs = {name: sample.output_ids for name, sample in found.items()}
        outputs = {WITHOUT: outputs.pop(WITHOUT), **outputs}
        self._judge.look(where, asked.ids, outputs)
