"""Two of vLLM's OpenAI servers on one store."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rig.answer import Answer
from rig.options import EngineOptions
from rig.prompts import prompts
from rig.store import Store
from rig.world import World, wholes

from support.vllm.server import VllmServer

# Said otherwise, or as it is by itself.
GIVEN = frozenset({"model", "disable_log_stats"})
NOT_ASKED = ("kvstore_lookups{unavailable}", "kvstore_lookups{timeout}")
ASKED = prompts(80, 260, 1_500)


def servers(world: World, store: Store) -> None:
    """The second server hits the pages that the first one stored, each in its own processes."""
    options = replace(world.options, runtime_dir=store.runtime_dir)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(_server(world.folder / f"server-{number}.log", options))
            for number in (1, 2)
        )
        expected = world.reference.answers(ASKED)
        for server in (first, second):
            server.wait_healthy()
        with world.case("OpenAI server: cold", store) as case:
            case.compare(_ask(first), expected)
            case.require(_loaded(first) == 0, "an empty store gave pages")
        with world.case("OpenAI server: hits what another stored", store) as case:
            before = _loaded(second)
            case.compare(_ask(second), expected)
            case.loaded = _loaded(second) - before
            case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} tokens")
            # Their first requests too, for which ranks had to join first.
            for server in (first, second):
                counters = server.counters()
                without = {name: counters.get(name, 0) for name in NOT_ASKED}
                case.require(not any(without.values()), f"went on without the store: {without}")


def _server(log: Path, options: EngineOptions) -> VllmServer:
    arguments = []
    given = {k: v for k, v in options.engine_arguments().items() if k not in GIVEN}
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        match value:
            case bool():
                arguments.append(flag if value else flag.replace("--", "--no-", 1))
            case dict():
                arguments += [flag, json.dumps(value)]
            case _:
                arguments += [flag, str(value)]
    # As its users have it: the engine in a process of its own.
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    return VllmServer(Path(sys.executable), options.model, log, arguments, environment)


def _ask(server: VllmServer) -> Sequence[Answer]:
    answers = [server.complete(each.tokens, answer_tokens=each.answer_tokens) for each in ASKED]
    return [Answer(answer.tokens, "length") for answer in answers]


def _loaded(server: VllmServer) -> int:
    return round(server.counters().get("kvstore_loaded_tokens", 0))
