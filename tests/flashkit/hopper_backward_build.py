"""Build the Hopper backward for sm_90a, without a GPU, and say in JSON what its code shows.

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


def facts(d: int, causal: bool, window: bool) -> dict:
    """Spilled bytes and warnings of ptxas; what each consumer's loop is made of."""
    kernel = build(hopper_backward.CONFIGS[d], d, causal, window)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        ptx.write_text(kernel.asm["ptx"])
        log = tool("ptxas", "-arch=sm_90a", "-v", str(ptx), "-o", str(cubin))
        sass = tool("nvdisasm", "-c", str(cubin))
    code = [line for line in map(_instruction, sass.splitlines()) if line]
    return {
        "spilled": int(re.search(r"(\d+) bytes spill stores", log).group(1)),
        "serialised": re.findall(r"C75\d\d.*", log),
        "loops": [_loop(body) for body in _bodies(code)],
    }


def _instruction(line: str) -> str:
    line = re.sub(r"/\*.*?\*/", "", line).strip()
    return re.sub(r"^@!?U?P\w+ ", "", line) if line.endswith((";", ":")) else ""


def _bodies(code: list[str]) -> list[list[str]]:
    """The innermost loops that compute weights and add to memory: label to jump back."""
    at = {line.rstrip(":"): i for i, line in enumerate(code) if line.endswith(":")}
    jumps = [(i, re.match(r"BRA `\((\.L_x_\d+)\)", line)) for i, line in enumerate(code)]
    spans = [(at[to.group(1)], i) for i, to in jumps if to and at[to.group(1)] < i]
    taken = []
    for a, b in sorted(spans, key=lambda span: span[1] - span[0]):
        loop = all(_count(code[a:b], x) for x in ("MUFU.EX2", "RED"))
        if loop and all(b <= start or stop <= a for start, stop in taken):
            taken.append((a, b))
    return [code[a:b] for a, b in taken]


def _count(code: list[str], name: str) -> int:
    return sum(line.startswith(name) for line in code)


def _loop(body: list[str]) -> dict:
    matmuls = [i for i, line in enumerate(body) if line.startswith("HGMMA")]
    dp_ends = next(i for i, line in enumerate(body) if "DEPBAR.LE gsb0" in line)
    return {
        "matmuls": len(matmuls),
        "exponentials": _count(body, "MUFU.EX2"),
        "exponentials while dp runs": _count(body[matmuls[0] : dp_ends], "MUFU.EX2"),
        "additions to memory": _count(body, "RED"),
        "operands overwritten": sorted(_overwritten(body)),
        "spills": _count(body, "STL") + _count(body, "LDL"),
    }


def _overwritten(body: list[str]) -> set[str]:
    """Registers that a matmul reads, and that are written before the next wait for all matmuls."""
    reads, written = set(), set()
    for line in body:
        if re.match(r"WARPGROUP.DEPBAR.LE gsb0, 0x0\b", line):
            reads = set()
        elif operand := re.match(r"HGMMA\S+ R\d+, R(\d+),", line):
            reads |= {f"R{int(operand.group(1)) + i}" for i in range(4)}
        elif len(line.split()) > 1:
            written |= reads & {line.split()[1].rstrip(",")}
    return written


if __name__ == "__main__":
    head_dim, is_causal, has_window = map(int, sys.argv[1:])
    print(json.dumps(facts(head_dim, bool(is_causal), bool(has_window))))
