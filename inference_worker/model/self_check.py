"""The check of every loaded model: its paged forward against its plain forward."""

from typing import Final, Protocol

import torch
from transformers import PreTrainedModel

from inference_worker.attention.step import Step, StepPart
from inference_worker.errors import SelfCheckError, UnsupportedModelError
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.pool import PagePool
from inference_worker.pages.private_arena import PRIVATE_EXTENT, PrivateArena
from kvstore_transformers.model_probe import ModelShape

PAGE_TOKENS: Final = 16
SHORTEST: Final = 48
# Longer windows are only read from the configuration: 1,024 tokens take seconds on a CPU.
LONGEST_WINDOW: Final = 1024
# Tokens beyond the window, so that some positions do not see the first tokens.
BEYOND: Final = 24
# The largest allowed difference of a row of logits: root mean square, as a share of their standard
# deviation. Measured: for correct models 5e-6 in float32, and 0.01 to 0.03 in bfloat16, more with
# more layers (36 at most). For a window that is ignored or one token too wide: 0.35 and more.
TOLERANCE: Final = {torch.float32: 3e-4, torch.bfloat16: 8e-2, torch.float16: 1e-2}


class PagedForward(Protocol):
    """A forward pass over pages, as ``PagedModel.forward``."""

    def __call__(self, step: Step, input_ids: torch.Tensor) -> torch.Tensor:
        """Computes a step; returns float32 logits ``[rows, vocabulary]``."""
        ...


def stock_rows(module: PreTrainedModel, ids: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Returns the plain forward's float32 logits of some rows: ``[rows, vocabulary]``."""
    with torch.inference_mode():
        keep = torch.tensor(rows, dtype=torch.int64, device=module.device)
        answer = module(input_ids=ids.unsqueeze(0), use_cache=False, logits_to_keep=keep)
    logits: torch.Tensor = answer.logits
    return logits[0].float()


def check_length(shape: ModelShape) -> int:
    """Returns how many tokens the check computes: more than the window, unless it is long."""
    windows = [w for w in shape.windows if w is not None and w <= LONGEST_WINDOW]
    return max([SHORTEST, *(w + BEYOND for w in windows)])


def check_ids(count: int, vocabulary: int, device: torch.device) -> torch.Tensor:
    """Returns ``count`` token ids, spread over the vocabulary and always the same."""
    return (torch.arange(count, device=device) * 7919 + 13) % vocabulary


def check_paged(
    module: PreTrainedModel,
    forward: PagedForward,
    pool: PagePool,
    ids: torch.Tensor,
    expected: torch.Tensor,
    rows: list[int],
) -> None:
    """Computes ``ids`` in steps that end at ``rows`` and compares them with the plain forward.

    Adds the private extent to ``pool`` and removes it again. Raises ``SelfCheckError`` if any row
    differs by more than rounding.
    """
    arena = PrivateArena(pool.layout, ids.shape[0], pool.device)
    table = BlockTable(pool.layout.page_tokens, arena.allocate(arena.slot_count))
    pool.add_extent(PRIVATE_EXTENT, arena.tensor)
    worst, start = 0.0, 0
    for row, wanted in zip(rows, expected, strict=True):
        part = StepPart(table=table, start=start, count=row + 1 - start)
        got = forward(Step(pool, (part,)), ids[start : row + 1])[0]
        difference = (got - wanted).square().mean().sqrt() / wanted.std()
        worst = max(worst, float(torch.nan_to_num(difference, nan=torch.inf)))
        start = row + 1
    pool.remove_extent(PRIVATE_EXTENT)
    if worst > TOLERANCE[getattr(torch, pool.layout.dtype)]:
        reason = f"its logits differ from the plain forward's by {worst:.1e} of their deviation"
        raise SelfCheckError(str(module.config.model_type), reason)


def check_exact(model_type: str, forward: PagedForward, pool: PagePool, ids: torch.Tensor) -> None:
    """Computes a sequence in several places of a step, beside others, and compares all bits.

    Adds the private extent to ``pool`` and removes it again. Raises ``UnsupportedModelError`` if a
    row depends on its place or on the other rows.
    """
    count = SHORTEST // 2
    pages = pool.layout.pages_for(count)
    arena = PrivateArena(pool.layout, 2 * pages * pool.layout.page_tokens, pool.device)
    pool.add_extent(PRIVATE_EXTENT, arena.tensor)
    own, other = (BlockTable(pool.layout.page_tokens, arena.allocate(pages)) for _ in range(2))
    answers = []
    for before in range(0, count, 5):
        arena.tensor.zero_()
        parts = [StepPart(table=own, start=0, count=count)]
        if before:
            parts.insert(0, StepPart(table=other, start=0, count=before, wants_logits=False))
        taken = torch.cat([ids[-before:][:before], ids[:count]])
        logits = forward(Step(pool, tuple(parts)), taken)
        answers.append([logits, *(pool.page(page).clone() for page in own)])
    pool.remove_extent(PRIVATE_EXTENT)
    for answer in answers[1:]:
        for mine, theirs in zip(answer, answers[0], strict=True):
            if not torch.equal(mine, theirs):
                reason = "on this machine a row's numbers depend on the other rows"
                raise UnsupportedModelError(model_type, f"deterministic: {reason}")
