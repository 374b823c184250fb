"""Models and set-ups beside a dense one: a second engine process hits what a first one stored."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from rig.case import Case
from rig.drafts import add_mtp_layer, save_eagle, save_eagle3
from rig.engine import Engine
from rig.models import save_model
from rig.options import PAGE_TOKENS, EngineOptions
from rig.prompts import Prompt, prompt, prompts
from rig.store import Store, store
from rig.table import Table
from rig.world import World, wholes, world

ASKED = prompts(90, 100, 500, 900)
# The same tokens again and again, whose next one a search for n-grams finds.
REPEATED = Prompt(prompt(91, 33).tokens * 10, answer_tokens=40)
DRAFTED = 3


@dataclass(frozen=True)
class Setup:
    """What of vLLM's arguments makes the set-up, and what its case requires besides the hit.

    ``accepts`` says that drafts are accepted, and ``drops_last`` that vLLM's own prefix cache
    drops the last page of each hit, because a draft's KV of its end depends on the next token.
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    accepts: bool = False
    drops_last: bool = False


def drafting(method: str, model: Path | None = None, count: int = DRAFTED) -> dict[str, object]:
    """Returns vLLM's arguments for speculative decoding."""
    config: dict[str, object] = {"method": method, "num_speculative_tokens": count}
    if model is not None:
        config["model"] = str(model)
    if method == "ngram":
        config |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return {"speculative_config": config}


def speculative(folder: Path, table: Table) -> None:
    """Drafts by n-grams, by models and by layers: the answers are those of vLLM without drafts."""
    llama = save_model("llama", folder / "drafted")
    setups = [
        Setup("drafts: n-grams", drafting("ngram"), accepts=True),
        Setup("drafts: a model, all accepted", drafting("draft_model", llama), accepts=True),
        Setup("drafts: EAGLE", drafting("eagle", save_eagle(folder / "eagle")), drops_last=True),
        Setup("drafts: EAGLE 3", drafting("eagle3", save_eagle3(folder / "e3")), drops_last=True),
    ]
    _run(folder, table, llama, setups)
    mimo = add_mtp_layer(save_model("mimo", folder / "mimo"))
    _run(folder, table, mimo, [Setup("drafts: MTP, MiMo", drafting("mtp", count=1))])


def windows(folder: Path, table: Table) -> None:
    """Models with sliding windows, for which vLLM turns its hybrid memory off by itself."""
    for name in ("gemma3", "gemma4", "gpt-oss"):
        model = save_model(name, folder / name)
        _run(folder, table, model, [Setup(f"sliding windows: {name}")])


def beside_another(folder: Path, table: Table) -> None:
    """Another connector beside this one, both in vLLM's MultiConnector."""
    model = save_model("qwen3", folder / "multiple")
    with (
        table.group("MultiConnector"),
        world(folder, EngineOptions(model), table) as here,
        store(folder / "multiple-store", "--tier1-bytes", "256MiB") as shared,
    ):
        common = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
        other = {
            "kv_connector": "ExampleConnector",
            "kv_connector_extra_config": {"shared_storage_path": str(folder / "example")},
        }
        ours = replace(here.options, runtime_dir=shared.runtime_dir).transfer_config()
        both = {
            "kv_connector": "MultiConnector",
            "kv_connector_extra_config": {"connectors": [ours, other | common]},
        }
        _second_process(
            here, shared, Setup("MultiConnector", {"kv_transfer_config": both | common})
        )


def _run(folder: Path, table: Table, model: Path, setups: list[Setup]) -> None:
    """Runs set-ups of one model beside one engine without drafts and connector."""
    with (
        table.group(model.name),
        world(folder, EngineOptions(model), table) as here,
        store(folder / f"{model.name}-store", "--tier1-bytes", "512MiB") as shared,
    ):
        for setup in setups:
            with table.group(setup.name):
                _second_process(here, shared, setup)


def _second_process(world: World, store: Store, setup: Setup) -> None:
    """Asks one engine and then, in another process, a second one."""
    asked = [*ASKED, REPEATED]
    arguments = dict(setup.arguments)
    stem = setup.name.replace(" ", "-")
    with ExitStack() as stack, world.case(setup.name, store) as case:
        first, second = (
            stack.enter_context(
                world.engine(
                    f"{stem}-{number}", store, arguments=arguments, local_prefix_cache=number == 2
                )
            )
            for number in (1, 2)
        )
        world.check(case, first, asked)
        case.require(case.loaded == 0, "an empty store gave pages")
        counts = world.check(case, second, asked)
        case.require(
            case.loaded == wholes(asked), f"loaded {case.loaded} of {wholes(asked)} tokens"
        )
        accepted = round(counts.get("vllm:spec_decode_num_accepted_tokens"))
        if "speculative_config" in arguments:
            case.note = f"{accepted} drafted tokens accepted"
        case.require(accepted > 0 or not setup.accepts, "no draft was accepted")
        if setup.drops_last:
            _last_pages(world, case, second, asked)


def _last_pages(world: World, case: Case, engine: Engine, asked: list[Prompt]) -> None:
    """Requires that the store gives the pages that vLLM's own prefix cache leaves out."""
    before = case.loaded
    counts = world.check(case, engine, asked)
    local = round(counts.labelled("vllm:prompt_tokens_by_source", "local_cache_hit"))
    left_out = PAGE_TOKENS * len(asked)
    case.require(local == wholes(asked) - left_out, f"{local} tokens were local")
    loaded = case.loaded - before
    case.require(loaded == left_out, f"loaded {loaded} of {left_out} tokens")


SETUPS: Mapping[str, Callable[[Path, Table], None]] = {
    "speculative": speculative,
    "windows": windows,
    "multiple": beside_another,
}
