"""Compile the tuned decode for sm_90a, where no GPU need be, and print what it loads ahead.

python compile_decode.py PAGE...: one JSON line for each page size, 0 for a contiguous cache.
Not a test by itself: a process decides once whether Triton interprets or compiles.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "0"

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from flashkit.kernels.decode_tuned import _decode_kernel  # noqa: E402

STAGES = 3


def signature(page: int, windowed: bool) -> tuple[dict, dict, dict]:
    """Types, constants and alignments of a call with lengths on contiguous bfloat16 tensors."""
    constants = {"D": 128, "KV_HEADS": 8, "GROUP": 4, "PAGE": page, "WINDOWED": windowed}
    constants |= {"BLOCK_G": 16, "BLOCK_N": 64, "BLOCK_D": 128, "STAGES": STAGES}
    constants |= {"INDEX": tl.int32, "DEPENDENT": True, "stride_lb": 1, "stride_tp": 1}
    constants |= {"stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    constants |= {} if page else {"table_ptr": None}
    types = dict.fromkeys(_decode_kernel.arg_names, "i32")
    types |= dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16")
    types |= dict.fromkeys(("o_ptr", "lse_ptr"), "*fp32")
    types |= dict.fromkeys(("lengths_ptr", "table_ptr"), "*i32")
    types |= {"scale_log2": "fp32", **dict.fromkeys(constants, "constexpr")}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(_decode_kernel.arg_names)
        if name not in constants and (name.endswith("_ptr") or name.startswith("stride"))
    }
    return types, constants, aligned


def main(page: int, windowed: bool) -> None:
    source = ASTSource(_decode_kernel, *signature(page, windowed))
    target = GPUTarget("cuda", 90, 32)
    ptx = triton.compile(source, target=target, options={"num_warps": 4}).asm["ptx"]
    tile = 2 * 64 * 128 * 2 // (128 * 16)  # copies of 16 bytes that each of 128 threads issues
    print(json.dumps({"page": page, "tiles ahead": ptx.count("cp.async.cg") / tile - 1}))


if __name__ == "__main__":
    for size in sys.argv[1:]:
        main(int(size), windowed=False)
    main(0, windowed=True)
