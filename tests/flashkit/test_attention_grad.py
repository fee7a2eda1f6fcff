"""flash_attention under autograd: values against float64, and what torch asks of an operator."""

import math
import re

import oracle
import pytest
import torch
from torch import library

from flashkit import attention, causal_attention, flash_attention, runtime
from flashkit.memory import peak_bytes

MASKS = [
    {},
    {"causal": False},
    {"window": 5},
    {"causal": False, "window": 3, "scale": -0.4},
]


def problem(seed, heads=(4, 2), t=9, s=21, d=16, dtype=torch.float32, batch=1):
    """q, k, v that want a gradient, and a gradient of o."""
    qkv = oracle.draw(seed, batch, heads, t, s, d, dtype)
    do = oracle.draw(seed + 1000, batch, heads, t, s, d, dtype)[0]
    return *(x.requires_grad_() for x in qkv), do


def check(q, k, v, do, offset=None, **options):
    """o's gradient alone, then with that of lse."""
    o, lse = flash_attention(q, k, v, offset, return_lse=True, **options)
    options.pop("backend", None)
    got = torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
    oracle.assert_gradients(got, oracle.gradients(q, k, v, do, offset, **options))
    dlse = do[..., 0].float()
    got = torch.autograd.grad((o, lse), (q, k, v), (do, dlse))
    oracle.assert_gradients(got, oracle.gradients(q, k, v, do, offset, dlse=dlse, **options))


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("offset", [None, 3])
def test_gradients_are_exact(mask, offset):
    check(*problem(0), offset, **mask)


@pytest.mark.parametrize(
    ("heads", "t", "s", "d"),
    [((3, 1), 21, 9, 16), ((1, 1), 33, 33, 80), ((8, 1), 1, 35, 16), ((2, 2), 40, 15, 40)],
)
def test_shapes(heads, t, s, d):
    """Also more queries than keys: rows that see nothing have the gradient 0."""
    check(*problem(1, heads, t, s, d))


@pytest.mark.parametrize("backend", ["teaching", "triton"])
def test_half_precision_on_each_backend(backend):
    check(*problem(2, dtype=torch.float16), backend=backend)


def test_lse_alone():
    q, k, v, do = problem(3)
    lse = flash_attention(q, k, v, return_lse=True)[1]
    got = torch.autograd.grad(lse, (q, k, v), do[..., 0])
    want = oracle.gradients(q, k, v, torch.zeros_like(do), dlse=do[..., 0])
    oracle.assert_gradients(got, want)
    assert not got[2].any(), "lse does not depend on v"


def test_the_sum_of_views():
    """q, k, v cut from one projection, keys expanded, and o.sum(): stride 0 on both sides."""
    packed = oracle.draw(4, 1, (33, 1), 4, 1, 16)[0].requires_grad_()  # (1, T, 4 heads, D)
    rows = packed.transpose(1, 2)
    key = oracle.draw(5, 1, (1, 1), 1, 7, 16)[1].requires_grad_()

    def loss(attend):
        return attend(rows[:, :2], key.expand(1, 2, 7, 16), rows[:, 2:, :7], causal=False).sum()

    def plain(q, k, v, causal):
        return torch.softmax(q.double() @ k.double().mT / 4, -1) @ v.double()

    got = torch.autograd.grad(loss(flash_attention), (packed, key))
    want = torch.autograd.grad(loss(plain), (packed, key))
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)


def test_what_is_hidden_never_matters():
    """NaN in keys that no row sees, and in the output gradient of a row that sees nothing."""
    q, k, v, do = problem(6, t=6, s=9)
    want = oracle.gradients(q, k, v, do, -2, window=3)
    with torch.no_grad():
        k[:, :, 4:] = v[:, :, 4:] = do[:, :, :2] = math.nan
    got = torch.autograd.grad(flash_attention(q, k, v, -2, window=3), (q, k, v), do)
    oracle.assert_gradients(got, want)
    assert not got[0][:, :, :2].any()


def test_what_is_left_unwritten_would_show(monkeypatch):
    oracle.poison_new_tensors(monkeypatch)
    check(*problem(7, t=17, s=35))


@pytest.mark.parametrize(("t", "s"), [(0, 5), (3, 0)])
def test_nothing_to_do(t, s):
    q, k, v, _ = problem(8, t=t, s=s)
    gradients = torch.autograd.grad(flash_attention(q, k, v).sum(), (q, k, v))
    assert [x.shape for x in gradients] == [x.shape for x in (q, k, v)]
    assert not any(x.any() for x in gradients)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "kv"])
def test_only_what_is_asked_for_gets_a_gradient(wanted):
    tensors = dict(zip("qkv", oracle.draw(9, 1, (2, 1), 5, 9, 16), strict=True))
    for name in wanted:
        tensors[name].requires_grad_()
    flash_attention(**tensors).sum().backward()
    assert {name for name, x in tensors.items() if x.grad is not None} == set(wanted)
    do = torch.ones_like(tensors["q"])
    want = dict(zip("qkv", oracle.gradients(*tensors.values(), do), strict=True))
    for name in wanted:
        torch.testing.assert_close(tensors[name].grad.double(), want[name], atol=1e-5, rtol=1e-4)


def test_five_tensors_are_kept():
    """q, k, v, o and lse as they are: nothing of size T x S, no copy."""
    kept = []
    q, k, v, _ = problem(10)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        o, lse = flash_attention(q, k, v, return_lse=True)
    assert sorted(x.data_ptr() for x in kept) == sorted(x.data_ptr() for x in (q, k, v, o, lse))


def test_nothing_is_kept_without_a_gradient():
    q, k, v = oracle.draw(11, 1, (2, 1), 5, 9, 16)
    assert flash_attention(q, k, v).grad_fn is None
    with torch.no_grad():
        assert flash_attention(q.requires_grad_(), k, v).grad_fn is None


def test_a_second_derivative_is_refused_by_name():
    """Never silently zero."""
    q, k, v, _ = problem(12, t=3, s=3)
    (dq,) = torch.autograd.grad(flash_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="once only: .* use online_attention"):
        dq.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_is_refused_by_name(dtype):
    q, k, v = (x.to(dtype) for x in oracle.draw(13, 1, (2, 1), 3, 3, 16))
    q.requires_grad_()
    with pytest.raises(NotImplementedError, match=f"no backward pass for {dtype}"):
        flash_attention(q, k, v, backend="triton")
    with torch.no_grad():
        assert flash_attention(q, k, v, backend="triton").isfinite().all()


def test_the_operators_keep_the_rules_of_torch():
    """Schemas, fake shapes and strides, autograd registration, tracing with changing shapes."""
    q, k, v, do = problem(14, (2, 1), 3, 5)
    forward = (q, k, v, None, True, None, None, None, None, "auto")
    library.opcheck(torch.ops.flashkit.flash_fwd.default, forward)
    q, k, v = q.detach(), k.detach(), v.detach()
    o, lse = flash_attention(q, k, v, return_lse=True)
    backward = (q, k, v, o, lse, do, do[..., 0], 2, False, 4, 0.5, "auto")
    library.opcheck(torch.ops.flashkit.flash_bwd.default, (*backward, (True, True)))


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=str)
def test_gradient_shapes_and_strides_are_known_without_a_run(needs):
    q, k, v, do = (x.detach().mT.contiguous().mT for x in problem(15))
    o, lse = flash_attention(q, k, v, return_lse=True)
    args, options = (q, k, v, o, lse, do), (None, None, True, None, None, "auto", needs)
    real = torch.ops.flashkit.flash_bwd(*args, *options)
    fake = torch.ops.flashkit.flash_bwd(*(x.to("meta") for x in args), *options)
    for got, want in zip(fake, real, strict=True):
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


def test_compiled_in_one_graph():
    """torch.compile with fullgraph=True, at two lengths: the gradients of o and of lse."""

    def loss(q, k, v):
        o, lse = flash_attention(q * 2, k, v, window=6, return_lse=True)
        return (o * lse[..., None]).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for t, s in ((5, 9), (6, 11)):
        inputs = problem(16, t=t, s=s)[:3]
        got = torch.autograd.grad(compiled(*inputs), inputs)
        want = torch.autograd.grad(loss(*inputs), inputs)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y)


def half(device: str) -> torch.dtype:
    """A dtype of autocast that kernels take there: no bfloat16 in the interpreter."""
    return torch.float16 if device == "cpu" else torch.bfloat16


def test_autocast_casts_as_torch_does():
    """Mixed inputs too; the gradients come back in the inputs' own dtypes."""
    q, k, v, _ = problem(17)
    k = k.detach().half().requires_grad_()
    with torch.autocast(oracle.DEVICE, dtype=half(oracle.DEVICE)):
        o = flash_attention(q, k, v)
        same = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert o.dtype == same.dtype == half(oracle.DEVICE)
    gradients = torch.autograd.grad(o.sum(), (q, k, v))
    assert [x.dtype for x in gradients] == [torch.float32, torch.float16, torch.float32]
    with torch.no_grad():
        want = flash_attention(*(x.to(o.dtype) for x in (q, k, v)))
    assert torch.equal(o, want)


def test_autocast_leaves_wider_and_narrower_alone():
    q, k, v = oracle.draw(18, 1, (2, 1), 3, 5, 16)
    with torch.autocast(oracle.DEVICE, dtype=half(oracle.DEVICE)):
        eight = (x.to(torch.float8_e5m2) for x in (q, k, v))
        assert flash_attention(*eight, backend="triton").dtype == torch.float16
        with pytest.raises(ValueError, match=re.escape("got torch.float64; online_attention")):
            flash_attention(*(x.double() for x in (q, k, v)))


class Kernel:
    """A module that stands for a backward pass: whether it serves, and that it was taken."""

    def __init__(self, reason=""):
        self.reason, self.taken = reason, 0

    def serves(self, q, k, v, dims, *, causal, window, scale):
        return self.reason

    def launch(self, q, k, v, o, lse, do, dlse, dims, needs=None, **options):
        self.taken, self.needs = self.taken + 1, needs
        assert options == {"causal": True, "window": None, "scale": 0.25, "offset": 12}
        return q.clone(), k.clone(), v.clone()


@pytest.fixture
def fused_and_split(monkeypatch):
    """Two passes that stand for the fused one, whose bits vary, and the split one."""
    modules = {"fused": Kernel(), "split": Kernel()}
    real = attention.importlib.import_module
    monkeypatch.setattr(
        attention.importlib, "import_module", lambda name: modules.get(name) or real(name)
    )
    backwards = tuple(attention.Backward(name, "launch", name == "split") for name in modules)
    for name, backend in attention.BACKENDS.items():
        monkeypatch.setitem(attention.BACKENDS, name, backend._replace(backwards=backwards))
    return modules


def taken(modules) -> list[str]:
    q, k, v, _ = problem(19)
    flash_attention(q, k, v).sum().backward()
    return [name for name, module in modules.items() if module.taken]


def test_the_fused_backward_comes_first(fused_and_split):
    assert taken(fused_and_split) == ["fused"]


def test_the_split_one_where_the_fused_does_not_serve(fused_and_split):
    fused_and_split["fused"].reason = "it needs a Hopper GPU"
    assert taken(fused_and_split) == ["split"]


def test_the_split_one_where_bits_must_repeat(fused_and_split):
    torch.use_deterministic_algorithms(True)
    try:
        assert taken(fused_and_split) == ["split"]
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_split_one_where_half_is_needed(fused_and_split):
    q, k, v, _ = problem(19)
    flash_attention(q, k.detach(), v.detach()).sum().backward()
    assert [module.taken for module in fused_and_split.values()] == [0, 1]
    assert fused_and_split["split"].needs == [True, False]


@pytest.mark.parametrize("backend", ["teaching", "triton"])
@pytest.mark.parametrize("wanted", ["q", "k", "v", "kv"])
def test_what_needs_no_gradient_costs_none(monkeypatch, backend, wanted):
    """The gradients that are asked for are the same bits, and the other walk is not launched."""
    q, k, v, do = problem(21)
    whole = torch.autograd.grad(flash_attention(q, k, v, backend=backend), (q, k, v), do)
    inputs = {"q": q.detach(), "k": k.detach(), "v": v.detach()}
    asked = {name: inputs[name].requires_grad_() for name in wanted}
    idle = "dkdv" if wanted == "q" else "dq"
    for kernel in (f"backward._{idle}_kernel", f"backward_tuned._tuned_{idle}_kernel"):
        monkeypatch.setattr(f"flashkit.kernels.{kernel}", None)  # to launch it would raise
    o = flash_attention(*inputs.values(), backend=backend)
    got = torch.autograd.grad(o, list(asked.values()), do)
    want = dict(zip("qkv", whole, strict=True))
    for name, x in zip(asked, got, strict=True):
        assert torch.equal(x, want[name])


def test_no_backward_pass_says_why(fused_and_split):
    fused_and_split["split"].reason = fused_and_split["fused"].reason = "too wide"
    with pytest.raises(ValueError, match="no backward pass serves these inputs: too wide"):
        taken(fused_and_split)


def test_every_backend_has_a_backward_that_repeats_its_bits():
    for backend in attention.BACKENDS.values():
        assert backend.backwards[-1].split


def test_five_runs_have_the_same_bits():
    torch.use_deterministic_algorithms(True)
    try:
        q, k, v, do = problem(20, (1, 1), 33, 35)
        runs = [torch.autograd.grad(flash_attention(q, k, v), (q, k, v), do) for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True))


class Block(torch.nn.Module):
    """A transformer block of `heads` query heads over half as many KV heads."""

    def __init__(self, heads: int, d: int, attend):
        super().__init__()
        self.heads, self.d, self.attend = heads, d, attend
        width = heads * d
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv = torch.nn.Linear(width, 2 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x):
        packed = self.qkv(self.norms[0](x)).unflatten(-1, (2 * self.heads, self.d)).transpose(1, 2)
        q, k, v = packed.split([self.heads, self.heads // 2, self.heads // 2], dim=1)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


def losses(attend, steps: int, batch: int, heads: int, d: int, t: int, autocast) -> list[float]:
    """Two blocks learn to name, at each of t places, the token three places back."""
    torch.manual_seed(0)
    vocabulary, width = 11, heads * d
    model = torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, width), Block(heads, d, attend), Block(heads, d, attend),
        torch.nn.Linear(width, vocabulary),
    )  # fmt: skip
    place = torch.randn(t, width)
    model, place = model.to(oracle.DEVICE), place.to(oracle.DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    history = []
    for _ in range(steps):
        tokens = torch.randint(vocabulary, (batch, t)).to(oracle.DEVICE)
        with torch.autocast(oracle.DEVICE, dtype=half(oracle.DEVICE), enabled=autocast):
            x = model[0](tokens) + place
            scores = model[1:](x)
        loss = torch.nn.functional.cross_entropy(
            scores[:, 3:].flatten(0, 1).float(), tokens[:, :-3].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history


@pytest.mark.skipif(not runtime.interpreting(), reason="the same on a GPU is a test of its own")
def test_a_transformer_learns_as_with_the_reference():
    """Some steps in float32: the loss of each is that of exact attention."""
    shape = {"steps": 5, "batch": 1, "heads": 2, "d": 16, "t": 12, "autocast": False}
    assert losses(flash_attention, **shape) == pytest.approx(
        losses(causal_attention, **shape), rel=1e-4
    )


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
def test_a_transformer_learns_as_with_the_reference_on_a_gpu(autocast):
    """Fifty steps, in float32 and in bfloat16, against exact attention in float32."""
    shape = {"steps": 50, "batch": 4, "heads": 8, "d": 64, "t": 256}
    got = losses(flash_attention, **shape, autocast=autocast)
    want = losses(causal_attention, **shape, autocast=False)
    assert want[-1] < 0.9 * want[0], "nothing was learnt"
    assert got == pytest.approx(want, rel=0.05 if autocast else 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["teaching", "triton", "auto"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [64, 128])
def test_each_backend_in_half_precision_on_a_gpu(backend, dtype, d):
    check(*problem(21, (6, 2), 257, 385, d, dtype, batch=2), backend=backend)
    check(*problem(22, (2, 2), 300, 129, d, dtype), backend=backend, causal=False, window=100)


@pytest.mark.gpu
def test_memory_is_linear_in_the_length_on_a_gpu():
    """Forward and backward together: twice the length, twice the bytes."""

    def peak(n):
        q, k, v, do = problem(23, (4, 2), n, n, 128, torch.bfloat16)
        return peak_bytes(lambda: torch.autograd.grad(flash_attention(q, k, v), (q, k, v), do))

    assert peak(16384) < 2.1 * peak(8192)
