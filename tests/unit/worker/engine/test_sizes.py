"""The device bounds an engine's sizes unless a setting states them."""

import pytest
import torch

from inference_worker.engine.engine import Engine, longest_sequence, longest_within, step_tokens
from inference_worker.model.model import PagedModel
from inference_worker.pages.layout import PageLayout

GIB = 1 << 30
QWEN3_8B = PageLayout(36, 8, 128, "bfloat16", 16)
TINY = PageLayout(2, 1, 16, "bfloat16", 16)


@pytest.mark.parametrize(
    ("layout", "device_bytes", "wanted"),
    [
        (QWEN3_8B, 140 * GIB, 29_120),
        (QWEN3_8B, 24 * GIB, 10_912),
        (TINY, 24 * GIB, 40_960),
        (QWEN3_8B, 1, 16),
    ],
    ids=["H200", "24 GiB", "a small model", "at least a page"],
)
def test_a_gpu_bounds_the_longest_sequence(
    layout: PageLayout, device_bytes: int, wanted: int
) -> None:
    """The private arena takes at most 4 GiB or a sixteenth of the memory, but at least one page."""
    found = longest_within(40_960, layout, device_bytes)
    assert found == wanted
    taken = layout.pages_for(found) * layout.page_bytes
    assert taken <= max(layout.page_bytes, min(4 * GIB, device_bytes // 16))


def test_a_step_is_longer_on_a_gpu() -> None:
    """A GPU's step has 4096 tokens, because a step of few tokens is shorter than its launches."""
    assert (step_tokens(torch.device("cpu")), step_tokens(torch.device("cuda", 0))) == (512, 4096)


def test_an_engine_on_a_cpu_takes_the_model_s_longest(
    paged_models: dict[str, PagedModel],
) -> None:
    """A CPU takes the model's longest, because memory is allocated on use, or the setting's."""
    model = paged_models["qwen3"]
    assert longest_sequence(model, 16) == Engine(model, None).longest == model.max_tokens
    assert Engine(model, None, longest=77).longest == 77
