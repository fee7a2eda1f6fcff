"""Compile the tuned forward for sm_90a, where no GPU need be, and print what ptxas says of it.

python compile_tuned.py DTYPE D: one JSON line with registers, spilled bytes and the whole report.
Not a test by itself: a process decides once whether Triton interprets or compiles.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"

import triton  # noqa: E402
from triton.backends import nvidia  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from flashkit.kernels.forward_config import HOPPER  # noqa: E402
from flashkit.kernels.forward_tuned import _tuned_fwd_kernel  # noqa: E402

PTXAS = Path(nvidia.__file__).parent / "bin" / "ptxas"
DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}


def signature(dtype: str, d: int, config) -> tuple[dict, dict, dict]:
    """Types, constants and alignments of a causal call on contiguous tensors."""
    constants = {"CAUSAL": True, "WINDOW": 0, "TMA": True, "D": d}
    constants |= {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_D": d}
    constants |= {"stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    types = dict.fromkeys(_tuned_fwd_kernel.arg_names, "i32")
    types |= {"scale2": "fp32", "o_ptr": f"*{dtype}", "lse_ptr": "*fp32"}
    for name, rows in zip("qkv", (config.block_m, config.block_n, config.block_n), strict=True):
        types |= {name: f"tensordesc<{dtype}[1,1,{rows},{d}]>", f"{name}_ptr": f"*{dtype}"}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(_tuned_fwd_kernel.arg_names)
        if name not in constants and (name.endswith("_ptr") or name.startswith("stride"))
    }
    return types, constants, aligned


def judge(source: ASTSource, options: dict) -> dict:
    """Registers, spilled bytes and the whole report of ptxas, or what is missing for it."""
    if not PTXAS.exists():
        return {"missing": "ptxas"}
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as ptx:
        ptx.write(kernel.asm["ptx"])
        ptx.flush()
        command = [PTXAS, "-v", "-arch=sm_90a", ptx.name, "-o", os.devnull]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spilled = max(int(n) for n in re.findall(r"(\d+) bytes spill", report))
    registers = max(int(n) for n in re.findall(r"Used (\d+) registers", report))
    return {"registers": registers, "spilled": spilled, "report": report}


def main(dtype: str, d: int) -> None:
    config = HOPPER[DTYPES[dtype], d]
    source = ASTSource(_tuned_fwd_kernel, *signature(dtype, d, config))
    options = {"num_warps": config.warps, "num_stages": config.stages, "maxnreg": config.registers}
    print(json.dumps(judge(source, options)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
