"""Servers of vLLM's OpenAI API: two on one store, and one with two replicas."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rig.openai_server import server_of
from rig.options import EngineOptions
from rig.world import World, settled, wholes, world

from engine_cases.answer import Answer
from engine_cases.case import Case
from engine_cases.models import save_model
from engine_cases.prompts import prompts
from engine_cases.store import Store, store
from engine_cases.table import Table
from support.vllm.server import VllmServer

NOT_ASKED = ("kvstore_lookups{unavailable}", "kvstore_lookups{timeout}")
ASKED = prompts(80, 260, 1_500)


def servers(world: World, store: Store) -> None:
    """The second server hits the pages that the first one stored, each in its own processes."""
    options = replace(world.options, runtime_dir=store.runtime_dir)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(server_of(world.folder / f"server-{number}.log", options))
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
                _require_asked(case, server)
        with world.case("OpenAI server: hints of requests", store) as case:
            _ask_with_hints(case, first, expected[0])


def _ask_with_hints(case: Case, server: VllmServer, expected: Answer) -> None:
    """Requires that a well-formed hint is taken, and that a malformed one is ignored."""
    for hint, count in (({"expected_reuse": "one_shot"}, 0), ("one_shot", 1)):
        asked = ASKED[0]
        found = server.complete(asked.tokens, answer_tokens=asked.answer_tokens, hint=hint)
        case.compare([Answer(found.tokens, "length")], [expected])
        ignored = round(server.counters().get("kvstore_ignored_hints", 0))
        case.require(ignored == count, f"{ignored} hints were ignored after {hint}")


def replicas(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """One server with two data-parallel replicas, each an engine of its own."""
    model = save_model("qwen3", folder / "replicated")
    with table.group("replicas"), world(folder, EngineOptions(model), table) as plain:
        for here in map(plain.with_connector, connectors):
            with (
                table.group("replicas"),
                store(here.folder / "replicas-store", "--tier1-bytes", "256MiB") as shared,
            ):
                _replicated(here, shared)


def _replicated(here: World, shared: Store) -> None:
    options = replace(
        here.options, runtime_dir=shared.runtime_dir, arguments={"data_parallel_size": 2}
    )
    with server_of(here.folder / "replicas.log", options) as server:
        server.wait_healthy()
        expected = here.reference.answers(ASKED)
        with here.case("data parallel: a replica hits the other's", shared) as case:
            case.compare(_ask(server, replica=0), expected)
            case.require(_loaded(server) == 0, "an empty store gave pages")
            settled(case, shared)
            case.compare(_ask(server, replica=1), expected)
            case.loaded = _loaded(server)
            case.require(case.loaded == wholes(ASKED), f"loaded {case.loaded} tokens")
        with here.case("data parallel: replicas hit their own", shared) as case:
            before = _loaded(server)
            for replica in (0, 1):
                case.compare(_ask(server, replica=replica), expected)
            case.loaded = _loaded(server) - before
            case.require(case.loaded == 2 * wholes(ASKED), f"loaded {case.loaded} tokens")
            _require_asked(case, server)


def _ask(server: VllmServer, *, replica: int | None = None) -> Sequence[Answer]:
    answers = [
        server.complete(each.tokens, answer_tokens=each.answer_tokens, replica=replica)
        for each in ASKED
    ]
    return [Answer(answer.tokens, "length") for answer in answers]


def _require_asked(case: Case, server: VllmServer) -> None:
    """Requires that each request was looked up in the store."""
    counters = server.counters()
    without = {name: counters.get(name, 0) for name in NOT_ASKED}
    case.require(not any(without.values()), f"went on without the store: {without}")


def _loaded(server: VllmServer) -> int:
    return round(server.counters().get("kvstore_loaded_tokens", 0))
