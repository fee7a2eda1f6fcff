"""The CUDA kernel against float64 on a GPU, on shapes that hurt; its trace against Python's."""

import math

import oracle
import pytest
import torch

from flashkit import native
from flashkit.online import State

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("cuda" not in native.languages(), reason="needs nvcc"),
]

HEAD_DIMS = [1, 16, 33, 64, 128, 256]
each_head_dim = pytest.mark.parametrize("d", HEAD_DIMS, ids=lambda d: f"D{d}")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the kernel does not write shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


def draw(seed, t, s, d):
    return tuple(x[0, 0] for x in oracle.draw(seed, 1, (1, 1), t, s, d))


def check(q, k, v, offset=None, causal=True, tolerance=2e-5, **options):
    o, lse = native.cuda_attention(q, k, v, offset, causal=causal, **options)
    q, k, v = (x[None, None] for x in (q, k, v))
    want, want_lse = oracle.exact(q, k, v, offset, causal=causal)
    baseline = oracle.eager(q, k, v, offset, causal=causal)
    oracle.assert_within_budget(o[None, None], want, baseline)
    oracle.assert_same(lse[None, None], want_lse.cpu(), tolerance)


@each_head_dim
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_lengths(d, causal):
    """Whole and ragged tiles and blocks, one row, one key, more rows than keys, no key at all."""
    for t, s in [(32, 32), (8, 32), (9, 33), (77, 555), (555, 77), (1, 1), (1, 1000), (65, 3)]:
        check(*draw(t, t, s, d), causal=causal)
    o, lse = native.cuda_attention(*draw(0, 5, 0, d), causal=causal)
    assert (o == 0).all()
    assert (lse == -math.inf).all()
    o, lse = native.cuda_attention(*draw(0, 0, 5, d), causal=causal)
    assert (o.shape, lse.shape) == ((0, d), (0,))


@pytest.mark.parametrize("offset", [-1000, -40, -3, 0, 17, 100, 10**6, 2**80])
def test_offsets(offset):
    q, k, v = draw(1, 37, 100, 64)
    check(q, k, v, max(-1000, min(offset, 1000)))
    want, got = (native.cuda_attention(q, k, v, x)[0] for x in (min(offset, 1000), offset))
    assert torch.equal(want, got)


@pytest.mark.parametrize("tile", [1, 2, 5, 31, 32])
def test_the_tile_does_not_change_the_result(tile):
    check(*draw(2, 19, 200, 64), tile=tile)


@pytest.mark.parametrize("scale", [1.0, -0.5, 20.0, 0.0])
def test_scales(scale):
    q, k, v = draw(3, 40, 40, 32)
    o, _ = native.cuda_attention(q, k, v, scale=scale)
    q, k, v = (x[None, None] for x in (q, k, v))
    want, _ = oracle.attention(q, k, v, scale=scale)
    oracle.assert_within_budget(o[None, None], want, oracle.eager(q, k, v, scale=scale))


def test_large_scores():
    q, k, v = draw(4, 40, 300, 64)
    check(q * 100, k, v, tolerance=3e-4)  # of an lse up to 342: 10 ulp
    o, _ = native.cuda_attention(q * 1e6, k, v, causal=False)
    best = (q.double() @ k.double().mT).argmax(-1)
    torch.testing.assert_close(o, v[best])


def test_what_lies_outside_or_is_hidden_never_matters():
    q, k, v = (oracle.fenced(x) for x in draw(5, 50, 60, 40))
    check(q, k, v)
    want, _ = native.cuda_attention(q, k, v, 0)
    k[50:], v[50:] = math.nan, math.inf  # the last row stands at 49
    assert torch.equal(native.cuda_attention(q, k, v, 0)[0], want)
    v[20], k[30] = math.nan, math.nan
    o, _ = native.cuda_attention(q, k, v, 0)
    assert torch.equal(o[:20], want[:20])
    assert o[20:].isnan().all()


def test_any_strides():
    q, k, v = draw(6, 30, 40, 64)
    wide = torch.full((40, 128), math.nan, device="cuda")
    wide[:, ::2] = k
    got = native.cuda_attention(q.T.contiguous().T, wide[:, ::2], v, 3)
    for x, y in zip(got, native.cuda_attention(q, k, v, 3), strict=True):
        assert torch.equal(x, y)


def test_it_runs_on_the_current_stream():
    q, k, v = draw(7, 300, 3000, 64)
    want, _ = native.cuda_attention(q, k, v)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10**8)  # who did not wait would see the old q
        got, _ = native.cuda_attention(q.clone().neg_().neg_(), k, v)
        torch.cuda.current_stream().synchronize()
    assert torch.equal(got, want)


def test_the_trace_of_the_worked_example():
    q, k, v = ([[1.0]], [[0.0], [1], [2], [-1]], [[2.0], [4], [1], [3]])
    q, k, v = (torch.tensor(x, device="cuda") for x in (q, k, v))
    o, _, (m, l, a) = native.cuda_attention(q, k, v, tile=2, trace_row=0)
    assert o.item() == pytest.approx(1.8619, abs=5e-5)
    assert m.tolist() == [1.0, 2.0]
    assert l.tolist() == pytest.approx([1.3679, 1.5530], abs=5e-5)
    assert a[:, 0].tolist() == pytest.approx([4.7358, 2.8915], abs=5e-5)


@pytest.mark.parametrize("row", [0, 7, 8, 40, 99])
@pytest.mark.parametrize("tile", [3, 32])
def test_every_state_is_pythons_to_a_few_ulp(row, tile):
    """With scores that float32 holds, so that m is exact, and positive values; up to 44 tiles."""
    generator = torch.Generator().manual_seed(row)
    q, k = (torch.randint(-2, 3, (n, 64), generator=generator).float() for n in (100, 130))
    v = torch.rand(130, 64, generator=generator)
    _, _, states = native.cuda_attention(q.cuda(), k.cuda(), v.cuda(), tile=tile, trace_row=row)
    seen = row + 31
    _, want = native.online_attention(q[row], k[:seen], v[:seen], tile, language="python")
    assert torch.equal(states.m.cpu(), want.m)
    for got, exactly in zip(states[1:], want[1:], strict=True):
        assert native.ulps(got.cpu(), exactly) <= 16


def test_a_row_that_sees_nothing_has_no_trace():
    o, _, states = native.cuda_attention(*draw(8, 9, 4, 16), trace_row=2)
    assert (o[2] == 0).all()
    assert [len(x) for x in states] == [0, 0, 0]
    assert isinstance(states, State)


WRONG = [
    ({"q": (4, 8, 1)}, r"q must have shape \(T, D\), D from 1 to 256, got \(4, 8, 1\)"),
    ({"q": (4, 257)}, r"D from 1 to 256, got \(4, 257\)"),
    ({"k": (6, 9)}, r"k must have shape \(S, 8\), got \(6, 9\)"),
    ({"v": (5, 8)}, r"v must have shape \(6, 8\), got \(5, 8\)"),
    ({"tile": 0}, "tile must be an integer >= 1, got 0"),
    ({"tile": 33}, "tile must be at most 32, got 33"),
    ({"trace_row": 4}, "trace_row must be from 0 to T - 1 = 3, got 4"),
    ({"query_offset": 1.0}, "query_offset must be an integer, got 1.0"),
    ({"scale": math.nan}, "scale must be a finite number, got nan"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_inputs(wrong, message):
    given = {"q": (4, 8), "k": (6, 8), "v": (6, 8)} | wrong
    tensors = {n: torch.ones(x, device="cuda") for n, x in given.items() if isinstance(x, tuple)}
    with pytest.raises(ValueError, match=message):
        native.cuda_attention(**given | tensors)


def test_wrong_dtypes():
    q, k, v = draw(9, 4, 6, 8)
    with pytest.raises(ValueError, match="k must be float32 on one GPU, got torch.float16"):
        native.cuda_attention(q, k.half(), v)
    with pytest.raises(ValueError, match="v must be float32 on one GPU, got .* on cpu"):
        native.cuda_attention(q, k, v.cpu())
