"""The fused backward where there is no GPU: what it refuses, and the machine code it becomes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashkit.contracts import Dims

pytest.importorskip("triton.experimental.gluon", reason="needs Triton with Gluon")
from flashkit.kernels import hopper, hopper_backward  # noqa: E402

HERE = Path(__file__).parent
TOOLS = Path(sys.modules["triton"].__file__).parent / "backends" / "nvidia" / "bin"


def refusal(d=64, dtype=torch.float16, scale=0.125):
    q = torch.zeros(2, 2, 48, d, dtype=dtype)
    dims = Dims(2, 2, 2, 48, 48, d, d)
    return hopper_backward.serves(q, q, q, dims, causal=True, window=None, scale=scale)


def test_it_refuses_by_name():
    assert "head dims 64, 128, got 256" in refusal(d=256)
    assert "bfloat16 and float16, got torch.float32" in refusal(dtype=torch.float32)
    assert "a finite scale above 0, got -1.0" in refusal(scale=-1.0)
    assert "a GPU of compute capability 9.0" in refusal()


def test_it_takes_what_the_forward_takes(monkeypatch):
    monkeypatch.setattr(hopper, "_capability", lambda device: (9, 0))
    assert refusal() == ""
    assert refusal(d=128, dtype=torch.bfloat16) == ""


@pytest.mark.parametrize(("d", "rows"), [(64, 128), (128, 64)])
def test_shared_memory_holds_its_rings(d, rows):
    """K, V, the two slots of ds, and the rings of q and do with a number or two a row."""
    config = hopper_backward.CONFIGS[d]
    assert config.block_m == rows  # the two consumers share dq of 128 x 64 or 64 x 128
    tiles = (config.q_stages + config.do_stages) * rows * (2 * d + 4)
    assert 2 * 2 * 128 * d + 2 * 2 * 128 * rows + tiles + 1024 <= 227 * 1024


@pytest.mark.slow
@pytest.mark.skipif(
    not all((TOOLS / tool).exists() for tool in ("ptxas", "nvdisasm")),
    reason="this Triton brings no ptxas or nvdisasm",
)
@pytest.mark.parametrize(("d", "causal"), [(64, 0), (128, 1)])
def test_five_products_a_round_and_hardly_a_spill(d, causal):
    """Compiled for sm_90a. ptxas may serialise the matmuls (C75xx), spill what it hoists out of
    the loop, or overwrite operands in flight (triton-lang/triton#9433): all of it silently.
    """
    command = [sys.executable, HERE / "hopper_backward_build.py", *map(str, (d, causal, 0))]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(done.stdout)
    rows = hopper_backward.CONFIGS[d].block_m
    assert facts["serialised"] == []
    assert facts["spilled"] <= 64  # outside of the loops
    assert len(facts["loops"]) == 2  # consumers
    for loop in facts["loops"]:
        # by 16 of the summed axis: s and dp over D, dv and dk over rows, dq twice over 64 keys
        assert loop["matmuls"] == 2 * d // 16 + 2 * rows // 16 + 8
        assert loop["exponentials"] == rows * 64 // 128
        assert loop["exponentials while dp runs"] == loop["exponentials"]
        assert loop["additions to memory"] == 64 * 64 // 128 // 4
        assert loop["operands overwritten"] == []
        assert loop["spills"] <= 4  # registers a thread
