"""What only the tuned forward has: edges between its loops, descriptors, configs, machine code."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashkit import flash_attention, runtime
from flashkit.contracts import FP8_DTYPES, KERNEL_DTYPES, check_kernel_inputs
from flashkit.kernels import careful, descriptors, forward_config, forward_tuned

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True, scope="module")
def poisoned():
    """What the kernel does not write shows as NaN."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        oracle.poison_new_tensors(monkeypatch)
        yield


@st.composite
def problems(draw):
    """Sizes of q, k and v, a mask, and tiles of 16 or 32."""
    t, s = draw(st.integers(1, 50)), draw(st.integers(1, 70))
    sizes = {"t": t, "s": s, "d": draw(st.sampled_from([16, 24, 32]))}
    sizes["heads"] = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2)]))
    mask = {"causal": draw(st.booleans())}
    mask["window"] = draw(st.none() | st.integers(1, 90))
    offset = draw(st.none() | st.integers(-t - 5, s + 40))
    tiles = {
        "block_m": draw(st.sampled_from([16, 32])),
        "block_n": draw(st.sampled_from([16, 32])),
    }
    return sizes, offset, mask, tiles


@pytest.mark.skipif(not runtime.interpreting(), reason="each window would be compiled anew")
@settings(max_examples=25, deadline=None, derandomize=True)
@given(problems())
def test_any_mask_at_any_place(problem):
    """Where the left edge, the plain tiles and the right edge meet, no key is lost or doubled."""
    sizes, offset, mask, tiles = problem
    q, k, v = oracle.draw(1, 1, **sizes)
    want, want_lse = oracle.attention(q, k, v, offset, **mask)
    q, k, v = (oracle.fenced(x) for x in (q, k, v))
    o, lse = flash_attention(
        q, k, v, offset, **mask, **tiles, return_lse=True, backend="triton"
    )  # fmt: skip
    oracle.assert_same(o, want)
    oracle.assert_same(lse, want_lse)


@pytest.mark.skipif(not runtime.interpreting(), reason="each window would be compiled anew")
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), (True, 1), (True, 16), (True, 20), (False, 7)]
)
def test_every_phase_of_the_edges(causal, window):
    """Both edges at every place within a tile: one key off is one key shown or hidden."""
    q, k, v = oracle.draw(7, 1, (1, 1), 16, 40, 16)
    for offset in range(16):
        want, _ = oracle.attention(q, k, v, offset, causal=causal, window=window)
        o = flash_attention(
            q, k, v, offset, causal=causal, window=window, block_m=16, block_n=16, backend="triton"
        )
        oracle.assert_same(o, want)


FAR = 10**12


@pytest.mark.parametrize(
    ("offset", "window"),
    [(FAR, None), (-FAR, None), (FAR, FAR), (FAR, FAR - 9), (FAR, FAR - 40), (7, FAR), (FAR, 3)],
)
@pytest.mark.parametrize("causal", [True, False])
def test_places_beyond_32_bits(offset, window, causal):
    """Positions are compared in 32 bits: far ones are brought near, and the mask stays."""
    q, k, v = oracle.draw(2, 1, (1, 1), 20, 25, 16)
    mask = {"causal": causal, "window": window}
    want, want_lse = oracle.attention(q, k, v, offset, **mask)
    o, lse = flash_attention(q, k, v, offset, **mask, return_lse=True, backend="triton")
    oracle.assert_same(o, want)
    oracle.assert_same(lse, want_lse)


@pytest.mark.parametrize("d", [16, 24, 40])
@pytest.mark.parametrize("window", [None, 9])
def test_descriptors_and_pointers_give_the_same_bits(monkeypatch, d, window):
    """The copy engine reads what pointers read, also past the last row and column."""
    inputs = oracle.draw(3, 2, (4, 2), 20, 37, d)
    options = {"window": window, "return_lse": True, "backend": "triton"}
    assert all(descriptors.describable(x) for x in inputs)
    one = flash_attention(*inputs, **options)
    monkeypatch.setattr(forward_tuned, "describable", lambda x: False)
    two = flash_attention(*inputs, **options)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


def test_what_descriptors_cannot_describe():
    """Each sends the tensor to pointers: columns apart, rows off 16 bytes, expanded, empty."""
    x = torch.zeros(2, 2, 8, 16, dtype=torch.float16)
    assert descriptors.describable(x)
    assert descriptors.describable(x.transpose(1, 2).contiguous().transpose(1, 2))
    assert not descriptors.describable(x.mT.contiguous().mT)
    assert not descriptors.describable(x[..., :15].contiguous())
    assert not descriptors.describable(x.flatten()[1:257].view(1, 1, 16, 16))
    assert not descriptors.describable(x[:1].expand(2, 2, 8, 16))
    assert not descriptors.describable(x[:, :, :0])


@pytest.mark.skipif(not runtime.interpreting(), reason="counts the steps of the interpreter")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_hidden_value_costs_only_its_own_row_block(monkeypatch, bad):
    """Row blocks that saw something not finite are done again with care, the others are not."""
    weigh, calls = careful.weigh, []
    monkeypatch.setattr(careful, "weigh", lambda *args: calls.append(1) or weigh(*args))
    q, k, v = oracle.draw(4, 1, (1, 1), 64, 64, 16)
    want = flash_attention(q, k, v, block_m=16, block_n=16, backend="triton")
    assert not calls
    v[0, 0, 40:48] = bad
    with np.errstate(invalid="ignore"):
        o = flash_attention(q, k, v, block_m=16, block_n=16, backend="triton")
    assert torch.equal(o[:, :, :32], want[:, :, :32])
    oracle.assert_same(o[:, :, 32:40], oracle.numpy64(want[:, :, 32:40]))
    assert not o[:, :, 40:].isfinite().any()
    assert len(calls) == 3 + 4, "key tiles that the third and fourth row block see"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8(dtype):
    """As exact as float16 on the same values; `auto` passes over a kernel that takes no FP8."""
    inputs = oracle.draw(6, 1, (2, 1), 20, 37, 32, dtype)
    want, want_lse = oracle.attention(*inputs, window=9)
    o, lse = flash_attention(*inputs, window=9, return_lse=True)
    oracle.assert_within_budget(o, want, oracle.eager(*(x.half() for x in inputs), window=9))
    oracle.assert_same(lse, want_lse, 1e-5 if runtime.interpreting() else 1e-3)
    near = flash_attention(*inputs, 5)
    inputs[2].view(torch.int8)[:, :, 25:] = 0x7F  # NaN, and hidden
    with np.errstate(invalid="ignore"):
        torch.testing.assert_close(flash_attention(*inputs, 5), near)
    with pytest.raises(ValueError, match="'teaching' does not serve these inputs: it takes no"):
        flash_attention(*inputs, backend="teaching")


@pytest.mark.parametrize("together", [1, 2, 3, 64])
def test_every_order_of_the_programs_covers_every_row(together):
    q, k, v = oracle.draw(5, 2, (4, 2), 40, 40, 16)
    want, _ = oracle.attention(q, k, v)
    dims = check_kernel_inputs(q, k, v)
    config = forward_config.Config(16, 16, 4, 1, None, together)
    o, _ = forward_tuned.tuned_fwd(
        q, k, v, dims, offset=0, causal=True, window=None, scale=0.25, config=config
    )
    oracle.assert_same(o, want)


def test_configs():
    """Every head dim and dtype has tiles that tl.dot takes, on Hopper and elsewhere."""
    for capability in (0, 7, 8, 9, 10):
        for dtype in KERNEL_DTYPES + FP8_DTYPES:
            for block_d in (16, 32, 64, 128, 256):
                config = forward_config.choose(dtype, 500, block_d, capability)
                assert min(config[:2]) >= 16
                few = forward_config.choose(dtype, 1, block_d, capability)
                assert few.block_m == 16
                given = forward_config.choose(dtype, 500, block_d, capability, 32, 16)
                assert given[:2] == (32, 16)


@pytest.mark.parametrize("d", [64, 128])
def test_machine_code_for_hopper(d):
    """No tensor core instruction waits for the last (ptxas C75xx), and little leaves registers.

    Seen in Dao-AILab/flash-attention#1361, sgl-project/sglang#6453. It needs no GPU.
    """
    command = [sys.executable, Path(__file__).with_name("compile_tuned.py"), "bf16", str(d)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    if "missing" in found:
        pytest.skip("this Triton carries no ptxas")
    assert "C75" not in found["report"], found["report"]
    assert found["spilled"] <= 256, "bytes of spills; a fast loop has room for none"
    assert found["registers"] <= 255
