"""Build the Gluon FP8 forward for sm_90a, without a GPU, and say in JSON what its code shows.

python fp8_build.py D CAUSAL: see `hopper_build`, whose reading of the machine code this shares.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import hopper_build
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from flashkit.kernels import fp8_hopper


def build(d: int, causal: bool):
    """The kernel for bfloat16 and one head dim, in the configuration that is launched."""
    config = fp8_hopper.CONFIGS[d]
    kernel = fp8_hopper._fp8_hopper_fwd_kernel

    def descriptor(rows: int, columns: int, kind, name: str) -> str:
        layout = gl.NVMMASharedLayout.get_default_for([1, 1, rows, columns], kind)
        return f"tensordesc<{name}[1, 1, {rows}, {columns}],{layout!r}>"

    constants = fp8_hopper.constants(config, d, causal, False)
    types = {"q_desc": descriptor(64, d, gl.float8e4nv, "fp8e4nv"), "scale2": "fp32"}
    types |= {"k_desc": descriptor(config.block_n, d, gl.float8e4nv, "fp8e4nv")}
    types |= {"v_desc": descriptor(d, config.block_n, gl.float8e4nv, "fp8e4nv")}
    types |= {"o_desc": descriptor(64, d, gl.bfloat16, "bf16"), "lse_ptr": "*fp32"}
    types |= dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16")
    types |= dict.fromkeys(("q_scales", "k_scales", "v_scales"), "*fp32")
    types |= dict.fromkeys(constants, "constexpr")
    names = kernel.arg_names
    signature = {name: types.get(name, "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, signature, values)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def facts(d: int, causal: bool) -> dict:
    """Spilled bytes and warnings of ptxas; for each consumer what lies between its waits."""
    kernel = build(d, causal)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        ptx.write_text(kernel.asm["ptx"])
        log = hopper_build.tool("ptxas", "-arch=sm_90a", "-v", str(ptx), "-o", str(cubin))
        sass = hopper_build.tool("nvdisasm", "-c", str(cubin))
    # QGMMA is HGMMA for 8 bits
    lines = sass.replace("QGMMA", "HGMMA").splitlines()
    return {
        "spilled": int(re.search(r"(\d+) bytes spill stores", log).group(1)),
        "serialised": re.findall(r"C75\d\d.*", log),
        "fp8 products": len(re.findall(r"QGMMA\S*E4M3", sass)),
        "loops": hopper_build._loops([x for x in map(hopper_build._instruction, lines) if x]),
    }


if __name__ == "__main__":
    head_dim, is_causal = map(int, sys.argv[1:])
    print(json.dumps(facts(head_dim, bool(is_causal))))
