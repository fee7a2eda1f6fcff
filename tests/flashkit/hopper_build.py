"""Build the Hopper forward for sm_90a, without a GPU, and say in JSON what the machine code shows.

A process of its own: tests may run under TRITON_INTERPRET, where nothing can be compiled.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from flashkit.kernels import hopper

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def build(d: int, causal: bool, window: bool):
    """The kernel for bfloat16 and one head dim, in the configuration that is launched."""
    config = hopper.CONFIGS[d]
    constants = hopper.constants(config, d, causal, window)

    def descriptor(rows: int) -> str:
        layout = gl.NVMMASharedLayout.get_default_for([1, 1, rows, d], gl.bfloat16)
        return f"tensordesc<bf16[1, 1, {rows}, {d}],{layout!r}>"

    types = {"q_desc": descriptor(64), "k_desc": descriptor(config.block_n), "scale2": "fp32"}
    types |= {"v_desc": types["k_desc"], "o_desc": types["q_desc"], "lse_ptr": "*fp32"}
    types |= dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16")
    types |= dict.fromkeys(constants, "constexpr")
    names = hopper._hopper_fwd_kernel.arg_names
    signature = {name: types.get(name, "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(hopper._hopper_fwd_kernel, signature, values)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def tool(name: str, *args: str) -> str:
    done = subprocess.run([TOOLS / name, *args], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def facts(d: int, causal: bool, window: bool) -> dict:
    """Spilled bytes and warnings of ptxas; for each consumer what lies between its waits."""
    kernel = build(d, causal, window)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        ptx.write_text(kernel.asm["ptx"])
        log = tool("ptxas", "-arch=sm_90a", "-v", str(ptx), "-o", str(cubin))
        sass = tool("nvdisasm", "-c", str(cubin))
    code = [line for line in map(_instruction, sass.splitlines()) if line]
    return {
        "spilled": int(re.search(r"(\d+) bytes spill stores", log).group(1)),
        "serialised": re.findall(r"C75\d\d.*", log),
        "loops": _loops(code),
    }


def _instruction(line: str) -> str:
    line = re.sub(r"/\*.*?\*/", "", line).strip()
    return re.sub(r"^@!?U?P\w+ ", "", line) if line.endswith(";") else ""


def _loops(code: list[str]) -> list[dict]:
    """Each consumer's main loop, found by its wait for the older of two matmuls."""
    loops = []
    for at, line in enumerate(code):
        if not re.match(r"WARPGROUP.DEPBAR.LE gsb0, 0x1\b", line):
            continue
        end = next(i for i in range(at, len(code)) if "DEPBAR.LE gsb0, 0x0" in code[i])
        begin = max(i for i in range(at) if "DEPBAR" in code[i])
        issued = [x for x in code[begin:at] if x.startswith("HGMMA")]
        weights = set()
        for x in issued:
            if from_registers := re.match(r"HGMMA\S+ R\d+, R(\d+),", x):
                first = int(from_registers.group(1))
                weights |= {f"R{first + i}" for i in range(4)}
        written = {x.split()[1].rstrip(",") for x in code[at:end] if len(x.split()) > 1}
        loops.append(
            {
                "matmuls in flight": len(issued),
                "exponentials meanwhile": sum(x.startswith("MUFU.EX2") for x in code[at:end]),
                "weights overwritten": sorted(weights & written),
                "spills": sum(x.startswith(("STL", "LDL")) for x in code[begin:end]),
            }
        )
    return loops


if __name__ == "__main__":
    head_dim, is_causal, has_window = map(int, sys.argv[1:])
    print(json.dumps(facts(head_dim, bool(is_causal), bool(has_window))))
