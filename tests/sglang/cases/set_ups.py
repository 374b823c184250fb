"""Other models and set-ups: a second server hits what a first one stored before it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rig.options import ServerOptions
from rig.stored_pages import StoredPages
from rig.world import World, world

from engine_cases.models import save_adapter, save_model
from engine_cases.prompts import Prompt, prompts
from engine_cases.store import Store, store
from engine_cases.table import Table

ASKED = prompts(90, 100, 500, 1_000)


@dataclass(frozen=True)
class SetUp:
    """A model and the options of its servers, by a name that the table shows."""

    name: str
    model: str
    options: Mapping[str, object] = field(default_factory=dict)


SET_UPS = (
    SetUp("Llama, bfloat16, pages of 32", "llama", {"dtype": "bfloat16", "page_tokens": 32}),
    SetUp("no overlap schedule", "qwen3", {"arguments": ("--disable-overlap-schedule",)}),
)


def set_ups(folder: Path, table: Table) -> None:
    """Runs a case of each set-up."""
    for number, each in enumerate(SET_UPS):
        with table.group(each.name):
            model = save_model(each.model, folder / f"set-up-{number}")
            options = replace(ServerOptions(model), **each.options)  # type: ignore[arg-type]
            here = world(folder / f"set-up-{number}-runs", options, table)
            here.reference.answers(ASKED)
            with store(here.folder / "store", "--tier1-bytes", "256MiB") as shared:
                in_turn(here, shared, each.name, ASKED)


def adapters(folder: Path, table: Table) -> None:
    """Runs the cases of LoRA: three sets of KV for the same tokens."""
    with table.group("adapters"):
        llama = save_model("llama", folder / "llama")
        both = tuple(save_adapter(llama, folder / f"adapter-{n}", n) for n in (1, 2))
        options = ServerOptions(
            llama,
            adapters=both,
            arguments=("--lora-backend", "torch_native"),
            variables={"KVSTORE_TEST_CPU_PINNING": "1"},
        )
        here = world(folder / "adapters", options, table)
        asked = [*ASKED]
        for path in both:
            asked += [replace(each, adapter=path.name) for each in ASKED]
        answers = here.reference.answers(asked)
        with store(here.folder / "store", "--tier1-bytes", "256MiB") as shared:
            in_turn(here, shared, "LoRA: plain and two adapters", asked)
        with table.case("LoRA: adapters change answers", options.way) as case:
            third = len(ASKED)
            case.require(answers[:third] != answers[third : 2 * third], "the first changes none")
            case.require(answers[:third] != answers[2 * third :], "the second changes none")


def ranks(folder: Path, table: Table) -> None:
    """Runs the cases of two ranks, and of a server of one beside them."""
    with table.group("ranks"):
        model = save_model("qwen3", folder / "qwen3-ranks")
        two = world(folder / "ranks", ServerOptions(model, ranks=2), table)
        two.reference.answers(ASKED)
        one = world(folder / "one-rank", ServerOptions(model), table)
        one.reference.answers(ASKED)
        with store(two.folder / "store", "--tier1-bytes", "256MiB") as shared:
            in_turn(two, shared, "tensor parallel of two", ASKED)
            with (
                one.engine(shared, "one") as engine,
                one.case("tensor parallel: nothing shared with one rank", shared) as case,
            ):
                one.check(case, engine, ASKED)
                case.require(case.loaded == 0, f"{case.loaded} tokens of two ranks were loaded")


def in_turn(here: World, shared: Store, name: str, asked: list[Prompt]) -> None:
    """Asks a server, which ends then, and another one."""
    pages = StoredPages(shared, here.options.page_tokens, here.options.ranks)
    with here.engine(shared, "first") as engine, here.case(f"{name}: cold", shared) as case:
        here.check(case, engine, asked)
        case.require(case.loaded == 0, "an empty store gave pages")
        pages.add(asked, here.reference.answers(asked))
        pages.wait(case)
    with here.engine(shared, "second") as engine, here.case(f"{name}: hit", shared) as case:
        here.check(case, engine, asked)
        wanted = here.wholes(asked)
        case.require(case.loaded == wanted, f"loaded {case.loaded} of {wanted} tokens")
