"""Compile the tuned backward for sm_90a, where no GPU need be, and print what ptxas says of it.

python compile_backward.py WALK D: WALK is dkdv or dq. One JSON line, as of compile_tuned.
"""

import json
import sys

from compile_tuned import judge  # first: it turns the interpreter off
from triton.compiler import ASTSource

from flashkit.kernels.backward_config import HOPPER_CAUSAL, Config
from flashkit.kernels.backward_dkdv import _tuned_dkdv_kernel
from flashkit.kernels.backward_dq import _tuned_dq_kernel

KERNELS = {"dkdv": _tuned_dkdv_kernel, "dq": _tuned_dq_kernel}
SIXTEEN = [["tt.divisibility", 16]]


def source(kernel, d: int, config: Config) -> ASTSource:
    """A causal call on contiguous bfloat16 tensors."""
    names = kernel.arg_names
    constants = {"CAUSAL": True, "WINDOW": 0, "TMA": True, "SPLIT_MASKS": True, "D": d}
    constants |= {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_D": d}
    types = dict.fromkeys(names, "i32") | {"scale": "fp32", "scale2": "fp32", "only_if": "*i32"}
    types |= {name: "*bf16" for name in names if name.endswith("_ptr")}
    types |= {"delta_ptr": "*fp32", "lse2_ptr": "*fp32"}
    tiles = {"q": config.block_m, "do": config.block_m, "k": config.block_n, "v": config.block_n}
    types |= {name: f"tensordesc<bf16[1,1,{rows},{d}]>" for name, rows in tiles.items()}
    types |= dict.fromkeys(constants, "constexpr")
    at = {name: (i,) for i, name in enumerate(names)}
    values = {at[name]: value for name, value in constants.items()}
    aligned = {at[name]: SIXTEEN for name in names if name.endswith("_ptr") or name == "padded"}
    for name in tiles:
        types[f"{name}_strides"] = ("i32", "i32", "i32", "constexpr")
        values[*at[f"{name}_strides"], 3] = 1
        aligned |= {(*at[f"{name}_strides"], i): SIXTEEN for i in range(3)}
    return ASTSource(kernel, types, values, aligned)


def main(walk: str, d: int) -> None:
    config = getattr(HOPPER_CAUSAL[2, d], walk)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    options["maxnreg"] = config.registers
    print(json.dumps(judge(source(KERNELS[walk], d, config), options)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
