"""Compile the kernels for a Hopper GPU, which takes no GPU, and print what instructions came out.

Run as a program: one JSON object of instruction counts for each kernel, by its name.
"""

import json
import re
import sys
from collections import Counter
from typing import Any

from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inference_worker import page_kernels

HOPPER = GPUTarget("cuda", 90, 32)
INSTRUCTION = re.compile(
    r"\b(ld\.global(?:\.\w+)*|st\.global(?:\.\w+)*|cp\.async\.c[ag]\S*|wgmma\.mma_async|mma\.sync)"
)
# A model of 32 heads on 8, of 128 values each, as Qwen3 has them.
SHAPE = {"KV_HEADS": 8, "HEAD_DIM": 128, "DIMS": 128, "PAGE_TOKENS": 16, "UNIT": 8}
TABLES = dict.fromkeys(("pages", "spots", "entries", "merges"), "*i64")
PARTIAL = dict.fromkeys(("sums", "peaks"), "*fp32")
NUMBERS = dict.fromkeys(("layer", "window"), "i32")
FACTORS = dict.fromkeys(("scale", "softcap"), "fp32")
STRIDES = dict.fromkeys(
    [f"{what}_{of}_stride" for what in ("query", "key", "value") for of in ("token", "head")], "i32"
)


def instructions(kernel: Any, constants: dict[str, Any], warps: int) -> Counter[str]:  # noqa: ANN401 - Triton's own type
    """Compile a kernel for bfloat16 pages."""
    known = {**TABLES, **PARTIAL, **NUMBERS, **FACTORS, **STRIDES}
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else known.get(name, "*bf16") for name in names
    }
    aligned = [
        (names.index(name),)
        for name, type_ in signature.items()
        if (type_.startswith("*") and type_ != "*i64") or name in STRIDES
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={where: [["tt.divisibility", 16]] for where in aligned},
    )
    made = compile_kernel(source, target=HOPPER, options={"num_warps": warps, "num_stages": 3})
    assert made.asm["cubin"]
    return Counter(INSTRUCTION.findall(made.asm["ptx"]))


def attend(rows: int, warps: int) -> Counter[str]:
    """Compile the attention, plain, for tiles of ``rows``."""
    flags = dict.fromkeys(("HAS_WINDOW", "HAS_SOFTCAP", "HAS_SINKS"), False)
    sizes = {"GROUP": 4, "ROWS": rows, "KEYS": 64, "PRECISION": "tf32x3"}
    return instructions(page_kernels.attend_pages, {**SHAPE, **flags, **sizes}, warps)


def main() -> None:
    """Print the counts."""
    write = {**SHAPE, "HEADS": 8}
    merge = {"HEADS": 32, "HEAD_DIM": 128, "DIMS": 128, "SPLITS": 32}
    found = {
        "prefill": attend(128, 8),
        "decode": attend(16, 8),
        "write": instructions(page_kernels.write_rows, write, 4),
        "merge": instructions(page_kernels.merge_splits, merge, 4),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
