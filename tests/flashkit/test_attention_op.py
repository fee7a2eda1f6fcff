"""The public call as torch sees it: one operator, its shapes without a run, and its backends."""

import math
import re

import oracle
import pytest
import torch
from torch import library

from flashkit import attention, flash_attention, runtime


def inputs(t=5, s=9, d=16):
    return oracle.draw(0, 2, (4, 2), t, s, d)


def test_the_operator_keeps_the_rules_of_torch():
    """Schema, fake shapes and strides, autograd registration, tracing with changing shapes."""
    every = (None, True, None, None, None, None, "auto")
    library.opcheck(torch.ops.flashkit.flash_fwd.default, (*inputs(), *every))
    some = (3, False, 4, -0.5, 16, 32, "triton")
    library.opcheck(torch.ops.flashkit.flash_fwd.default, (*inputs(), *some))


@pytest.mark.parametrize("causal", [True, False])
def test_one_graph_without_a_break(causal):
    """torch.compile with fullgraph=True fails at anything that it cannot follow."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(q, k, v):
        o, lse = flash_attention(q * 2, k, v, causal=causal, window=6, return_lse=True)
        return o * lse[..., None]

    for t, s in ((5, 9), (6, 11)):
        q, k, v = inputs(t, s)
        o, lse = flash_attention(q * 2, k, v, causal=causal, window=6, return_lse=True)
        torch.testing.assert_close(twice(q, k, v), o * lse[..., None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn])
def test_shapes_and_strides_are_known_without_a_run(dtype):
    """Contiguous, whatever the inputs' strides, as a compiled graph will assume."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).to(dtype) for x in inputs())
    fake = [x.to("meta") for x in (q, k, v)]
    real = torch.ops.flashkit.flash_fwd(q, k, v, None, True, None, None, None, None, "triton")
    shapes = torch.ops.flashkit.flash_fwd(*fake, None, True, None, None, None, None, "triton")
    for got, want in zip(shapes, real, strict=True):
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


def test_an_error_is_the_same_through_the_operator():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="k must have shape"):
        flash_attention(q, k[..., :8], v)
    with pytest.raises(ValueError, match=re.escape("k must be a torch.Tensor, got list")):
        flash_attention(q, k.tolist(), v)


class Kernel:
    """A module that stands for a backend: it says whether it serves, and what it was given."""

    def __init__(self, reason=""):
        self.reason, self.calls = reason, []

    def serves(self, q, k, v, dims, *, causal, window, scale):
        return self.reason

    def launch(self, q, k, v, dims, **options):
        self.calls.append(options)
        return q, q[..., 0].float()


def backends(monkeypatch, hopper, triton):
    """Compiled mode, with these two modules in place of the real ones."""
    modules = {"hopper": hopper, "triton": triton}
    monkeypatch.setattr(attention.importlib, "import_module", modules.__getitem__)
    monkeypatch.setattr(runtime, "interpreting", lambda: False)
    monkeypatch.setattr(attention, "check_kernel_inputs", attention.check_qkv)
    for name, module in modules.items():
        entry = attention.Backend(name, "launch", name == "triton", ())
        monkeypatch.setitem(attention.BACKENDS, name, entry)
        assert module.calls == []


@pytest.mark.parametrize(
    ("reason", "tiles", "used"),
    [("", {}, "hopper"), ("no", {}, "triton"), ("", {"block_m": 64}, "triton")],
)
def test_auto_takes_the_fastest_that_serves(monkeypatch, reason, tiles, used):
    """Where the caller chooses tiles, a backend that chooses its own does not serve."""
    kernels = {"hopper": Kernel(reason), "triton": Kernel()}
    backends(monkeypatch, **kernels)
    flash_attention(*inputs(), **tiles)
    assert {name: len(kernel.calls) for name, kernel in kernels.items()} == {
        "hopper": used == "hopper",
        "triton": used == "triton",
    }
    (options,) = kernels[used].calls
    assert options.pop("scale") == 1 / math.sqrt(16)
    assert options.pop("offset") == 4
    assert options.pop("block_m", None) == tiles.get("block_m")
    assert options.pop("block_n", None) is None
    assert options == {"causal": True, "window": None}


def test_a_backend_that_does_not_serve_says_why(monkeypatch):
    backends(monkeypatch, Kernel("it needs a Hopper GPU"), Kernel())
    message = "backend 'hopper' does not serve these inputs: it needs a Hopper GPU"
    with pytest.raises(ValueError, match=message):
        flash_attention(*inputs(), backend="hopper")
    with pytest.raises(ValueError, match="these inputs: it chooses its own tiles"):
        flash_attention(*inputs(), backend="hopper", block_n=64)


@pytest.mark.skipif(not runtime.interpreting(), reason="what auto means in the interpreter")
def test_auto_is_the_teaching_kernel_in_the_interpreter():
    """The explorers and the grader watch the loads of the kernel that the lessons show."""
    q, k, v = inputs()
    teaching = flash_attention(q, k, v, return_lse=True, backend="teaching")
    auto = flash_attention(q, k, v, return_lse=True)
    assert all(torch.equal(x, y) for x, y in zip(auto, teaching, strict=True))
