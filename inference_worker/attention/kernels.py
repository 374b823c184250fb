"""Triton kernels that write and read keys and values in place, in pages of any extent.

A page's distance is an ``int64``: how far it is from ``base``, in units of 16 bytes. Extents are
separate allocations, so no tensor spans them, and ``base`` is any address of the same device. The
kernel multiplies a distance by the unit, so the compiler knows that the result is a multiple of 16
bytes and moves 16 bytes with each instruction. An address read from memory would not tell it that.

:mod:`~inference_worker.attention.step_tables` makes the tables. No value that differs between steps
or layers is a compile-time constant, so no request waits for a compiler. The kernels need a GPU; on
a CPU they run in Triton's interpreter, for tests.
"""

import triton
import triton.language as tl

# Softmax in powers of two, which the hardware has an instruction for.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["layer"], do_not_specialize_on_alignment=["spots"])
def write_rows(
    base,
    pages,
    spots,
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
    """Writes one token's keys and values into its page: grid ``(tokens,)``.

    ``spots[token]`` is the token's place in all rows of ``pages``, counted in tokens. ``HEADS``
    and ``DIMS`` are the next powers of two.
    """
    token = tl.program_id(0).to(tl.int64)
    plane: tl.constexpr = PAGE_TOKENS * KV_HEADS * HEAD_DIM
    spot = tl.load(spots + token)
    page = tl.load(pages + spot // PAGE_TOKENS)
    row = page * UNIT + layer.to(tl.int64) * (2 * plane)
    row += (spot % PAGE_TOKENS) * (KV_HEADS * HEAD_DIM)
    head = tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, DIMS)[None, :]
    used = (head < KV_HEADS) & (dim < HEAD_DIM)
    inside = head * HEAD_DIM + dim
    keys = tl.load(key + token * key_token_stride + head * key_head_stride + dim, mask=used)
    values = tl.load(value + token * value_token_stride + head * value_head_stride + dim, mask=used)
    tl.store(base + row + inside, keys, mask=used)
    tl.store(base + row + plane + inside, values, mask=used)


@triton.jit(do_not_specialize=["layer", "window"], do_not_specialize_on_alignment=["entries"])
def attend_pages(
    answer,
    sums,
    peaks,
    query,
    base,
    pages,
    entries,
    sinks,
    layer,
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
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attends causally with the queries of one entry, to its keys: grid ``(entries * kv heads,)``.

    An entry (:class:`~inference_worker.attention.step_tables.WorkList`) is a tile of up to ``ROWS

    GROUP`` neighbouring queries of one part, and a share of the tile's keys. All query heads that
    share a kv head are further rows of the tile. Neighbouring programs read the kv heads of the
    same pages.

    A complete result goes to ``answer`` ``[tokens, heads, dim]``. A partial one goes to ``sums``
    ``[partials, heads, dim]``, values before the division, and to ``peaks`` ``[partials, heads,
    2]``: the largest score and the sum of the weights, in powers of two.
    """
    program = tl.program_id(0)
    kv_head = program % KV_HEADS
    entry = entries + (program // KV_HEADS).to(tl.int64) * 8
    plane: tl.constexpr = PAGE_TOKENS * KV_HEADS * HEAD_DIM
    heads: tl.constexpr = KV_HEADS * GROUP
    first_token = tl.load(entry)
    start = tl.load(entry + 1).to(tl.int32)
    count = tl.load(entry + 2).to(tl.int32)
    table = pages + tl.load(entry + 3)
    begin = tl.load(entry + 4).to(tl.int32)
    end = tl.load(entry + 5).to(tl.int32)

    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIMS)
    position = start + row // GROUP
    is_query = row < count * GROUP
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    own = token[:, None] * query_token_stride + head[:, None] * query_head_stride + dim[None, :]
    used = is_query[:, None] & (dim < HEAD_DIM)[None, :]
    asked = tl.load(query + own, mask=used, other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        # A sink is one more score, without a value; the share with the first keys counts it.
        is_first = tl.load(entry + 7) == 1
        sink = tl.load(sinks + head, mask=is_query, other=0.0).to(tl.float32) * LOG2_E
        largest = tl.where(is_first, sink, largest)
        weight = tl.where(is_first, 1.0, weight)
    total = tl.zeros([ROWS, DIMS], tl.float32)

    for key in range(begin, end, KEYS):
        at = key + tl.arange(0, KEYS)
        there = at < end
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

    slot = tl.load(entry + 6)
    if slot >= 0:
        line = (slot + row // GROUP) * heads + head
        tl.store(sums + line[:, None] * HEAD_DIM + dim[None, :], total, mask=used)
        tl.store(peaks + 2 * line, largest, mask=is_query)
        tl.store(peaks + 2 * line + 1, weight, mask=is_query)
    else:
        total = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
        line = token * heads + head
        out = answer + line[:, None] * HEAD_DIM + dim[None, :]
        tl.store(out, total.to(answer.dtype.element_ty), mask=used)


@triton.jit(do_not_specialize_on_alignment=["merges"])
def merge_splits(
    answer,
    sums,
    peaks,
    merges,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Merges the partial results of one head of one token: grid ``(merges * heads,)``.

    A merge is one of :class:`~inference_worker.attention.step_tables.WorkList`. Loads ``SPLITS``
    partial results at once, all peaks as one vector. The number of partial results is no
    compile-time constant.
    """
    program = tl.program_id(0)
    head = program % HEADS
    merge = merges + (program // HEADS).to(tl.int64) * 4
    token = tl.load(merge)
    first = tl.load(merge + 1)
    stride = tl.load(merge + 2)
    count = tl.load(merge + 3).to(tl.int32)
    dim = tl.arange(0, DIMS)
    used = dim < HEAD_DIM
    largest = tl.full([], float("-inf"), tl.float32)
    weight = tl.zeros([], tl.float32)
    total = tl.zeros([DIMS], tl.float32)
    for merged in range(0, count, SPLITS):
        split = merged + tl.arange(0, SPLITS)
        there = split < count
        line = (first + split * stride) * HEADS + head
        its_largest = tl.load(peaks + 2 * line, mask=there, other=float("-inf"))
        its_weight = tl.load(peaks + 2 * line + 1, mask=there, other=0.0)
        values = tl.load(
            sums + line[:, None] * HEAD_DIM + dim[None, :],
            mask=there[:, None] & used[None, :],
            other=0.0,
        )
        now = tl.maximum(largest, tl.max(its_largest, 0))
        shift = tl.where(now == float("-inf"), 0.0, now)
        kept = tl.exp2(largest - shift)
        its_share = tl.exp2(its_largest - shift)
        weight = weight * kept + tl.sum(its_weight * its_share, 0)
        total = total * kept + tl.sum(values * its_share[:, None], 0)
        largest = now
    total = total / tl.where(weight == 0.0, 1.0, weight)
    out = answer + (token * HEADS + head) * HEAD_DIM + dim
    tl.store(out, total.to(answer.dtype.element_ty), mask=used)
