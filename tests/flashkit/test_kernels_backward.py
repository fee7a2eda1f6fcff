"""The backward kernels in the interpreter, by their launchers: each case names a known bug."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from flashkit import runtime
from flashkit.contracts import check_kernel_inputs
from flashkit.kernels import backward, backward_config, backward_dkdv, backward_dq, backward_tuned
from flashkit.kernels.backward import flash_bwd, query_range
from flashkit.kernels.backward_config import Config, Configs
from flashkit.kernels.backward_dkdv import plain_queries
from flashkit.kernels.backward_tuned import tuned_bwd
from flashkit.kernels.forward import flash_fwd

# A correct kernel raises no RuntimeWarning in the interpreter (triton-lang/triton#10291).
pytestmark = pytest.mark.filterwarnings("error")

SMALL = Configs(Config(16, 16, 4, 1), Config(16, 16, 4, 1))


@pytest.fixture(params=["teaching", "tuned"])
def whole(request, monkeypatch):
    """Both pairs of kernels, in tiles of 16 x 16; what they leave unwritten shows as NaN.

    Seen in fla-org/flash-linear-attention#892.
    """
    oracle.poison_new_tensors(monkeypatch)
    monkeypatch.setattr(backward, "tile_size", lambda dtype: 16)
    monkeypatch.setattr(backward_config, "INTERPRETED", SMALL)
    return flash_bwd if request.param == "teaching" else tuned_bwd


@pytest.fixture
def bwd(whole, monkeypatch):
    """Where all is finite the fast kernels are right alone: no second pass mends them."""
    monkeypatch.setattr(backward_tuned, "careful_bwd", lambda *_, **__: None)
    return whole


def draw(seed, heads, t, s, d=16, dtype=torch.float32, batch=1):
    """q, k, v and do."""
    q, k, v = oracle.draw(seed, batch, heads, t, s, d, dtype)
    return q, k, v, oracle.draw(seed + 1000, batch, heads, t, s, d, dtype)[0]


def gradients(bwd, q, k, v, do, offset=None, *, dlse=None, scale=None, **options):
    """dq, dk, dv of the kernels, from the teaching forward's o and lse."""
    dims = check_kernel_inputs(q, k, v)
    options = {"causal": True, "window": None} | options
    options["offset"] = dims.s - dims.t if offset is None else offset
    options["scale"] = dims.d**-0.5 if scale is None else scale
    o, lse = flash_fwd(q, k, v, dims, **options)
    return bwd(q, k, v, o, lse, do, dlse, dims, **options)


def check(bwd, q, k, v, do, offset=None, **options):
    """Inside NaN fences, against float64 autograd."""
    got = gradients(bwd, *(oracle.fenced(x) for x in (q, k, v, do)), offset, **options)
    oracle.assert_gradients(got, oracle.gradients(q, k, v, do, offset, **options))
    for x, y in zip(got, (q, k, v), strict=True):
        assert x.dtype == y.dtype


LENGTHS = [(1, 1), (17, 15), (15, 33), (1, 20), (35, 16)]


@pytest.mark.parametrize(("t", "s"), LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
def test_lengths(bwd, t, s, causal):
    """Ragged on both sides, and more queries than keys: square alignment would show.

    Seen in triton-lang/triton#4541, xlite-dev/ffpa-attn#300.
    """
    check(bwd, *draw(0, (2, 2), t, s), causal=causal)


@pytest.mark.parametrize("offset", [0, 40, -5, -30, 2**40])
def test_offsets(bwd, offset):
    """The walk over queries starts where the first of them sees a key of the tile."""
    check(bwd, *draw(1, (1, 1), 18, 25), offset)


@pytest.mark.parametrize("window", [1, 17])
@pytest.mark.parametrize(("t", "s", "causal"), [(17, 34, True), (34, 17, False)])
def test_windows(bwd, window, t, s, causal):
    """The walk over queries ends where the last of them sees a key of the tile."""
    check(bwd, *draw(2, (1, 1), t, s), causal=causal, window=window)


@pytest.mark.parametrize("heads", [(6, 2), (5, 1)])
def test_a_groups_heads_add_up(bwd, heads):
    """dk and dv are sums over the query heads of a group, neighbours: h // group, not h % Hkv."""
    check(bwd, *draw(3, heads, 3, 17))


@pytest.mark.parametrize("d", [17, 40])
def test_head_dims(bwd, d):
    """Also one that no power of two holds, and rows that no descriptor takes."""
    check(bwd, *draw(4, (2, 1), 17, 10, d))


def test_float16(bwd):
    check(bwd, *draw(5, (2, 1), 17, 20, 32, torch.float16))


@pytest.mark.parametrize("scale", [0.7, 0, -3.0])
def test_scale(bwd, scale):
    """Of either sign, on dq and dk once and on dv never."""
    check(bwd, *draw(6, (1, 1), 17, 20), scale=scale)


@pytest.mark.parametrize("window", [None, 3])
def test_the_gradient_of_lse(bwd, window):
    q, k, v, do = draw(7, (2, 1), 20, 23)
    dlse = do.sum(-1).transpose(1, 2).contiguous().transpose(1, 2)
    check(bwd, q, k, v, do, dlse=dlse, window=window)
    check(bwd, q, k, v, do * 0, dlse=dlse[:, :, :1].expand(-1, -1, 20), window=window)


def test_any_strides(bwd):
    """Slices of one projection, keys transposed, and the do of o.sum(), whose strides are 0.

    Seen in Dao-AILab/flash-attention#2541, fla-org/flash-linear-attention#871.
    """
    qkv = oracle.draw(8, 1, (20, 20), 3, 3, 48)[0].view(1, 20, 3, 3, 16)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    k = k.transpose(2, 3).contiguous().transpose(2, 3)
    do = torch.ones((), device=q.device).expand(q.shape)
    got = gradients(bwd, q, k, v, do)
    oracle.assert_gradients(got, oracle.gradients(q, k, v, do))


@pytest.mark.parametrize(("t", "s"), [(3, 0), (0, 5), (0, 0)])
def test_nothing_to_do(bwd, t, s):
    """No keys, no queries: gradients of 0, without a launch where nothing is written."""
    for x, y in zip(gradients(bwd, *draw(9, (2, 1), t, s)), ((2, t), (1, s), (1, s)), strict=True):
        assert x.shape == (1, *y, 16)
        assert (x == 0).all()


def test_rows_that_see_nothing_have_the_gradient_0(whole):
    """Whatever their do holds: exp(s - -inf) would be inf (pytorch/pytorch#103963)."""
    q, k, v, do = draw(10, (2, 1), 40, 5)
    want = oracle.gradients(q, k, v, do)
    q[:, :, :35] = math.nan
    do[:, :, :35] = math.inf
    with np.errstate(invalid="ignore"):  # NumPy multiplies the hidden infinities all the same
        got = gradients(whole, q, k, v, do)
    assert (got[0][:, :, :35] == 0).all()
    oracle.assert_gradients(got, want)


@pytest.mark.parametrize("s", [17, 20])
def test_a_very_negative_lse_beside_a_short_last_tile(bwd, s):
    """Past the last key s is 0, and exp(0 - lse) overflows unless it is masked.

    Seen in pytorch/pytorch#196678.
    """
    q, k, v, do = draw(11, (1, 1), s, s)
    with np.errstate(over="ignore", invalid="ignore"):  # in rows past S, which nobody keeps
        for causal in (True, False):
            check(bwd, -8 * q.abs(), 8 * k.abs(), v, do, causal=causal)


@pytest.mark.parametrize(("bad", "offset", "window"), [(math.nan, 3, None), (math.inf, 10, 3)])
def test_hidden_keys_never_matter(whole, bad, offset, window):
    """Neither to dq nor to the keys beside them; their own gradient is 0."""
    q, k, v, do = draw(12, (2, 1), 3, 40)
    want = oracle.gradients(q, k, v, do, offset, window=window)
    rows = range(offset, offset + 3)
    hidden = [j for j in range(40) if not any(oracle.sees(i, j, True, window) for i in rows)]
    k[:, :, hidden] = bad
    v[:, :, hidden] = bad
    with np.errstate(invalid="ignore"):
        got = gradients(whole, q, k, v, do, offset, window=window)
    oracle.assert_gradients(got, want)


@pytest.mark.parametrize(("name", "bad"), [("q", math.nan), ("do", math.inf)])
def test_a_query_matters_only_to_the_keys_it_sees(whole, name, bad):
    """Row 7 of 20 sees keys 0 .. 7: they become NaN, and so does its own dq; no other."""
    q, k, v, do = draw(13, (1, 1), 20, 20)
    row = oracle.gradients(q, k, v, do)
    without = do.clone()
    without[:, :, 7] = 0
    want = oracle.gradients(q, k, v, without)
    {"q": q, "do": do}[name][0, 0, 7, 3] = bad
    with np.errstate(invalid="ignore"):
        dq, dk, dv = gradients(whole, q, k, v, do)
    others = [i for i in range(20) if i != 7]
    oracle.assert_same(dq[:, :, others], oracle.numpy64(row[0][:, :, others]))
    for got, clean in ((dk, want[1]), (dv, want[2])):
        oracle.assert_same(got[:, :, 8:], oracle.numpy64(clean[:, :, 8:]))
        assert not got[:, :, :8].isfinite().all(-1).any()


def test_only_if_leaves_the_gradients_alone():
    """A launch behind a faster kernel does its work if that kernel asked for it, else none."""
    q, k, v, do = draw(14, (2, 1), 20, 20)
    dims = check_kernel_inputs(q, k, v)
    options = {"offset": 0, "causal": True, "window": None, "scale": 0.25}
    o, lse = flash_fwd(q, k, v, dims, **options)
    terms = backward.row_terms(o, lse, do, None, dims)
    for asked in (0, 1):
        grads = tuple(torch.full_like(x, 7.0) for x in (q, k, v))
        only_if = torch.tensor([asked], dtype=torch.int32, device=q.device)
        backward.careful_bwd(q, k, v, do, terms, grads, dims, only_if=only_if, **options)
        if asked:
            oracle.assert_gradients(grads, oracle.gradients(q, k, v, do))
        else:
            assert all((x == 7).all() for x in grads)


def test_twice_gives_the_same_bits(bwd):
    """No sum depends on the order of programs (Dao-AILab/flash-attention#429)."""
    inputs = draw(15, (2, 1), 17, 20, 32, torch.float16)
    for x, y in zip(gradients(bwd, *inputs), gradients(bwd, *inputs), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(("tma", "split_masks"), [(True, False), (False, True)])
def test_what_the_tuned_kernels_spare_changes_no_value(tma, split_masks):
    """Descriptors or pointers, masks at the edges or everywhere, tiles of unlike sizes."""
    q, k, v, do = draw(16, (1, 1), 40, 35)
    tiles = Configs(Config(16, 32, 4, 1, tma, split_masks), Config(32, 16, 4, 1, tma, split_masks))
    for options in ({}, {"window": 9}, {"causal": False}):
        got = gradients(lambda *args, **kw: tuned_bwd(*args, **kw, config=tiles), q, k, v, do,
                        3, **options)  # fmt: skip
        oracle.assert_gradients(got, oracle.gradients(q, k, v, do, 3, **options))


@pytest.mark.skipif(not runtime.interpreting(), reason="counts the loads of the interpreter")
@pytest.mark.parametrize(("t", "s", "offset"), [(20, 50, 30), (50, 20, -30)])
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), (True, 17), (False, 20), (False, None)]
)
def test_only_tiles_with_something_to_see_are_visited(
    monkeypatch, bwd, t, s, offset, causal, window
):  # fmt: skip
    """Causal and window skip whole tiles, on both sides, in both walks."""
    name = "load_tile" if bwd is flash_bwd else "load_rows"
    modules = [backward] if bwd is flash_bwd else [backward_dkdv, backward_dq]
    loads, load = [], getattr(modules[0], name)
    for module in modules:
        monkeypatch.setattr(module, name, lambda *args: loads.append(1) or load(*args))
    gradients(bwd, *draw(17, (1, 1), t, s), offset, causal=causal, window=window)
    visited = {
        (i // 16, j // 16)
        for i, j in np.ndindex(t, s)
        if oracle.sees(offset + i, j, causal, window)
    }
    own = 2 * (math.ceil(t / 16) + math.ceil(s / 16))
    assert len(loads) == own + 4 * len(visited), "two tiles a program, two a visit in each walk"


@triton.jit
def _ranges_kernel(
    out_ptr, first_key, last_key, T, offset,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    start, stop = query_range(first_key, last_key, T, offset, CAUSAL, WINDOW)
    start = start // BLOCK_M * BLOCK_M
    left, right = plain_queries(start, stop, first_key, last_key, offset, CAUSAL, WINDOW, BLOCK_M)
    tl.store(out_ptr, start)
    tl.store(out_ptr + 1, stop)
    tl.store(out_ptr + 2, left)
    tl.store(out_ptr + 3, right)


@settings(max_examples=25, deadline=None)
@given(
    first_key=st.integers(0, 60), keys=st.integers(1, 32), t=st.integers(0, 90),
    offset=st.integers(-70, 70), causal=st.booleans(), window=st.integers(0, 40),
)  # fmt: skip
def test_the_ranges_of_rows(first_key, keys, t, offset, causal, window):
    """query_range holds every row that sees a key of the tile, plain_queries none that misses one.

    Rows past T need no mask, so a plain tile may run past it, but never past another edge.
    """
    block, last = 16, first_key + keys - 1
    names = {"CAUSAL": causal, "WINDOW": window}
    out = torch.empty(4, dtype=torch.int32, device=oracle.DEVICE)
    _ranges_kernel[(1,)](out, first_key, last, t, offset, **names, BLOCK_M=block)
    start, stop, left, right = out.tolist()
    sees = {
        (i, j): oracle.sees(offset + i, j, causal, window or None)
        for i, j in np.ndindex(t + block, last + 1)
        if j >= first_key
    }
    tile = range(first_key, last + 1)
    assert {i for i in range(t) if any(sees[i, j] for j in tile)} <= set(range(start, stop))
    assert start % block == left % block == 0 or left == right
    assert start <= left <= right <= max(stop, start)
    for i in range(left, left + -(-(right - left) // block) * block):
        assert i >= t or all(sees[i, j] for j in tile)


@pytest.mark.parametrize(("walk", "d"), [("dkdv", 64), ("dkdv", 128), ("dq", 128)])
def test_machine_code_for_hopper(walk, d):
    """No tensor core instruction waits for the last (ptxas C75xx), and little leaves registers.

    Seen in Dao-AILab/flash-attention#1361. It needs no GPU.
    """
    command = [sys.executable, Path(__file__).with_name("compile_backward.py"), walk, str(d)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    if "missing" in found:
        pytest.skip("this Triton carries no ptxas")
    assert "C75" not in found["report"], found["report"]
    assert found["spilled"] <= 128, "bytes of spills; a fast loop has room for few"
