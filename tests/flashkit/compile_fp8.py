"""Compile the FP8 forward for sm_90a, where no GPU need be, and print what ptxas says of it.

python compile_fp8.py D: one JSON line with registers, spilled bytes and warnings. Not a test by
itself: a process decides once whether Triton interprets or compiles.
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

from flashkit.kernels.fp8 import CONFIGS, Config, _fp8_fwd_kernel  # noqa: E402
from flashkit.kernels.quantize import BLOCK  # noqa: E402

TOOLS = Path(nvidia.__file__).parent / "bin"


def build(d: int, config: Config, causal: bool):
    """The kernel for contiguous bfloat16 tensors, compiled."""
    names = _fp8_fwd_kernel.arg_names
    constants = {"CAUSAL": causal, "WINDOW": 0, "D": d, "BLOCK": BLOCK, "BLOCK_D": d}
    constants |= {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
    constants |= {"stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    tiles = {"q": (config.block_m, d), "k": (config.block_n, d), "v": (d, config.block_n)}
    types = dict.fromkeys(names, "i32") | {"scale2": "fp32", "o_ptr": "*bf16", "lse_ptr": "*fp32"}
    for name, (rows, columns) in tiles.items():
        types |= {name: f"tensordesc<fp8e4nv[1,1,{rows},{columns}]>"}
        types |= {f"{name}_ptr": "*bf16", f"{name}_scales": "*fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name not in constants and name.endswith(("_ptr", "_scales")) or "stride" in name
    }
    source = ASTSource(_fp8_fwd_kernel, types, constants, aligned)
    options = {"num_warps": config.warps, "num_stages": config.stages, "maxnreg": config.registers}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def facts(d: int, config: Config, causal: bool = True) -> dict:
    """What ptxas says of it, and what stands in its machine code."""
    kernel = build(d, config, causal)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        ptx.write_text(kernel.asm["ptx"])
        command = [TOOLS / "ptxas", "-v", "-arch=sm_90a", ptx, "-o", cubin]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        command = [TOOLS / "nvdisasm", "-c", cubin]
        code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {
        "registers": int(re.search(r"Used (\d+) registers", report).group(1)),
        "spilled": int(re.search(r"(\d+) bytes spill stores", report).group(1)),
        "shared": kernel.metadata.shared,
        "serialised": sorted(set(re.findall(r"C75\d\d", report))),
        "fp8 products": len(re.findall(r"QGMMA\S*E4M3", code)),
    }


if __name__ == "__main__":
    head_dim = int(sys.argv[1])
    print(json.dumps(facts(head_dim, CONFIGS[head_dim])))
