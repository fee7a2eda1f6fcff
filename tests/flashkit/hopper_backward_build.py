"""Build the Hopper backward for sm_90a, without a GPU, and say in JSON what the machine code shows.

A process of its own, as `hopper_build` is, whose tools it borrows.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import triton
from hopper_build import tool
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from flashkit.kernels import hopper_backward


def build(config, d: int, causal: bool, window: bool):
    """The kernel for bfloat16 and one head dim, in the configuration that is launched."""
    constants = hopper_backward.constants(config, d, causal, window)
    kernel = hopper_backward._hopper_bwd_kernel

    def descriptor(rows: int) -> str:
        layout = gl.NVMMASharedLayout.get_default_for([1, 1, rows, d], gl.bfloat16)
        return f"tensordesc<bf16[1, 1, {rows}, {d}],{layout!r}>"

    row = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    types = dict.fromkeys(("q_desc", "do_desc"), descriptor(config.block_m))
    types |= dict.fromkeys(("k_desc", "v_desc", "dk_desc", "dv_desc"), descriptor(64))
    types |= dict.fromkeys(
        ("lse_desc", "delta_desc"), f"tensordesc<fp32[{config.block_m}],{row!r}>"
    )
    types |= {"sum_ptr": "*fp32", "flag_ptr": "*i32", "scale": "fp32", "scale2": "fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    names = kernel.arg_names
    signature = {name: types.get(name, "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, signature, values)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def facts(config, d: int, causal: bool, window: bool) -> dict:
    """Registers, spilled bytes and warnings of ptxas."""
    kernel = build(config, d, causal, window)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        ptx.write_text(kernel.asm["ptx"])
        log = tool("ptxas", "-arch=sm_90a", "-v", str(ptx), "-o", str(cubin))
        sass = tool("nvdisasm", "-c", str(cubin))
    return {
        "spilled": int(re.search(r"(\d+) bytes spill stores", log).group(1)),
        "serialised": re.findall(r"C75\d\d.*", log),
        "shared": kernel.metadata.shared,
        "lines": len(sass.splitlines()),
    }


if __name__ == "__main__":
    head_dim, is_causal, has_window = map(int, sys.argv[1:4])
    chosen = hopper_backward.CONFIGS[head_dim]
    if len(sys.argv) > 4:
        chosen = chosen._replace(**eval(sys.argv[4]))
    print(json.dumps(facts(chosen, head_dim, bool(is_causal), bool(has_window))))
