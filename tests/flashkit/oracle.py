"""The float64 oracle of these tests, written from the definition alone, and the error budget.

Nothing here imports flashkit. Query row i stands at offset + i and sees key j iff j <= offset + i
and, with a window W, j > offset + i - W.
"""

import math
import os

import numpy as np
import torch
from torch import Tensor

# Kernels run where flashkit runs them: on the GPU unless the interpreter is asked for.
DEVICE = "cuda" if torch.cuda.is_available() and not os.getenv("TRITON_INTERPRET") else "cpu"


def draw(
    seed: int, batch: int, heads: tuple[int, int], t: int, s: int, d: int, dtype=torch.float32
):
    """Normal q (B, Hq, T, D), k and v (B, Hkv, S, D), heads = (Hq, Hkv)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads[0], t, d), (batch, heads[1], s, d), (batch, heads[1], s, d))
    return tuple(torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)


def numpy64(x: Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()


def sees(query: int, key: int, causal: bool = True, window: int | None = None) -> bool:
    """Whether a query at one position sees a key at another."""
    return (key <= query or not causal) and (window is None or key > query - window)


def row(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> tuple[np.ndarray, float]:
    """One query (D,) against its visible keys (N, D): the output and the log-sum-exp."""
    if len(k) == 0:
        return np.zeros(v.shape[-1]), -math.inf
    scores = k @ q * scale
    weights = np.exp(scores - scores.max())
    return weights @ v / weights.sum(), scores.max() + math.log(weights.sum())


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offset=None,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    query_positions=None,
    key_positions=None,
) -> tuple[np.ndarray, np.ndarray]:
    """o (B, Hq, T, Dv) and lse (B, Hq, T) in float64; a row that sees no key: 0 and -inf.

    Hidden keys and values are never touched. offset is an integer or one a batch; positions
    (B, T) and (B, S) replace it.
    """
    q, k, v = numpy64(q), numpy64(k), numpy64(v)
    (batch, heads, t, d), (_, kv_heads, s, _) = q.shape, k.shape
    offsets = np.broadcast_to(s - t if offset is None else offset, (batch,))
    scale = 1 / math.sqrt(d) if scale is None else scale
    o, lse = np.empty((batch, heads, t, v.shape[-1])), np.empty((batch, heads, t))
    for b, h, i in np.ndindex(batch, heads, t):
        place = offsets[b] + i if query_positions is None else query_positions[b][i]
        places = range(s) if key_positions is None else key_positions[b]
        keys = [j for j, at in enumerate(places) if sees(place, at, causal, window)]
        kv_head = h // (heads // kv_heads)
        o[b, h, i], lse[b, h, i] = row(q[b, h, i], k[b, kv_head, keys], v[b, kv_head, keys], scale)
    return o, lse


def eager(q, k, v, offset=None, *, causal=True, window=None, scale=None) -> Tensor:
    """What the dtype cannot avoid: float32 math on inputs, weights and output rounded to it.

    offset is an integer or (B,) integers; a row that sees no key gives 0.
    """
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    seen = visible(q, k, offset, causal, window)
    k, v = (x.repeat_interleave(group, dim=1).float() for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q.float() @ k.mT * scale).masked_fill(~seen, -math.inf)
    weights = (scores - scores.amax(-1, keepdim=True).clamp(min=-1e30)).exp().to(dtype).float()
    total = weights.sum(-1, keepdim=True)
    return (weights @ v / total.masked_fill(total == 0, 1.0)).to(dtype)


def visible(q, k, offset=None, causal=True, window=None) -> Tensor:
    """bool (B or 1, 1, T, S), on q's device."""
    t, s = q.shape[2], k.shape[2]
    offset = torch.as_tensor(s - t if offset is None else offset, device=q.device).reshape(-1, 1)
    query = (offset + torch.arange(t, device=q.device))[:, None, :, None]
    key = torch.arange(s, device=q.device)[None, None, None, :]
    seen = (key <= query) if causal else (key == key).expand(*query.shape[:3], s)
    return seen if window is None else seen & (key > query - window)


def exact(q, k, v, offset=None, *, causal=True, window=None) -> tuple[Tensor, Tensor]:
    """`attention` again, in float64 torch where the inputs lie: for sizes too large for loops."""
    seen = visible(q, k, offset, causal, window)
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = (q.double() @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - lse.clamp(min=-1e300)[..., None]) @ v, lse


def gradients(
    q, k, v, do, offset=None, *, causal=True, window=None, scale=None, dlse=None
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv in float64, by autograd through softmax; a row that sees no key gives 0."""
    seen, group = visible(q, k, offset, causal, window), q.shape[1] // k.shape[1]
    alive = seen.any(-1)
    q, k, v = leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = scores.masked_fill(~seen, -math.inf).masked_fill(~alive[..., None], 0.0)
    o = (torch.softmax(scores, -1) @ v).masked_fill(~alive[..., None], 0.0)
    outputs, given = [o], [do.double()]
    if dlse is not None:
        outputs.append(torch.logsumexp(scores, -1).masked_fill(~alive, 0.0))
        given.append(dlse.double())
    return torch.autograd.grad(outputs, leaves, given)


def assert_gradients(got, want, tolerance: float | None = None) -> None:
    """dq, dk, dv finite and each within a share of its largest reference value.

    By default 1e-4 in float32 and 1e-2 in half precision. A gradient that cancels out (a row that
    sees one key has none) is measured against a hundredth of the largest of all three.
    """
    largest = max((y.abs().max().item() for y in want if y.numel()), default=0.0)
    for name, x, y in zip(("dq", "dk", "dv"), got, want, strict=True):
        share = tolerance or (1e-4 if x.dtype == torch.float32 else 1e-2)
        assert x.shape == y.shape, f"{name} has shape {tuple(x.shape)}, wanted {tuple(y.shape)}"
        assert torch.isfinite(x).all(), f"{name} is not finite"
        if y.numel():
            error, most = (x.double() - y).abs().max(), y.abs().max().clamp(min=largest / 100)
            assert error <= share * most, f"{name}: error {error:.2e}, largest {most:.2e}"


def assert_within_budget(got: Tensor, want, baseline: Tensor) -> None:
    """|got - want| <= 2 x (what eager attention in the same dtype errs + rounding), finite.

    want is float64; baseline is `eager` on the same inputs. Half precision is granted one rounding
    of the output; in float32, where nothing else errs, the order of a sum is worth eight.
    """
    want = torch.as_tensor(want, device=got.device)
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, wanted {tuple(want.shape)}"
    assert got.dtype == baseline.dtype
    assert torch.isfinite(got).all(), "not finite"
    if want.numel() == 0:
        return
    unavoidable = (baseline.double() - want).abs().max()
    roundings = 8 if got.dtype == torch.float32 else 1
    budget = 2 * (unavoidable + roundings * torch.finfo(got.dtype).eps * want.abs().max())
    error = (got.double() - want).abs().max()
    assert error <= budget, f"error {error:.2e}, budget {budget:.2e}"


def assert_same(got: Tensor, want, tolerance: float = 1e-5) -> None:
    """Equal shape, equal infinities, no NaN, and elsewhere at most `tolerance` apart."""
    got, want = numpy64(got), np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, wanted {want.shape}"
    assert not np.isnan(got).any(), "NaN"
    finite = np.isfinite(want)
    assert (got[~finite] == want[~finite]).all(), "infinities differ"
    error = np.abs(got[finite] - want[finite]).max(initial=0.0)
    assert error <= tolerance, f"error {error:.2e}, at most {tolerance:.0e}"


def fenced(x: Tensor) -> Tensor:
    """A copy of x inside a buffer of NaN, so that a read outside of it shows."""
    buffer = torch.full((x.numel() + 512,), math.nan, dtype=x.dtype, device=x.device)
    inner = buffer[256 : 256 + x.numel()].view(x.shape)
    inner.copy_(x)
    return inner


def poison_new_tensors(monkeypatch) -> None:
    """Let torch.empty and empty_like give NaN, so that what a kernel leaves unwritten shows."""
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))


def _poisoned(make):
    def poisoned(*args, **kwargs):
        x = make(*args, **kwargs)
        return x.fill_(math.nan) if x.is_floating_point() else x

    return poisoned


def paginate(x: Tensor, page: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A cache (B, H, S, D) cut into pages in random order: (pages, page, H, D), table (B, n).

    What the cache does not fill is NaN: the end of a last page, and three pages of nobody.
    """
    batch, heads, s, d = x.shape
    each = -(-s // page)
    generator = torch.Generator().manual_seed(seed)
    table = torch.randperm(batch * each + 3, generator=generator)[: batch * each]
    pool = torch.full((batch * each + 3, page, heads, d), math.nan, dtype=x.dtype, device=x.device)
    for i, number in enumerate(table.tolist()):
        rows = x[i // each, :, i % each * page : (i % each + 1) * page]
        pool[number, : rows.shape[1]] = rows.transpose(0, 1)
    return pool, table.view(batch, each).to(x.device, torch.int32)
