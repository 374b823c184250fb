"""The shapes of the four workloads: numbers of requests and tokens.

Numbers that the project's goals leave open are those of a benchmark of the field, and the document
says which. None was chosen for its result.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """LMCache's multi-round QA: five rounds of a short question and 100 tokens of answer.

    Its system prompt has 1,000 tokens and its users a history of 2,000 each. Ours has 200 tokens
    and no history. A conversation's questions come round by round.
    """

    system_tokens: int = 200
    conversations: int = 4
    rounds: int = 5
    # The length of the demo's questions, and of those of LMCache's driver.
    question_tokens: int = 24
    answer_tokens: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Rag:
    """A question about one of some documents, drawn by Zipf's law with exponent 1."""

    document_tokens: int = 1_000
    documents: int = 8
    requests: int = 32
    question_tokens: int = 24
    answer_tokens: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """All requests at once: one instruction, inputs of a sentence, answers of a few tokens.

    Each run has a new instruction, so nothing of it is cached.
    """

    instruction_tokens: int = 50
    requests: int = 100
    least_input_tokens: int = 8
    most_input_tokens: int = 24
    answer_tokens: int = 4
    rounds: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """SGLang's generated shared prefixes, four times shorter, and one in five unshared.

    Its prefixes have 2,048 tokens and its questions 128.
    """

    prefix_tokens: int = 512
    prefixes: int = 4
    requests: int = 35
    shared_share: float = 0.8
    question_tokens: int = 32
    answer_tokens: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Unique prompts of each length, with the store and without, in pairs."""

    lengths: tuple[int, ...] = (200, 1_000)
    pairs: tuple[int, ...] = (40, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The workloads of one run."""

    chat: Chat = Chat()
    rag: Rag = Rag()
    batch: Batch = Batch()
    mixed: Mixed = Mixed()
    miss: Miss = Miss()
    stock_rounds: int = 5

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of all."""
        chat = self.chat
        turn = chat.question_tokens + chat.answer_tokens
        return max(
            chat.system_tokens + chat.rounds * turn,
            self.rag.document_tokens + self.rag.question_tokens + self.rag.answer_tokens,
            self.mixed.prefix_tokens + self.mixed.question_tokens + self.mixed.answer_tokens,
            *(each + 1 for each in self.miss.lengths),
        )

    @property
    def batch_tokens(self) -> int:
        """Tokens of a whole batch at once, each sequence rounded up to pages of 16."""
        batch = self.batch
        one = batch.instruction_tokens + batch.most_input_tokens + batch.answer_tokens
        return batch.requests * (one + 16)


FULL = Plan()
QUICK = Plan(
    chat=Chat(conversations=2, rounds=4, answer_tokens=32),
    rag=Rag(documents=4, requests=16),
    batch=Batch(rounds=1),
    mixed=Mixed(requests=16, prefixes=2),
    miss=Miss(pairs=(12, 6)),
    stock_rounds=3,
)
# Shows that everything runs. Its figures mean nothing.
SMALLEST = Plan(
    chat=Chat(system_tokens=64, conversations=2, rounds=2, answer_tokens=4),
    rag=Rag(document_tokens=96, documents=2, requests=4, answer_tokens=2),
    batch=Batch(requests=6, rounds=1, answer_tokens=2),
    mixed=Mixed(prefix_tokens=96, prefixes=1, requests=5, answer_tokens=2),
    miss=Miss(lengths=(64,), pairs=(3,)),
    stock_rounds=1,
)
