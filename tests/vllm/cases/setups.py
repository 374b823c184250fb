"""Models and set-ups beside a dense one: a second engine process hits what a first one stored."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from rig.drafts import add_mtp_layer, save_eagle, save_eagle3
from rig.engine import Engine
from rig.options import OFFLOADING, PAGE_TOKENS, EngineOptions
from rig.world import World, settled, world

from cases.failing import wrong_page
from engine_cases.case import Case
from engine_cases.models import save_model
from engine_cases.prompts import Prompt, prompt, prompts
from engine_cases.store import Store, store
from engine_cases.table import Table

ASKED = prompts(90, 100, 500, 900)
# The same tokens again and again, whose next one a search for n-grams finds.
REPEATED = Prompt(prompt(91, 33).tokens * 10, answer_tokens=40)
DRAFTED = 3
COMMON = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}


@dataclass(frozen=True)
class Setup:
    """The arguments of vLLM's that make the set-up, and what its case requires besides the hit.

    ``page_tokens`` is the page's size. None is that of the store's only namespace: vLLM grows it to
    the bytes of a recurrent state, by as much as the processor's kernels ask for.
    ``accepts`` says that drafts are accepted, and ``drops_last`` that vLLM's own prefix cache
    drops the last page of each hit, because a draft's KV of its end depends on the next token.
    ``controlled`` asks for a second case, in which wrong pages have to change answers.
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    page_tokens: int | None = PAGE_TOKENS
    asked: Sequence[Prompt] = (*ASKED, REPEATED)
    accepts: bool = False
    drops_last: bool = False
    controlled: bool = False

    def wholes(self, page_tokens: int) -> int:
        """Returns the tokens in whole pages before the last token of each prompt."""
        return sum((len(each.tokens) - 1) // page_tokens * page_tokens for each in self.asked)


def drafting(method: str, model: Path | None = None, count: int = DRAFTED) -> dict[str, object]:
    """Returns vLLM's arguments for speculative decoding."""
    config: dict[str, object] = {"method": method, "num_speculative_tokens": count}
    if model is not None:
        config["model"] = str(model)
    if method == "ngram":
        config |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return {"speculative_config": config}


def speculative(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Drafts by n-grams, by models and by layers: the answers are those of vLLM without drafts."""
    llama = save_model("llama", folder / "drafted")
    setups = [
        Setup("drafts: n-grams", drafting("ngram"), accepts=True),
        Setup("drafts: a model, all accepted", drafting("draft_model", llama), accepts=True),
        Setup("drafts: EAGLE", drafting("eagle", save_eagle(folder / "eagle")), drops_last=True),
        Setup("drafts: EAGLE 3", drafting("eagle3", save_eagle3(folder / "e3")), drops_last=True),
    ]
    _run(EngineOptions(llama), setups, folder, table, connectors)
    mimo = EngineOptions(add_mtp_layer(save_model("mimo", folder / "mimo")))
    setups = [Setup("drafts: MTP, MiMo", drafting("mtp", count=1), drops_last=True)]
    _run(mimo, setups, folder, table, connectors)


def windows(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Models with sliding windows.

    vLLM keeps their windows alone with its own connector, and whole prefixes with the other one.
    """
    for name in ("gemma3", "gemma4", "gpt-oss"):
        options = EngineOptions(save_model(name, folder / f"windows-{name}"))
        setup = Setup(f"sliding windows: {name}", controlled=True)
        _run(options, [setup], folder, table, connectors)


def states(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Models with recurrent states, which vLLM's own connector alone takes."""
    if OFFLOADING not in connectors:
        return
    cached: dict[str, object] = {"enable_prefix_caching": True}
    # Several requests in one step get other answers of vLLM's CPU build than each alone does.
    alone = cached | {"max_num_seqs": 1}
    lfm2 = EngineOptions(save_model("lfm2", folder / "lfm2"), arguments=alone)
    setup = Setup("states: LFM2", alone, asked=ASKED, controlled=True)
    _run(lfm2, [setup], folder, table, [OFFLOADING])
    # Its states are computed in no other type here.
    brief = cached | {"dtype": "bfloat16"}
    qwen = EngineOptions(save_model("qwen3-next", folder / "qwen3-next"), arguments=brief)
    setup = Setup("states: Qwen3-Next", brief, None, controlled=True)
    _run(qwen, [setup], folder, table, [OFFLOADING])


def beside_another(folder: Path, table: Table, connectors: Sequence[str]) -> None:
    """Another connector beside this one, both in vLLM's MultiConnector."""
    model = save_model("qwen3", folder / "multiple")
    with table.group("MultiConnector"), world(folder, EngineOptions(model), table) as plain:
        for here in map(plain.with_connector, connectors):
            with (
                table.group("MultiConnector"),
                store(here.folder / "multiple-store", "--tier1-bytes", "256MiB") as shared,
            ):
                _second_process(here, shared, _beside_example(here, shared))


def _beside_example(world: World, store: Store) -> Setup:
    other = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(world.folder / "example")},
    }
    ours = replace(world.options, runtime_dir=store.runtime_dir).transfer_config()
    both = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [ours, other | COMMON]},
    }
    return Setup("MultiConnector", {"kv_transfer_config": both | COMMON})


def _run(
    options: EngineOptions,
    setups: Sequence[Setup],
    folder: Path,
    table: Table,
    connectors: Sequence[str],
) -> None:
    """Runs set-ups of one model beside one engine without drafts and connector."""
    name = options.model.name
    with table.group(name), world(folder, options, table) as plain:
        for here in map(plain.with_connector, connectors):
            with store(here.folder / f"{name}-store", "--tier1-bytes", "512MiB") as shared:
                for setup in setups:
                    with table.group(setup.name):
                        _second_process(here, shared, setup)


def _second_process(world: World, store: Store, setup: Setup) -> None:
    """Asks one engine and then, in another process, a second one."""
    asked = list(setup.asked)
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
        settled(case, store)
        counts = world.check(case, second, asked)
        page_tokens = setup.page_tokens or _page_tokens(store)
        expected = setup.wholes(page_tokens)
        case.require(case.loaded == expected, f"loaded {case.loaded} of {expected} tokens")
        accepted = round(counts.get("vllm:spec_decode_num_accepted_tokens"))
        if "speculative_config" in arguments:
            case.note = f"{accepted} drafted tokens accepted"
        case.require(accepted > 0 or not setup.accepts, "no draft was accepted")
        if setup.drops_last:
            _last_pages(world, case, second, setup, page_tokens)
    if setup.controlled:
        with world.engine(f"{stem}-faulty", store, arguments=arguments, wrong_page=True) as faulty:
            wrong_page(world, store, faulty, f"{setup.name}: a wrong page is seen", setup.asked)


def _page_tokens(store: Store) -> int:
    """Returns the size of the pages in a store's only namespace."""
    [namespace] = store.stats().namespaces
    return namespace.layout.page_tokens


def _last_pages(world: World, case: Case, engine: Engine, setup: Setup, page_tokens: int) -> None:
    """Requires that the store gives the pages that vLLM's own prefix cache leaves out."""
    asked = list(setup.asked)
    before = case.loaded
    counts = world.check(case, engine, asked)
    local = round(counts.labelled("vllm:prompt_tokens_by_source", "local_cache_hit"))
    left_out = page_tokens * len(asked)
    case.require(local == setup.wholes(page_tokens) - left_out, f"{local} tokens were local")
    loaded = case.loaded - before
    case.require(loaded == left_out, f"loaded {loaded} of {left_out} tokens")


SETUPS: Mapping[str, Callable[[Path, Table, Sequence[str]], None]] = {
    "speculative": speculative,
    "windows": windows,
    "states": states,
    "multiple": beside_another,
}
