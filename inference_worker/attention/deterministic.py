"""The deterministic mode: a sequence's bits do not depend on what else is computed.

Attention runs in whole pieces whose sizes depend only on their place in the sequence. Forwards
always have the same number of rows.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import torch
from transformers import PreTrainedConfig

from inference_worker.attention.attention import Terms
from inference_worker.attention.dense import attend_piece, lowest_seen, piece_mask
from inference_worker.attention.step import Step, StepPart
from inference_worker.errors import UnsupportedModelError
from inference_worker.pages.extents import ExtentRows

# Queries that attend at once; a piece begins at a multiple of this in its sequence.
PIECE_TOKENS: Final = 16


class _Piece(NamedTuple):
    """Tokens ``part`` of a sequence, at ``rows`` of the step, in the piece from ``first`` on."""

    part: StepPart
    rows: slice
    first: int


class _Keys(NamedTuple):
    """The keys that a piece reads in a layer of some window, and their mask."""

    pages: ExtentRows
    tokens: slice
    padded_count: int
    mask: torch.Tensor | None


class ExactAttention:
    """Attention whose result depends, to the bit, only on the query and the keys that it sees.

    Each piece has its full number of queries, and of keys up to its end. Positions that are not
    computed, or not there yet, are zeros that no query sees. So every tensor has the same shape and
    strides whatever else is in the step. Rows after the step's tokens are padding, and their answer
    is zeros. One engine thread uses it, for one step.
    """

    def __init__(self, step: Step) -> None:
        """Attends for the parts of ``step``."""
        self._step = step
        self._writes = step.pool.token_rows((p.table, p.start, p.end) for p in step.parts)
        self._pieces: list[_Piece] = []
        begin = 0
        for part in step.parts:
            for first in range(part.start // PIECE_TOKENS * PIECE_TOKENS, part.end, PIECE_TOKENS):
                start, end = max(part.start, first), min(part.end, first + PIECE_TOKENS)
                rows = slice(begin + start - part.start, begin + end - part.start)
                self._pieces.append(_Piece(part, rows, first))
            begin += part.count
        self._keys: dict[int | None, list[_Keys]] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        """Attends as :meth:`~inference_worker.attention.attention.StepAttention.attend` says."""
        pool, computed = self._step.pool, slice(self._step.token_count)
        pool.write(layer, self._writes, *(x.transpose(0, 1)[computed] for x in (key, value)))
        heads, tokens, head_dim = query.shape
        answer = query.new_zeros((tokens, heads, head_dim))
        for piece, seen in zip(self._pieces, self._seen_in(terms.window), strict=True):
            offset = max(piece.part.start - piece.first, 0)
            within = slice(offset, offset + piece.rows.stop - piece.rows.start)
            queries = query.new_zeros((heads, PIECE_TOKENS, head_dim))
            queries[:, within] = query[:, piece.rows]
            found = (each[seen.tokens] for each in pool.gather(layer, seen.pages))
            keys, values = (_padded(each, seen.padded_count) for each in found)
            attended = attend_piece(queries, keys, values, seen.mask, terms)
            answer[piece.rows] = attended[:, within].transpose(0, 1)
        return answer

    def _seen_in(self, window: int | None) -> list[_Keys]:
        """Returns what the pieces read in layers of this window; computed once a step."""
        if window not in self._keys:
            self._keys[window] = [self._keys_of(piece, window) for piece in self._pieces]
        return self._keys[window]

    def _keys_of(self, piece: _Piece, window: int | None) -> _Keys:
        pool, table = self._step.pool, piece.part.table
        end = piece.first + PIECE_TOKENS
        lowest, highest = lowest_seen(piece.first, window), min(end, piece.part.end)
        first_page = lowest // table.page_tokens
        pages = slice(first_page, pool.layout.pages_for(highest))
        skipped = lowest - first_page * table.page_tokens
        return _Keys(
            pool.page_rows(table.extents[pages], table.slots[pages]),
            slice(skipped, skipped + highest - lowest),
            end - lowest,
            piece_mask(pool, piece.first, end, lowest, window),
        )


def _padded(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Copies ``[tokens, kv_heads, dim]`` and appends zeros."""
    padded = tokens.new_zeros((count, *tokens.shape[1:]))
    padded[: tokens.shape[0]] = tokens
    return padded


# Rows of each forward: fewer make prompts slower, more make small batches of decodes slower.
FORWARD_ROWS: Final = 32
# Part of the digest: grows with each change that gives other bits.
VERSION: Final = 1
WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
# The two values of cuBLAS' documentation: they use 24 MiB and 200 KiB of the device.
FIXED_WORKSPACES: Final = (":4096:8", ":16:8")
EXPERT_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")


def forwards_of(step: Step) -> Iterator[Step]:
    """Cuts a step into steps of ``FORWARD_ROWS`` tokens, and a last one with the rest.

    If logits of a part are wanted, they are those of its last row, in the same order as before.
    """
    taken: list[StepPart] = []
    room = FORWARD_ROWS
    for part in step.parts:
        start = part.start
        while start < part.end:
            count = min(room, part.end - start)
            wants = part.wants_logits and start + count == part.end
            taken.append(replace(part, start=start, count=count, wants_logits=wants))
            start += count
            room -= count
            if not room:
                yield Step(step.pool, tuple(taken))
                taken, room = [], FORWARD_ROWS
    if taken:
        yield Step(step.pool, tuple(taken))


def filled(numbers: torch.Tensor) -> torch.Tensor:
    """Appends zeros to int64 ``[tokens]``, up to ``FORWARD_ROWS``."""
    return torch.nn.functional.pad(numbers, (0, FORWARD_ROWS - numbers.shape[-1]))


class RowByRow(torch.nn.Module):
    """A language model's head that computes each row by itself, as its only row."""

    def __init__(self, head: torch.nn.Module) -> None:
        """Takes the head of a model."""
        super().__init__()
        self._head = head

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the logits of ``[1, rows, hidden]``."""
        # A clone begins at the same alignment in memory for every row.
        each = [self._head(row.clone()) for row in rows.split(1, dim=1)]
        return torch.cat(each, dim=1) if each else self._head(rows)


def exact_digest(digest: str, device: torch.device) -> str:
    """Returns the digest of a deterministic model, 64 hexadecimal digits: the key for sharing bits.

    Another number of threads, version of torch or model of processor gives other bits, and so
    another digest. So does another model of GPU, version of CUDA or workspace of cuBLAS. Hosts that
    share pages therefore share those of equal machines alone.
    """
    where = (
        f"{_device_name(device)} {torch.__version__} {torch.backends.cpu.get_cpu_capability()} "
        f"{processor()} {torch.get_num_threads()} threads"
    )
    how = f"{FORWARD_ROWS} rows, pieces of {PIECE_TOKENS}, version {VERSION}"
    return hashlib.sha256(f"{digest} in {how}, on {where}".encode()).hexdigest()


def fix_workspace(device: torch.device) -> None:
    """Fixes cuBLAS's workspace, so that it always computes the same bits. Call before CUDA starts.

    cuBLAS chooses among workspaces unless ``CUBLAS_WORKSPACE_CONFIG`` fixes one, and its results
    depend on the choice (cuBLAS documentation, "Results reproducibility"). Does nothing for a CPU.
    Raises ``ValueError`` if the variable has another value, or if CUDA has already started without
    it.
    """
    if device.type != "cuda" or os.environ.get(WORKSPACE) in FIXED_WORKSPACES:
        return
    choices = " or ".join(f"{WORKSPACE}={each}" for each in FIXED_WORKSPACES)
    if WORKSPACE in os.environ:
        found = os.environ[WORKSPACE]
        raise ValueError(f"{WORKSPACE} is {found}: for --deterministic set {choices}")
    if torch.cuda.is_initialized():
        raise ValueError(f"CUDA has started already: for --deterministic set {choices} before it")
    os.environ[WORKSPACE] = FIXED_WORKSPACES[0]


def processor(facts: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the processor's model by the numbers that the kernel reads; its names may be vague.

    Two models of one instruction set may differ in bits: libraries choose their methods by model.
    """
    wanted = (
        *("vendor_id", "cpu family", "model", "stepping"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
    )
    first = facts.read_text(encoding="utf-8").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    found = {name.strip(): value.strip() for name, _, value in pairs}
    return " ".join(found[name] for name in wanted if name in found)


def _device_name(device: torch.device) -> str:
    """Returns a device's name, with all that its bits depend on; torch names the kind of a CPU."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    workspace = os.environ.get(WORKSPACE)
    return f"{device.type} {name} {major}.{minor} CUDA {torch.version.cuda} cuBLAS {workspace}"


def refuse_experts(config: PreTrainedConfig) -> None:
    """Raises ``UnsupportedModelError`` for a mixture of experts.

    The number of rows of an expert, and so each row's result, depends on the other rows.
    """
    if any(getattr(config, name, None) for name in EXPERT_COUNTS):
        reason = "which rows an expert gets depends on more than the tokens before them"
        raise UnsupportedModelError(str(config.model_type), f"deterministic: {reason}")
