"""Models whose cache has other components than full attention: windows, and recurrent states."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rig.engine import Engine
from rig.options import ServerOptions
from rig.reference import Reference
from rig.settled import wait_settled
from rig.world import World, world

from cases.set_ups import ASKED, in_turn
from engine_cases.case import Case
from engine_cases.models import save_model
from engine_cases.prompts import Prompt, prompt, prompts
from engine_cases.store import Store, store
from engine_cases.table import Table

POOL_TOKENS = 2_560
# In turns, these push each other out of the server's memory.
TURNS = prompts(60, 900, 1_000, 1_100)
ROUNDS = 3
TALKED = replace(prompt(61, 990), answer_tokens=60)
TAIL = prompt(62, 300)
WHOLE = prompt(63, 1_500)
PARTED = WHOLE.head(777).then(TAIL)
MANY = [ASKED[2].then(prompt(640 + number, 150)) for number in range(12)]
STOPS = (0, 1, 3, 8)
ABORTED = [replace(each, abort_after=stop) for each in ASKED for stop in STOPS]
LARGE = "256MiB"
# SGLang refuses `torch_native` for some models, and takes it in place of this on other processors.
FALLS_BACK = ("--attention-backend", "intel_amx")
# Gated delta rules run on a CPU by the stand-ins alone. All states have the type of the model.
DELTA_RULE = {
    "KVSTORE_TEST_CPU_DELTA_RULE": "1",
    "KVSTORE_TEST_CPU_PINNING": "1",
    "SGLANG_MAMBA_CONV_DTYPE": "float32",
}


def windows(folder: Path, table: Table) -> None:
    """Runs the cases of windows in both kinds of pool."""
    with table.group("windows in a plain pool"):
        model = save_model("gemma3", folder / "gemma3")
        here = world(folder / "gemma3-runs", ServerOptions(model), table)
        here.reference.answers(ASKED)
        with store(here.folder / "store", "--tier1-bytes", LARGE) as shared:
            in_turn(here, shared, "Gemma 3, windows in a plain pool", ASKED)
    with table.group("windows"):
        # SGLang reads this from the configuration, and transformers does not write it.
        model = save_model("gemma4", folder / "gemma4", swa_num_key_value_heads=2)
        options = ServerOptions(model, arguments=FALLS_BACK)
        here = world(folder / "gemma4-runs", options, table)
        # So the right answers need no stand-in.
        plain = replace(options, arguments=(*FALLS_BACK, "--disable-hybrid-swa-memory"))
        _hybrid(replace(here, reference=Reference(plain, here.folder)), "Gemma 4")


def states(folder: Path, table: Table) -> None:
    """Runs the cases of recurrent states."""
    with table.group("states"):
        # SGLang reads this from the configuration, and transformers does not write it.
        model = save_model("qwen3-next", folder / "qwen3-next", full_attention_interval=2)
        options = ServerOptions(model, variables=DELTA_RULE, extra={"try_recurrent_state": True})
        _hybrid(world(folder / "qwen3-next-runs", options, table), "Qwen3-Next")


def _hybrid(here: World, name: str) -> None:
    """Runs the cases of a model with two components."""
    with here.reference.running():
        talked = _talked_on(here)
        here.reference.answers([*ASKED, *TURNS, TALKED, talked, WHOLE, PARTED, *MANY])
    with store(here.folder / "pair", "--tier1-bytes", LARGE) as shared:
        _pair(here, shared, name, talked)
    with store(here.folder / "tight", "--tier1-bytes", LARGE) as shared:
        _evicting(here, shared, name)


def _talked_on(here: World) -> Prompt:
    """Returns the next turn of a conversation."""
    [answer] = here.reference.answers([TALKED])
    return replace(TALKED, tokens=TALKED.tokens + answer.tokens, answer_tokens=12).then(TAIL)


def _pair(here: World, shared: Store, name: str, talked: Prompt) -> None:
    """Runs the cases of two servers on one store."""
    with here.engines(shared, "first", "second") as [first, second]:
        with here.case(f"{name}: cold", shared) as case:
            here.check(case, first, ASKED)
            case.require(case.loaded == 0, "an empty store gave pages")
            wait_settled(case, shared)
        with here.case(f"{name}: hits of the other server's", shared) as case:
            _as_long_as_its_own(here, case, first, second, ASKED)
        with here.case(f"{name}: the next turn of a conversation", shared) as case:
            here.check(case, first, [TALKED])
            wait_settled(case, shared)
            here.check(case, second, [talked])
            case.require(case.loaded > 0, "nothing was loaded")
        with here.case(f"{name}: a part of another prompt", shared) as case:
            here.check(case, first, [WHOLE])
            wait_settled(case, shared)
            here.check(case, second, [PARTED])
        with here.case(f"{name}: 12 requests on one prefix, both servers", shared) as case:
            first.begin(MANY)
            answers = [*second.ask(MANY), *first.finish()]
            case.compare(answers, here.reference.answers(MANY) * 2)
        with here.case(f"{name}: aborted before, in and after loads", shared) as case:
            first.begin(ABORTED)
            answers = [*second.ask([*ABORTED, *ASKED]), *first.finish()]
            case.compare(answers, here.reference.answers([*ABORTED, *ASKED, *ABORTED]))
        with here.case(f"{name}: flushed, nothing of before is used", shared) as case:
            second.flush()
            found = here.check(case, second, ASKED)
            case.require(found.own == found.loaded == 0, f"{found} tokens of before were used")


def _as_long_as_its_own(
    here: World, case: Case, first: Engine, second: Engine, asked: Sequence[Prompt]
) -> None:
    """Requires that a server loads as much as the one that computed it has in its own tree."""
    own = here.check(case, first, list(asked)).own
    found = here.check(case, second, list(asked)).loaded
    case.require(own > 0, "the first server has nothing in its own tree")
    case.require(found == own, f"loaded {found} tokens, and the other server's own are {own}")


def _evicting(here: World, shared: Store, name: str) -> None:
    """Runs the cases of servers whose pools evict all the time."""
    with here.engine(shared, "tight", pool_tokens=POOL_TOKENS) as engine:
        with here.case(f"{name}: the server evicts, and loads again", shared) as case:
            for _ in range(ROUNDS):
                here.check(case, engine, TURNS, each=True)
            case.require(case.loaded > 0, "nothing was loaded")
        with here.case(f"{name}: more requests than fit", shared) as case:
            for _ in range(ROUNDS):
                here.check(case, engine, MANY)
    with (
        here.engine(shared, "wrong", faulty="WrongHangingLinker") as engine,
        here.case(f"{name}: wrong pages in each load, seen", shared) as case,
    ):
        before = engine.cached
        answers = engine.ask_each(TURNS)
        case.loaded = engine.cached.since(before).loaded
        case.require(case.loaded > 0, "nothing was loaded")
        expected = here.reference.answers(TURNS)
        wrong = sum(a.tokens != b.tokens for a, b in zip(answers, expected, strict=True))
        case.require(wrong > 0, "all answers are right with wrong pages")
        case.note = f"{wrong} of {len(TURNS)} answers are wrong, as they have to be"
