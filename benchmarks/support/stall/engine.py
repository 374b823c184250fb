"""The engines of stall.py: light workers with a model. Loads torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference_worker.engine.engine import Engine
from inference_worker.engine.local_worker import local_worker
from inference_worker.model.device import use_threads
from support.stall.load import ATTACH_SECONDS, PROMPTS, Answer, Load

ENGINE_TOKENS, OUTPUT_TOKENS = 200, 8


class WithModel:
    """An engine with a tiny model. Its tokens without the store are the right ones."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._right: dict[int, list[int]] = {}

    def request(self, number: int, *, use_store: bool) -> Answer:
        """Continues a prompt."""
        prompt = number % PROMPTS
        ids = [(prompt * 31 + each * 7) % 250 for each in range(ENGINE_TOKENS)]
        found = self._engine.generate(ids, OUTPUT_TOKENS, use_store=use_store)
        if not use_store:
            self._right.setdefault(prompt, found.output_ids)
        wrong = self._right.get(prompt, found.output_ids) != found.output_ids
        return Answer(found.matched_tokens > 0, wrong, found.store_seconds)


@contextmanager
def with_model(runtime_dir: Path, name: str) -> Iterator[Load]:
    """Attaches an engine with the settings of ``kvstore-worker``."""
    use_threads(1)
    longest = ENGINE_TOKENS + OUTPUT_TOKENS
    with local_worker(
        "tiny", runtime_dir=runtime_dir, name=name, longest=longest, attach_seconds=ATTACH_SECONDS
    ) as worker:
        yield WithModel(worker.engine)
