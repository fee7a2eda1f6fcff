"""The split and merge kernels, teaching and tuned: any number of splits gives the one answer."""

import math

import numpy as np
import oracle
import pytest
import torch
from torch import library

from flashkit import flash_attention, flash_decode, runtime

pytestmark = pytest.mark.filterwarnings("error")

BACKENDS = ("teaching", "triton")
each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """A partial result that nobody wrote shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


def check(q, k, v, *, lengths=None, window=None, num_splits=None):
    """Both backends inside NaN fences; what lies beyond a length is NaN as well."""
    given = torch.full((len(q),), k.shape[2]) if lengths is None else torch.tensor(lengths)
    offset = given.numpy() - 1
    want, want_lse = oracle.attention(q, k, v, offset, window=window)
    baseline = oracle.eager(q, k, v, given.to(q.device) - 1, window=window)
    q, k, v = (oracle.fenced(x) for x in (q, k, v))
    for b, length in enumerate(given.tolist()):
        k[b, :, length:] = math.nan
        v[b, :, length:] = math.nan
    for backend in BACKENDS:
        o, lse = flash_decode(
            q, k, v,
            lengths=None if lengths is None else given.to(q.device),
            window=window, num_splits=num_splits, return_lse=True, backend=backend,
        )  # fmt: skip
        assert lse.dtype == torch.float32
        oracle.assert_within_budget(o, want, baseline)
        oracle.assert_same(lse, want_lse, 1e-5)
        if q.dtype == torch.float32:
            oracle.assert_same(o, want)


@pytest.mark.parametrize("num_splits", [None, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("s", [1, 65, 150])
def test_any_number_of_splits(num_splits, s):
    """More splits than keys leave some splits empty: each must be the identity of the merge."""
    check(*oracle.draw(0, 1, (2, 1), 1, s, 16), num_splits=num_splits)


@pytest.mark.parametrize("num_splits", [None, 1, 4])
def test_lengths(num_splits):
    """Length 0 gives 0 and -inf; beyond a length nothing is read.

    Seen in Dao-AILab/flash-attention#2470.
    """
    q, k, v = oracle.draw(1, 4, (4, 2), 1, 140, 16)
    check(q, k, v, lengths=[0, 1, 77, 140], num_splits=num_splits)
    check(q, k, v, lengths=[0] * 4, num_splits=num_splits)


@pytest.mark.parametrize("window", [1, 5, 64, 100, 1000])
@pytest.mark.parametrize("num_splits", [1, 3])
def test_windows(window, num_splits):
    q, k, v = oracle.draw(2, 3, (2, 1), 1, 130, 16)
    check(q, k, v, lengths=[3, 66, 130], window=window, num_splits=num_splits)


@pytest.mark.skipif(not runtime.interpreting(), reason="counts the loads of the interpreter")
@pytest.mark.parametrize(
    ("length", "window", "tiles"), [(640, None, 10), (640, 64, 1), (65, None, 2)]
)
def test_only_visible_keys_are_read(monkeypatch, length, window, tiles):
    """A short sequence in a long cache, or a window, costs what it sees and no more."""
    from flashkit.kernels import decode

    loads, load_tile = [], decode.load_tile
    monkeypatch.setattr(decode, "load_tile", lambda *args: loads.append(1) or load_tile(*args))
    q, k, v = oracle.draw(2, 1, (2, 1), 1, 640, 16)
    lengths = torch.tensor([length])
    flash_decode(q, k, v, lengths=lengths, window=window, num_splits=1, backend="teaching")
    assert len(loads) == 1 + 2 * tiles + 2, "q, then k and v a tile, then a merge for each row"


@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (5, 1), (8, 1), (20, 1), (34, 2), (70, 1)])
def test_groups(heads):
    """Any group, also more than the 16 rows of the smallest tile (pytorch/pytorch#143117)."""
    check(*oracle.draw(3, 2, heads, 1, 70, 16), num_splits=2)


@each_backend
def test_query_heads_read_their_own_kv_head(backend):
    """Query head h reads KV head h // group (ekzhang/jax-js#180)."""
    q, k, v = oracle.draw(4, 1, (4, 2), 1, 70, 16)
    v[:, 0], v[:, 1] = 0.0, 1.0
    o = flash_decode(q, k, v, num_splits=2, backend=backend)
    assert o.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 1, 1])


@pytest.mark.parametrize("d", [16, 17, 40, 64, 80, 96, 128, 192, 256])
def test_head_dims(d):
    check(*oracle.draw(5, 1, (2, 1), 1, 70, d), num_splits=2)


@pytest.mark.parametrize("d", [16, 80])
def test_float16(d):
    check(*oracle.draw(6, 2, (4, 2), 1, 150, d, torch.float16), lengths=[70, 150], num_splits=3)


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def column_major(x):
    return x.mT.contiguous().mT


@each_backend
@pytest.mark.parametrize("layout", [transposed, column_major])
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
def test_strides(layout, which, backend):
    """A cache is seldom contiguous as (B, Hkv, S, D).

    Seen in flagos-ai/FlagAttention#45, flagos-ai/FlagGems#5896.
    """
    inputs = list(oracle.draw(7, 2, (4, 2), 1, 70, 16))
    want, _ = oracle.attention(*inputs)
    for i in which:
        inputs[i] = layout(inputs[i])
    oracle.assert_same(flash_decode(*inputs, num_splits=2, backend=backend), want)


@each_backend
def test_lengths_may_have_strides(backend):
    q, k, v = oracle.draw(8, 3, (1, 1), 1, 70, 16)
    lengths = torch.tensor([5, 99, 70, 99, 33, 99], device=q.device)[::2]
    want, _ = oracle.attention(q, k, v, np.array([4, 69, 32]))
    for given in (lengths, lengths.int(), lengths.cpu(), lengths.tolist()):
        oracle.assert_same(flash_decode(q, k, v, lengths=given, backend=backend), want)


@each_backend
def test_agrees_with_flash_attention(backend):
    q, k, v = oracle.draw(9, 2, (4, 2), 1, 100, 32)
    one, one_lse = flash_attention(q, k, v, return_lse=True)
    two, two_lse = flash_decode(q, k, v, num_splits=5, return_lse=True, backend=backend)
    oracle.assert_same(two, oracle.numpy64(one))
    oracle.assert_same(two_lse, oracle.numpy64(one_lse))


@each_backend
def test_hard_scores(backend):
    """One split holds all the weight, or all splits little, or scores past float16's range."""
    q, k, v = oracle.draw(10, 1, (1, 1), 1, 150, 16)
    last = k.clone()
    last[:, :, -1] = 1e3 * q[:, :, 0]
    for queries, keys in ((q, last), (-30 * q.abs(), 30 * k.abs()), (q * 0, k)):
        want, _ = oracle.attention(queries, keys, v)
        got = flash_decode(queries, keys, v, num_splits=3, backend=backend)
        oracle.assert_within_budget(got, want, oracle.eager(queries, keys, v))


@each_backend
def test_nothing_to_do(backend):
    """An empty cache gives 0 and -inf, an empty batch an empty result.

    Seen in Dao-AILab/flash-attention#2470.
    """
    empty_cache = oracle.draw(11, 2, (2, 1), 1, 0, 16)
    o, lse = flash_decode(*empty_cache, return_lse=True, backend=backend)
    assert (o == 0).all()
    assert (lse == -math.inf).all()
    nobody = oracle.draw(11, 0, (2, 1), 1, 5, 16)
    assert flash_decode(*nobody, backend=backend).shape == (0, 2, 1, 16)


@each_backend
def test_twice_gives_the_same_bits(backend):
    inputs = oracle.draw(12, 1, (2, 1), 1, 150, 40, torch.float16)
    once, again = (flash_decode(*inputs, num_splits=3, backend=backend) for _ in range(2))
    assert torch.equal(once, again)


@each_backend
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_seen_value_that_is_not_finite_shows(backend, bad):
    """To the heads that see it, in its column; nowhere else."""
    q, k, v = oracle.draw(16, 1, (4, 2), 1, 70, 16)
    v[0, 1, 30, 5] = bad
    with np.errstate(invalid="ignore"):
        o = flash_decode(q, k, v, num_splits=2, backend=backend)
    assert not o[0, 2:, 0, 5].isfinite().any()
    assert o[0, :2].isfinite().all()


def test_it_is_one_operator_for_the_compiler():
    q, k, v = oracle.draw(17, 2, (4, 2), 1, 70, 16)
    library.opcheck(torch.ops.flashkit.flash_decode, (q, k, v, None, None, 2, "triton"))
    lengths = torch.tensor([70, 3], device=q.device)
    library.opcheck(torch.ops.flashkit.flash_decode, (q, k, v, lengths, 5, None, "teaching"))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"backend": "fast"}, "backend must be one of auto, teaching, triton, got 'fast'"),
        ({"num_splits": 0}, "num_splits must be an integer >= 1, got 0"),
        ({"window": -1}, "window must be an integer >= 1, got -1"),
        ({"lengths": [5, 6]}, r"lengths must be .* of shape \(1,\), got torch.int64 \(2,\)"),
        ({"lengths": [5.0]}, "lengths must be int32 or int64"),
        ({"lengths": [6]}, r"lengths must be from 0 to S = 5, got \[6\]"),
        ({"lengths": [-1]}, r"lengths must be from 0 to S = 5, got \[-1\]"),
    ],
)
def test_wrong_options(kwargs, message):
    with pytest.raises(ValueError, match=message):
        flash_decode(*oracle.draw(13, 1, (1, 1), 1, 5, 16), **kwargs)


def test_one_query_only():
    with pytest.raises(
        ValueError, match=r"q must have shape \(B, Hq, 1, D\), got \(1, 1, 2, 16\)"
    ):
        flash_decode(*oracle.draw(14, 1, (1, 1), 2, 5, 16))


def test_gradients_are_refused_by_name():
    q, k, v = oracle.draw(15, 1, (1, 1), 1, 2, 16)
    with pytest.raises(NotImplementedError, match="use online_attention"):
        flash_decode(q, k.requires_grad_(), v)
