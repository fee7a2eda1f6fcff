"""Is an answer the student's own? Told by what runs, whatever it was called through."""

import importlib.util
import sys

import pytest
import torch

from flashkit.exercises import EXERCISES
from flashkit.exercises.calling import call
from flashkit.exercises.marking import error_text

HEAD = """
import math, threading, subprocess
import torch, triton
import torch.nn.functional as F
import triton.language as tl
import flashkit
from flashkit import attention, backward, online, reference
from flashkit.kernels.selftest import _copy_kernel
from torch.nn.attention.flex_attention import flex_attention

@triton.jit
def copy(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)

@triton.jit
def careless(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + offs, tl.load(x_ptr + offs))

@triton.jit
def dishonest(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    SIDE.append(torch.mm(SIDE[0], SIDE[0]))

SIDE = [torch.ones(2, 2)]

def copied(x):
    o = torch.empty_like(x)
    copy[(triton.cdiv(x.numel(), 16),)](x, o, x.numel(), BLOCK=16)
    return o
"""


@pytest.fixture
def answer(tmp_path):
    """The Answer of the lines of a function f(q, k), called as an exercise of a kind."""

    def run(lines, own_work="kernel", inputs=None):
        path = tmp_path / "cell.py"
        body = "".join(f"    {line}\n" for line in lines.splitlines())
        path.write_text(f"{HEAD}\ndef f(q, k):\n{body}")
        spec = importlib.util.spec_from_file_location("a_cell", path)
        module = sys.modules["a_cell"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        generator = torch.Generator().manual_seed(0)
        inputs = inputs or {n: torch.randn(1, 2, 9, 16, generator=generator) for n in "qk"}
        return call(module.f, inputs, "cpu", {str(path): "mine"}, own_work)

    yield run
    sys.modules.pop("a_cell", None)


REFUSED_IN_A_KERNEL = {
    "q @ k.mT": "torch's bmm",
    "torch.matmul(q, k.mT)": "torch's bmm",
    "torch.einsum('bhtd,bhsd->bhts', q, k)": "torch's bmm",
    "torch.ops.aten.bmm(q[0], k[0].mT)": "torch's bmm",
    "torch.Tensor.__matmul__(q, k.mT)": "torch's bmm",
    "F.linear(q, k[0, 0])": "torch's",
    "F.softmax(q, -1)": "torch's softmax",
    "q.softmax(-1)": "torch's softmax",
    "torch.special.log_softmax(q, -1)": "torch's log_softmax",
    "torch.exp(q - q)": "torch's exp",
    "(q[..., None, :] * k[..., None, :, :]).sum(-1)": "torch's sum",
    "torch.cdist(q, k)": "torch's",
    "F.conv1d(q[0], k[0].mT[:, :, :1].repeat(1, 1, 1).mT[:1])": "torch's",
    "F.scaled_dot_product_attention(q, k, k)": "torch's",
    "flex_attention(q, k, k)": "",
    "torch.nn.MultiheadAttention(16, 2, batch_first=True)(q[0], k[0], k[0])": "torch's",
    "attention.flash_attention(q, k, k)": "flashkit's own solution",
    "online.online_attention(q, k, k)": "flashkit's own solution",
    "reference.causal_attention(q, k, k)": "flashkit's own solution",
    "_copy_kernel[(1,)](q, k, 1, BLOCK=16)": "the kernel _copy_kernel is launched, which is not",
    "torch.from_numpy(q.numpy() @ k.mT.numpy())": "Tensor.numpy is called",
    "torch.tensor(q.tolist())": "Tensor.tolist is called",
    "dishonest[(1,)](q, q, 1, BLOCK=16)": "torch's mm",
}


@pytest.mark.parametrize("expression", REFUSED_IN_A_KERNEL)
def test_a_kernel_may_not_be_done_by_others(answer, expression):
    got = answer(f"copied(q)\nreturn {expression}")
    assert got.error.type == "NotAllowed" or expression.startswith("flex")
    assert REFUSED_IN_A_KERNEL[expression] in got.error.message
    text = error_text(EXERCISES["flash_attention"], got.error)
    if "dishonest" not in expression:
        assert f"of cell mine (return {expression})"[:100] in text


def test_an_exception_that_is_swallowed_is_remembered(answer):
    got = answer("try: q @ k.mT\nexcept BaseException: pass\nreturn copied(q)")
    assert (got.error.type, got.error.code) == ("NotAllowed", "try: q @ k.mT")


def test_a_kernel_of_ones_own_must_be_launched(answer):
    got = answer("return q.clone()")
    assert "launched no @triton.jit function of yours" in got.error.message
    assert answer("return copied(q)").error is None


def test_what_a_launcher_needs_is_allowed(answer):
    lines = """
k = k.repeat_interleave(2, dim=1)[:, ::2].contiguous()
q = F.pad(q.half().float() * 0.5, (0, 16, 0, 7)).transpose(1, 2).reshape(-1, 32)
m = torch.full((9,), -math.inf); l = torch.ones_like(m); o = torch.zeros(9, 4)
assert torch.isfinite(k).all() and k.stride() and not k.isnan().any()
o = torch.where(l[:, None] == 0, 0.0, o / l[:, None]) + torch.log(l)[:, None]
return copied(q), torch.cat([m, l]), o.to(torch.float16), torch.arange(3), torch.tensor([1.0])
"""
    got = answer(lines)
    assert got.error is None, got.error
    assert got.value[0].isfinite().all()


REFUSED_IN_TORCH = {
    "torch.softmax(q, -1)": "torch's softmax",
    "F.scaled_dot_product_attention(q, k, k)": "attention",
    "online.update(online.EMPTY, q, k)": "flashkit's update",
    "flashkit.cost.tile_bounds(0, 9, 9, 0, 3, 3)": "flashkit's tile_bounds",
    "torch.autograd.grad((q.requires_grad_() @ k.mT).sum(), q)": "torch's autograd",
    "(q.requires_grad_() @ k.mT).sum().backward()": "torch's autograd",
    "torch.func.grad(lambda x: (x @ k.mT).exp().sum())(q)": "torch's autograd",
    "torch.func.vjp(lambda x: x @ k.mT, q)[1](q @ k.mT)": "torch's autograd",
    "backward.attention_backward(q, k, k, q, q[..., 0], q)": "flashkit's attention_backward",
}


@pytest.mark.parametrize("expression", REFUSED_IN_TORCH)
def test_torch_may_compute_but_not_the_whole_exercise(answer, expression):
    got = answer(f"return {expression}", "torch")
    assert got.error.type == "NotAllowed"
    assert REFUSED_IN_TORCH[expression] in got.error.message


def test_torch_and_the_helpers_of_flashkit_are_allowed(answer):
    lines = "flashkit.masks.visible(torch.arange(9)[None], torch.arange(9)[None])\nreturn q @ k.mT"
    got = answer(lines, "torch")
    assert got.error is None
    assert got.value.shape == (1, 2, 9, 9)
    assert answer("return torch.softmax(q, -1)", "").error is None


def test_uninitialised_memory_is_no_answer(answer):
    assert answer("copied(q)\nreturn torch.empty_like(q)").value.isnan().all()
    assert answer("copied(q)\nreturn q.new_empty(9)").value.isnan().all()
    assert answer("copied(q)\nreturn torch.empty(5, dtype=torch.float16)").value.isnan().all()


STORE = """
o = torch.empty_like(q)
careless[((q.numel() + 15) // 16,)](q, o, 0, BLOCK=16)
return o
"""


@pytest.mark.parametrize("n", [16, 31])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int32])
def test_a_store_past_the_end_is_seen(answer, n, dtype):
    inputs = {"q": torch.arange(n).to(dtype), "k": torch.zeros(1)}
    got = answer(STORE, inputs=inputs)
    assert (got.error is None) == (n == 16)
    if n == 31:
        assert "a tensor of shape (31,) that it made with torch.empty_like" in got.error.message
        into_input = answer(STORE.replace("(q, o,", "(o, q,"), inputs=inputs).error.message
        assert into_input.startswith("A store went outside of the input q.")


def test_a_store_between_the_rows_of_an_input_is_seen(answer):
    rows = torch.randn(6, 8)[:, :5]
    lines = "copied(k)\nq.as_strided((6, 6), (8, 1)).zero_()\nreturn k"
    assert "outside of the input q" in answer(lines, inputs={"q": rows, "k": rows}).error.message


def test_a_load_past_the_end_gives_nan(answer):
    inputs = {"q": torch.ones(18), "k": torch.ones(1)}
    got = answer("return copied(q.as_strided((20,), (1,)))", inputs=inputs)
    assert got.value[:18].eq(1).all()
    assert got.value[18:].isnan().all()


def test_where_torch_computes_the_largest_tensor_is_counted(answer):
    lines = "for i in range(9): x = q[:, :, :3] @ k.mT\nreturn (q.expand(5, 2, 9, 16)[0], {})"
    largest = answer(lines.format("x.sum()"), "torch").memory[0]
    assert largest == 4 * 288
    matrix = answer(lines.format("torch.zeros(99, 999).sum()"), "torch").memory[0]
    assert matrix == 4 * 99 * 999


def test_bytes_are_counted(answer):
    assert answer("torch.empty(100)\nq.view(-1)\nreturn copied(q)").memory == (400 + 4 * 288, 0)
