"""attention_backward against float64 autograd through the whole softmax, and its algebra."""

import math

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashkit import online_attention
from flashkit.backward import attention_backward
from flashkit.memory import peak_bytes

SMALL = settings(derandomize=True, max_examples=15, deadline=None)
FLOAT64 = 1e-10


def problem(seed, heads=(4, 2), t=9, s=21, d=16, dtype=torch.float64, batch=2):
    """q, k, v and a gradient of o."""
    q, k, v = oracle.draw(seed, batch, heads, t, s, d, dtype)
    return q, k, v, oracle.draw(seed + 1000, batch, heads, t, s, d, dtype)[0]


def forward(q, k, v, offset=None, *, causal=True, window=None, scale=None):
    """o in q's dtype and lse, from the definition, also for rows that see nothing."""
    seen = oracle.visible(q, k, offset, causal, window)
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q.double() @ k.mT * scale).masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1)
    o = torch.exp(scores - lse.clamp(min=-1e300)[..., None]) @ v
    return o.to(q.dtype), lse.to(torch.float64 if q.dtype == torch.float64 else torch.float32)


def gradients(q, k, v, do, offset=None, *, tile=16, dlse=None, **mask):
    """attention_backward as a caller with an offset would use it."""
    o, lse = forward(q, k, v, offset, **mask)
    t, s = q.shape[2], k.shape[2]
    places = torch.arange(t, device=q.device) + (s - t if offset is None else offset)
    return attention_backward(q, k, v, o, lse, do, places, tile=tile, dlse=dlse, **mask)


def check(q, k, v, do, offset=None, *, tile=16, tolerance=FLOAT64, **options):
    got = gradients(q, k, v, do, offset, tile=tile, **options)
    oracle.assert_gradients(got, oracle.gradients(q, k, v, do, offset, **options), tolerance)
    for x, gradient in zip((q, k, v), got, strict=True):
        assert gradient.dtype == x.dtype


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("tile", [1, 3, 16, 64])
@pytest.mark.parametrize(
    ("heads", "t", "s"), [((4, 2), 9, 21), ((3, 3), 21, 9), ((3, 1), 13, 13), ((8, 1), 1, 8)]
)
def test_gradients_are_exact(causal, window, tile, heads, t, s):
    check(*problem(0, heads, t, s), tile=tile, causal=causal, window=window)


@pytest.mark.parametrize("offset", [-3, 0, 7, 100])
@pytest.mark.parametrize("window", [None, 4])
def test_any_offset(offset, window):
    """Before, among and beyond the keys (the square mask: xlite-dev/ffpa-attn#300)."""
    check(*problem(1), offset, window=window)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 33, 127, 128, 129])
@pytest.mark.parametrize("window", [None, 9])
def test_ragged_lengths(n, window):
    """The last tile is masked everywhere in the same way (pytorch/pytorch#153799)."""
    check(*problem(2, (2, 1), n, n, batch=1), window=window)


@pytest.mark.parametrize("d", [16, 64, 80, 128])
@pytest.mark.parametrize("scale", [None, 0.3, -0.5, 0.0])
def test_head_dims_and_scales(d, scale):
    q, k, v, do = problem(3, d=d)
    check(q, k, v, do, scale=scale)


def test_values_of_another_width():
    q, k, v, _ = problem(4)
    v = v[..., :5]
    do = torch.randn_like(q[..., :5])
    check(q, k, v, do)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)]
)
def test_other_dtypes(dtype, tolerance):
    check(*problem(5, d=64, dtype=dtype), tolerance=tolerance)


def test_the_gradient_of_lse():
    q, k, v, do = problem(6)
    dlse = do[..., 0]
    check(q, k, v, do, dlse=dlse)
    check(q, k, v, torch.zeros_like(do), dlse=dlse, window=3, causal=False)


def test_positions_in_any_order():
    """Keys, queries and their positions, shuffled together, get the same gradients, shuffled."""
    q, k, v, do = problem(7, t=9, s=12)
    want = gradients(q, k, v, do, window=5)
    rows, keys = torch.randperm(9), torch.randperm(12)
    o, lse = (x[:, :, rows] for x in forward(q, k, v, window=5))
    q, do, k, v = q[:, :, rows], do[:, :, rows], k[:, :, keys], v[:, :, keys]
    each = (rows + 3).expand(2, 9)
    got = attention_backward(q, k, v, o, lse, do, each, keys, tile=4, window=5)
    want = (x[:, :, order] for x, order in zip(want, (rows, keys, keys), strict=True))
    oracle.assert_gradients(got, list(want), FLOAT64)


class Recomputed(torch.autograd.Function):
    """Attention whose backward pass knows q, k, v, o and lse, and nothing else."""

    @staticmethod
    def forward(ctx, q, k, v):
        o, lse = online_attention(q, k, v, tile=4, return_lse=True)
        ctx.save_for_backward(q, k, v, o, lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        return attention_backward(*ctx.saved_tensors, do, tile=3, dlse=dlse)


@pytest.mark.parametrize("heads", [(2, 2), (3, 1)])
def test_gradcheck(heads):
    """Against finite differences, o and lse both."""
    inputs = [x.requires_grad_() for x in problem(8, heads, 3, 5, 4, batch=1)[:3]]
    assert torch.autograd.gradcheck(Recomputed.apply, inputs)


def test_rows_that_see_nothing():
    """Gradient 0, and what their output gradient holds reaches no key."""
    q, k, v, do = problem(9, t=6, s=3)
    want = oracle.gradients(q, k, v, do)
    assert not want[0][:, :, :3].any()
    do[:, :, :3] = math.nan
    got = gradients(q, k, v, do)
    assert not got[0][:, :, :3].any()
    oracle.assert_gradients(got, want, FLOAT64)
    # Also where the positions would let them see: the lse is what counts.
    o, lse = forward(q, k, v, causal=False)
    lse[:, :, :3], o[:, :, :3] = -math.inf, 0.0
    got = attention_backward(q, k, v, o, lse, do, causal=False)
    assert not got[0][:, :, :3].any()
    want = oracle.gradients(q[:, :, 3:], k, v, do[:, :, 3:], causal=False)
    oracle.assert_gradients((got[0][:, :, 3:], *got[1:]), want, FLOAT64)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_hidden_never_matters(poison):
    """Keys that no query sees; a query and its gradient for the keys that it does not see."""
    q, k, v, do = problem(10, (2, 1), 3, 8)
    want = oracle.gradients(q, k, v, do, 3, window=3)
    o, lse = forward(q, k, v, 3, window=3)
    k[:, :, [0, 6, 7]] = v[:, :, [0, 6, 7]] = poison
    places = torch.tensor([3, 4, 5])
    got = attention_backward(q, k, v, o, lse, do, places, tile=4, window=3)
    oracle.assert_gradients(got, want, FLOAT64)

    q[:, :, 2] = do[:, :, 2] = poison  # sees keys 3, 4, 5
    got = attention_backward(q, k, v, o, lse, do, places, tile=4, window=3)
    assert torch.equal(got[0][:, :, :2], got[0][:, :, :2].nan_to_num(7.0))
    without = oracle.gradients(q[:, :, :2], k.nan_to_num(0, 0, 0), v.nan_to_num(0, 0, 0),
                               do[:, :, :2], 3, window=3)  # fmt: skip
    for x, y in zip(got[1:], without[1:], strict=True):
        torch.testing.assert_close(x[:, :, :3], y[:, :, :3])
        assert x[:, :, 3:6].isnan().any(-1).all(), "a key that was seen by a NaN says so"


def test_a_very_negative_lse():
    """Where a padded score of 0 would give exp(0 - lse) = inf, and inf * 0 a NaN."""
    q, k, v, do = problem(11, (1, 1), 5, 17, batch=1, dtype=torch.float32)
    q, k = 8 * q.abs(), -8 * k.abs()
    assert forward(q, k, v)[1].max() < -89
    check(q, k, v, do, tolerance=1e-4)


def test_any_strides_and_an_expanded_output_gradient():
    """q, k, v cut from one projection (Dao-AILab/flash-attention#2777), the loss o.sum()."""
    packed = oracle.draw(12, 2, (33, 1), 3, 3, 4 * 32, torch.float64)[0]
    q, k, v = packed.unflatten(-1, (4, 32)).permute(2, 0, 3, 1, 4)
    do = torch.ones((), dtype=q.dtype, device=q.device).expand(q.shape)
    check(q, k, v, do)
    check(q[..., ::2], k[..., ::2], v, do)
    check(q, k[:, :1].expand_as(k), v[:, :1].expand_as(v), do)


@pytest.mark.parametrize(("t", "s"), [(0, 5), (3, 0), (0, 0)])
def test_nothing_to_do(t, s):
    got = gradients(*problem(13, t=t, s=s))
    assert [x.shape[2] for x in got] == [t, s, s]
    assert not any(x.any() for x in got)


def test_what_is_left_unwritten_would_show(monkeypatch):
    q, k, v, do = problem(14, t=33, s=35)
    want, (o, lse) = oracle.gradients(q, k, v, do), forward(q, k, v)
    oracle.poison_new_tensors(monkeypatch)
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args: empty(*args).fill_(math.nan))
    oracle.assert_gradients(attention_backward(q, k, v, o, lse, do), want, FLOAT64)


@SMALL
@given(st.floats(-3, 3), st.floats(-3, 3), st.booleans())
def test_linear_in_the_output_gradient(a, b, causal):
    q, k, v, do = problem(15)
    other = do.flip(2)
    mixed = gradients(q, k, v, a * do + b * other, causal=causal)
    one, two = (gradients(q, k, v, x, causal=causal) for x in (do, other))
    for x, y, z in zip(mixed, one, two, strict=True):
        torch.testing.assert_close(x, a * y + b * z)


@SMALL
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), st.integers(1, 12))
def test_a_kv_head_gets_the_sum_over_its_group(group, kv_heads, t, s):
    """As if K and V had been repeated: also the gradient of an expanded input."""
    q, k, v, do = problem(16, (group * kv_heads, kv_heads), t, s, batch=1)
    shared = gradients(q, k, v, do)
    repeated = gradients(q, *(x.repeat_interleave(group, 1) for x in (k, v)), do)
    torch.testing.assert_close(shared[0], repeated[0])
    for x, y in zip(shared[1:], repeated[1:], strict=True):
        torch.testing.assert_close(x, y.unflatten(1, (kv_heads, group)).sum(2))


@SMALL
@given(st.permutations(range(9)), st.integers(1, 10))
def test_the_order_of_the_keys_does_not_matter(order, tile):
    q, k, v, do = problem(17, t=4, s=9)
    plain = gradients(q, k, v, do, causal=False)
    moved = gradients(q, k[:, :, order], v[:, :, order], do, causal=False, tile=tile)
    torch.testing.assert_close(moved[0], plain[0])
    for x, y in zip(moved[1:], plain[1:], strict=True):
        torch.testing.assert_close(x, y[:, :, order])


@SMALL
@given(st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_a_shift_of_all_keys_costs_nothing(t, s, causal):
    """It moves every score of a row alike: the rows of ds sum to 0, and so do dk's of one q."""
    q, k, v, do = problem(18, (2, 2), t, s)
    same = q[:, :, :1].expand_as(q).clone()
    _, dk, _ = gradients(same, k, v, do, causal=causal)
    torch.testing.assert_close(dk.sum(2), torch.zeros_like(dk.sum(2)), atol=1e-12, rtol=0)


def test_memory_is_linear_in_the_length():
    """Twice the queries and keys, twice the bytes: a T x S matrix would make it four times."""

    def peak(n):
        q, k, v, do = problem(19, (2, 1), n, n, batch=1, dtype=torch.float32)
        o, lse = forward(q, k, v)
        return peak_bytes(attention_backward, q, k, v, o, lse, do)

    assert peak(512) < 2.1 * peak(256)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("o", (2, 4, 9, 15)), ("do", (2, 4, 8, 16)), ("lse", (2, 4, 9, 1)), ("dlse", (2, 2, 9))],
)
def test_shapes_are_checked(name, shape):
    q, k, v, do = problem(20)
    o, lse = forward(q, k, v)
    given = {"o": o, "lse": lse, "do": do, "dlse": lse} | {name: torch.zeros(shape)}
    with pytest.raises(ValueError, match=f"{name} must have shape .*, got "):
        attention_backward(q, k, v, **given)


@pytest.mark.parametrize("option", ["tile", "window"])
def test_options_are_checked(option):
    q, k, v, do = problem(21)
    o, lse = forward(q, k, v)
    with pytest.raises(ValueError, match=f"{option} must be an integer >= 1, got 0"):
        attention_backward(q, k, v, o, lse, do, **{option: 0})
