"""The Hopper forward where there is no GPU: what it refuses, and the machine code it becomes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashkit.contracts import Dims

pytest.importorskip("triton.experimental.gluon", reason="needs Triton with Gluon")
from flashkit.kernels import hopper  # noqa: E402

HERE = Path(__file__).parent
TOOLS = Path(sys.modules["triton"].__file__).parent / "backends" / "nvidia" / "bin"


def refusal(q, k, v, scale=0.125):
    b, heads, t, d = q.shape
    dims = Dims(b, heads, k.shape[1], t, k.shape[2], d, d)
    return hopper.serves(q, k, v, dims, causal=True, window=None, scale=scale)


def draw(d=64, dtype=torch.float16, t=48):
    return [torch.zeros(2, 2, t, d, dtype=dtype) for _ in range(3)]


def test_it_refuses_by_name():
    assert "bfloat16 and float16, got torch.float32" in refusal(*draw(dtype=torch.float32))
    assert "head dims 64, 128, 256, got 80" in refusal(*draw(d=80))
    for scale in (0.0, -1.0, math.inf, math.nan):
        assert f"a finite scale above 0, got {scale}" in refusal(*draw(), scale)
    assert "a GPU of compute capability 9.0" in refusal(*draw())


LAYOUTS = {
    "column major": lambda x: x.mT.contiguous().mT,
    "rows of 68 elements": lambda x: torch.zeros(2, 2, 48, 68, dtype=x.dtype)[..., :64],
    "one row for all": lambda x: x[:, :, :1].expand(x.shape),
    "one head for all": lambda x: x[:, :1].expand(x.shape),
    "odd start": lambda x: torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_it_refuses_strides_that_the_copy_engine_cannot_take(layout, name):
    tensors = dict(zip("qkv", draw(), strict=True))
    tensors[name] = LAYOUTS[layout](tensors[name])
    assert f"got {name} with strides" in refusal(**tensors)


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
        lambda x: x[:1, :, :, :].as_strided((1, 2, 48, 64), (3, 48 * 64, 64, 1)),
    ],
    ids=["contiguous", "transposed", "every second row", "odd stride of an axis of length 1"],
)
def test_it_takes_other_strides(layout, monkeypatch):
    monkeypatch.setattr(hopper, "_capability", lambda device: (9, 0))
    assert refusal(*map(layout, draw())) == ""


def test_the_schedule():
    """As many programs as multiprocessors; heads side by side where rows differ in length."""
    for d in (64, 128, 256):
        short, long = Dims(2, 16, 4, 1024, 1024, d, d), Dims(1, 16, 4, 8192, 8192, d, d)
        assert hopper.schedule(short, False, 132) == (132, 1)
        assert hopper.schedule(long, False, 132) == (132, 1)
        assert hopper.schedule(long, True, 132) == (132, 16)
        assert hopper.schedule(short, True, 132) == (132, 32 if d == 64 else 1)


def test_blocks_are_smaller_where_a_triangle_is_short():
    for causal, t, rows in ((True, 2048, 128), (True, 2049, 192), (False, 512, 192)):
        dims = Dims(1, 1, 1, t, t, 64, 64)
        assert hopper.configure(dims, causal).consumers * 64 == rows
    for d in (128, 256):
        assert hopper.configure(Dims(1, 1, 1, 512, 512, d, d), True) == hopper.CONFIGS[d]


@pytest.mark.slow
@pytest.mark.skipif(
    not all((TOOLS / tool).exists() for tool in ("ptxas", "nvdisasm")),
    reason="this Triton brings no ptxas or nvdisasm",
)
@pytest.mark.parametrize(("d", "causal", "window"), [(64, 0, 0), (128, 1, 0), (256, 1, 1)])
def test_softmax_runs_while_the_tensor_cores_work(d, causal, window):
    """Compiled for sm_90a. ptxas may move a wait above the softmax, serialise the matmuls (C75xx)
    or overwrite weights that a matmul still reads (triton-lang/triton#9433): all of it silently.
    """
    command = [sys.executable, HERE / "hopper_build.py", *map(str, (d, causal, window))]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads(done.stdout)
    config = hopper.CONFIGS[d]
    assert facts["serialised"] == []
    assert facts["spilled"] <= 1024  # the careful path, at D 256
    assert len(facts["loops"]) == config.consumers
    for loop in facts["loops"]:
        assert loop["matmuls in flight"] == d // 16 + config.block_n // 16
        assert loop["exponentials meanwhile"] >= config.block_n / 2
        assert loop["weights overwritten"] == []
        assert loop["spills"] <= 4  # registers a thread
