"""The requests of the workloads: their ids, their shared prefixes, and their order."""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from support.workloads.plan import Batch, Chat, Mixed, Rag
from support.workloads.text import Text

QUESTION, ANSWER = "\nQ: ", "\nA:"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    ``prefix`` names its shared prefix, or is None for a unique beginning. ``known_tokens`` is the
    number of its leading tokens that an earlier request computed by design. It is 0 if the request
    could not hit, like the first of each prefix.
    """

    ids: list[int]
    prefix: int | None
    known_tokens: int

    @property
    def could_hit(self) -> bool:
        """True if an earlier request computed some of its tokens by design."""
        return self.known_tokens > 0


def rag_requests(shape: Rag, text: Text) -> list[Asked]:
    """Returns questions on documents. The k-th document's share is as 1 / k (Zipf's law)."""
    documents = [
        text.opening(shape.document_tokens, title=f"Document {number + 1}")
        for number in range(shape.documents)
    ]
    weights = list(accumulate(1 / (rank + 1) for rank in range(shape.documents)))
    drawn = [
        bisect(weights, text.random.random() * weights[-1], hi=shape.documents - 1)
        for _ in range(shape.requests)
    ]
    return _on_prefixes(drawn, documents, shape.question_tokens, text)


def mixed_requests(shape: Mixed, text: Text) -> list[Asked]:
    """Returns prompts of one length, of which a share begin with one of the prefixes."""
    prefixes = [text.opening(shape.prefix_tokens) for _ in range(shape.prefixes)]
    shared = round(shape.requests * shape.shared_share)
    drawn: list[int | None] = [text.random.randrange(shape.prefixes) for _ in range(shared)]
    drawn += [None] * (shape.requests - shared)
    text.random.shuffle(drawn)
    return _on_prefixes(drawn, prefixes, shape.question_tokens, text)


def _on_prefixes(
    drawn: Sequence[int | None], prefixes: Sequence[list[int]], question_tokens: int, text: Text
) -> list[Asked]:
    asked = []
    seen: set[int] = set()
    for each in drawn:
        question = text.passage(question_tokens, before=QUESTION, after=ANSWER)
        if each is None:
            alone = text.opening(len(prefixes[0]))
            asked.append(Asked([*alone, *question], None, 0))
            continue
        known = len(prefixes[each]) if each in seen else 0
        asked.append(Asked([*prefixes[each], *question], each, known))
        seen.add(each)
    return asked


def batch_requests(shape: Batch, text: Text) -> list[Asked]:
    """Returns the requests of one run: a new instruction, and inputs of their own."""
    instruction = text.opening(shape.instruction_tokens)
    lengths = [
        text.random.randint(shape.least_input_tokens, shape.most_input_tokens)
        for _ in range(shape.requests)
    ]
    return [
        Asked(
            [*instruction, *text.passage(length, after=ANSWER)],
            0,
            shape.instruction_tokens if number else 0,
        )
        for number, length in enumerate(lengths)
    ]


@dataclass(slots=True)
class Conversations:
    """All conversations of the chat, whose next questions depend on the answers so far."""

    shape: Chat
    text: Text
    histories: list[list[int]] = field(init=False)
    computed: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Begins each with the system prompt."""
        system = self.text.opening(self.shape.system_tokens)
        self.histories = [list(system) for _ in range(self.shape.conversations)]
        # The known tokens of each. The first ones have none, not even the system prompt.
        self.computed = [0] * self.shape.conversations

    def ask(self, number: int) -> Asked:
        """Returns a conversation's next request, once its last answer was added."""
        question = self.text.passage(self.shape.question_tokens, before=QUESTION, after=ANSWER)
        asked = Asked([*self.histories[number], *question], number, self.computed[number])
        self.histories[number] = asked.ids
        system = self.shape.system_tokens
        self.computed = [max(each, system) for each in self.computed]
        return asked

    def tell(self, number: int, answer_ids: Sequence[int]) -> None:
        """Adds an answer after its question. Its last token was given and never run."""
        self.histories[number] = [*self.histories[number], *answer_ids]
        self.computed[number] = len(self.histories[number]) - 1


def order_of(names: Sequence[str], random: Random) -> list[str]:
    """Returns the names in a random order, so that no name always comes first."""
    return random.sample(list(names), len(names))
