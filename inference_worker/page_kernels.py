"""Triton kernels that write and read keys and values where they lie, in pages of any extent.

A place in memory is an ``int64``: how far it is from ``base``, in units of 16 bytes. Extents are
allocations of their own, so no tensor spans them; any tensor of theirs will do as ``base``. Since
a place is multiplied by the unit, the compiler knows that it is a multiple of 16 bytes and moves
16 bytes with each instruction, which it could not know of an address read from memory.

The tables are those of :class:`~inference_worker.kernel_attention.KernelAttention`. What differs
from one step or layer to the next is not compiled for, so that no request waits for a compiler.
Only for machines with a GPU: on a CPU these run in Triton's interpreter, for tests.
"""

import triton
import triton.language as tl

# Softmax in powers of two, which the hardware has an instruction for.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["layer"], do_not_specialize_on_alignment=["places"])
def write_rows(
    base,
    places,
    key,
    value,
    layer,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    UNIT: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Put one token's keys and values into its page: grid ``(tokens,)``.

    ``places[token]`` is where the token's keys of layer 0 lie. ``HEADS`` and ``DIMS`` are the
    next powers of two.
    """
    token = tl.program_id(0).to(tl.int64)
    plane: tl.constexpr = PAGE_TOKENS * KV_HEADS * HEAD_DIM
    row = tl.load(places + token) * UNIT + layer.to(tl.int64) * (2 * plane)
    head = tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, DIMS)[None, :]
    used = (head < KV_HEADS) & (dim < HEAD_DIM)
    inside = head * HEAD_DIM + dim
    keys = tl.load(key + token * key_token_stride + head * key_head_stride + dim, mask=used)
    values = tl.load(value + token * value_token_stride + head * value_head_stride + dim, mask=used)
    tl.store(base + row + inside, keys, mask=used)
    tl.store(base + row + plane + inside, values, mask=used)


@triton.jit(
    do_not_specialize=["layer", "split_count", "token_count", "window"],
    do_not_specialize_on_alignment=["pages", "parts", "tiles"],
)
def attend_pages(
    answer,
    sums,
    peaks,
    query,
    base,
    pages,
    parts,
    tiles,
    sinks,
    layer,
    split_count,
    token_count,
    window,
    scale,
    softcap,
    query_token_stride,
    query_head_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    UNIT: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend causally with one tile of queries: grid ``(tiles, kv heads, splits)``.

    A tile is ``ROWS // GROUP`` neighbouring queries of one part, with all query heads that share
    a kv head as further rows. Each split takes its share of the tile's keys. With one split the
    answer ``[tokens, heads, dim]`` is written; with several ``sums``, ``[splits, tokens, heads,
    dim]`` of values that nothing is divided by yet, and ``peaks``, ``[splits, tokens, heads, 2]``:
    the largest score and the sum of the weights, both in powers of two.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    plane: tl.constexpr = PAGE_TOKENS * KV_HEADS * HEAD_DIM
    heads: tl.constexpr = KV_HEADS * GROUP
    queries: tl.constexpr = ROWS // GROUP
    part = tl.load(tiles + 2 * tile)
    first = tl.load(tiles + 2 * tile + 1).to(tl.int32)
    begin = tl.load(parts + 4 * part)
    start = tl.load(parts + 4 * part + 1).to(tl.int32)
    end = tl.load(parts + 4 * part + 2).to(tl.int32)
    table = pages + tl.load(parts + 4 * part + 3)

    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIMS)
    position = start + first + row // GROUP
    is_query = (row < queries * GROUP) & (position < end)
    token = begin + first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    own = token[:, None] * query_token_stride + head[:, None] * query_head_stride + dim[None, :]
    used = is_query[:, None] & (dim < HEAD_DIM)[None, :]
    asked = tl.load(query + own, mask=used, other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        # A sink is one more score, without a value; the first split counts it.
        sink = tl.load(sinks + head, mask=is_query, other=0.0).to(tl.float32) * LOG2_E
        largest = tl.where(split == 0, sink, largest)
        weight = tl.where(split == 0, 1.0, weight)
    total = tl.zeros([ROWS, DIMS], tl.float32)

    behind = tl.minimum(start + first + queries, end)
    lowest = 0
    if HAS_WINDOW:
        lowest = tl.maximum(start + first - window + 1, 0) // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(behind - lowest, KEYS), split_count) * KEYS
    since = lowest + split * share
    for key in range(since, tl.minimum(since + share, behind), KEYS):
        at = key + tl.arange(0, KEYS)
        there = at < behind
        page = tl.load(table + at // PAGE_TOKENS, mask=there, other=0)
        place = page * UNIT + layer.to(tl.int64) * (2 * plane)
        place += (at % PAGE_TOKENS) * (KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        keys = tl.load(
            base + place[None, :] + dim[:, None],
            mask=there[None, :] & (dim < HEAD_DIM)[:, None],
            other=0.0,
        )
        score = tl.dot(asked, keys, input_precision=PRECISION) * scale
        if HAS_SOFTCAP:
            # tanh, without an overflow at either end
            score = softcap * (1.0 - 2.0 / (tl.exp2(score * (2.0 * LOG2_E) / softcap) + 1.0))
        seen = at[None, :] <= position[:, None]
        if HAS_WINDOW:
            seen = seen & (at[None, :] > position[:, None] - window)
        score = tl.where(seen, score * LOG2_E, float("-inf"))
        now = tl.maximum(largest, tl.max(score, 1))
        # A row that has seen no key yet has no largest score to subtract.
        shift = tl.where(now == float("-inf"), 0.0, now)
        share_of = tl.exp2(score - shift[:, None])
        kept = tl.exp2(largest - shift)
        weight = weight * kept + tl.sum(share_of, 1)
        values = tl.load(
            base + place[:, None] + plane + dim[None, :],
            mask=there[:, None] & (dim < HEAD_DIM)[None, :],
            other=0.0,
        )
        total = total * kept[:, None]
        total = tl.dot(share_of.to(values.dtype), values, total, input_precision=PRECISION)
        largest = now

    if IS_SPLIT:
        line = (split.to(tl.int64) * token_count + token) * heads + head
        tl.store(sums + line[:, None] * HEAD_DIM + dim[None, :], total, mask=used)
        tl.store(peaks + 2 * line, largest, mask=is_query)
        tl.store(peaks + 2 * line + 1, weight, mask=is_query)
    else:
        total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
        line = token * heads + head
        out = answer + line[:, None] * HEAD_DIM + dim[None, :]
        tl.store(out, total.to(answer.dtype.element_ty), mask=used)


@triton.jit(do_not_specialize=["split_count", "line_count"])
def merge_splits(
    answer,
    sums,
    peaks,
    split_count,
    line_count,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Put the splits' sums together: grid ``(tokens * heads,)``, one line of values each."""
    line = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, DIMS)
    used = dim < HEAD_DIM
    largest = tl.full([], float("-inf"), tl.float32)
    weight = tl.zeros([], tl.float32)
    total = tl.zeros([DIMS], tl.float32)
    for split in range(split_count):
        found = split * line_count + line
        its_largest = tl.load(peaks + 2 * found)
        now = tl.maximum(largest, its_largest)
        shift = tl.where(now == float("-inf"), 0.0, now)
        kept = tl.exp2(largest - shift)
        its_share = tl.exp2(its_largest - shift)
        weight = weight * kept + tl.load(peaks + 2 * found + 1) * its_share
        values = tl.load(sums + found * HEAD_DIM + dim, mask=used, other=0.0)
        total = total * kept + values * its_share
        largest = now
    total = total / tl.where(weight == 0.0, 1.0, weight)
    tl.store(answer + line * HEAD_DIM + dim, total.to(answer.dtype.element_ty), mask=used)
