"""Set-ups that the linker refuses, each with a sentence in the server's log."""

from dataclasses import dataclass, field, replace

from rig.engine import Engine
from rig.world import World

from engine_cases.store import Store


@dataclass(frozen=True)
class Refusal:
    """A set-up, and a part of the sentence."""

    name: str
    sentence: str
    options: dict[str, object] = field(default_factory=dict)


REFUSALS = (
    Refusal("pages of 4 tokens", "--page-size is 4", {"page_tokens": 4}),
    Refusal("an unknown setting", "linker_extra_config", {"extra": {"run_dir": "x"}}),
)


def refusals(here: World, shared: Store) -> None:
    """Starts each set-up, which must not serve."""
    for number, each in enumerate(REFUSALS):
        options = replace(here.options, runtime_dir=shared.runtime_dir, **each.options)  # type: ignore[arg-type]
        with (
            here.case(f"refused: {each.name}", shared) as case,
            Engine(f"refused-{number}", options, here.folder) as engine,
        ):
            try:
                engine.wait_healthy()
            except RuntimeError:
                case.require(each.sentence in engine.log, f"its log has no {each.sentence!r}")
            else:
                case.require(holds=False, otherwise="it serves")
