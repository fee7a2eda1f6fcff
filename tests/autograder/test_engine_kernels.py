"""Are Triton kernels graded: the right one fully, a wrong one by name and first wrong tile?"""

import pytest
import torch

from autograder.engine import SolutionCell, grade

PRELUDE = """
import math
import flashkit
import torch
import triton
import triton.language as tl
"""

KERNEL = """
@triton.jit
def _kernel(q_ptr, k_ptr, v_ptr, o_ptr, stride_qh, stride_kh, T, S, offset, heads, group, scale,
            D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    pid_m, bh = tl.program_id(0), tl.program_id(1)
    kv_heads = heads // group
    kv = bh // heads * kv_heads + (bh % heads) // group
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    rows = offs_m[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + bh * stride_qh + rows, mask=offs_m[:, None] < T, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    for start in range(0, tl.minimum(S, offset + (pid_m + 1) * BLOCK_M), BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        keys = kv * stride_kh + offs_n[:, None] * D + offs_d[None, :]
        k = tl.load(k_ptr + keys, mask=offs_n[:, None] < S, other=0.0)
        v = tl.load(v_ptr + keys, mask=offs_n[:, None] < S, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee").to(tl.float32) * scale
        visible = (offs_n[None, :] <= offset + offs_m[:, None]) & (offs_n[None, :] < S)
        s = tl.where(visible, s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, axis=1))
        seen = tl.where(m_new == -float("inf"), 0.0, m_new)
        alpha = tl.exp(m - seen)
        p = tl.exp(s - seen[:, None])
        l = alpha * l + tl.sum(p, axis=1)
        acc = alpha[:, None] * acc + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    total = tl.where(l == 0.0, 1.0, l)
    out = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + bh * stride_qh + rows, out, mask=offs_m[:, None] < T)


def flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32):
    batch, heads, t, d = q.shape
    s = k.shape[2]
    offset = s - t if query_offset is None else query_offset
    q, k, v = (x.contiguous() for x in (q, k, v))
    o = torch.empty_like(q)
    _kernel[(triton.cdiv(t, block_m), batch * heads)](
        q, k, v, o, t * d, s * d, t, s, offset, heads, heads // k.shape[1], d**-0.5,
        D=d, BLOCK_M=block_m, BLOCK_N=block_n)
    return o
"""

BUGS = {
    "max_starts_at_zero": ('tl.full((BLOCK_M,), -float("inf"), tl.float32)', "0.0 * tl.sum(q, 1)"),
    "max_frozen": (
        "tl.maximum(m, tl.max(s, axis=1))",
        "tl.where(m < -1e30, tl.max(s, axis=1), m)",
    ),
    "l_not_rescaled": ("alpha * l +", "l +"),
    "acc_not_rescaled": ("alpha[:, None] * acc +", "acc +"),
    "not_divided": ("acc / total[:, None]", "acc"),
    "scale_by_d": ("d**-0.5", "1 / d"),
    "causal_strict": ("<= offset", "< offset"),
    "offset_ignored": ("<= offset + offs_m", "<= offs_m"),
    "bound_without_offset": ("offset + (pid_m + 1)", "(pid_m + 1)"),
    "blocks_confused": ("(pid_m + 1) * BLOCK_M", "(pid_m + 1) * BLOCK_N"),
    "padded_keys_counted": (" & (offs_n[None, :] < S)", ""),
    "gqa_modulo": ("(bh % heads) // group", "(bh % heads) % kv_heads"),
}
SLOW = {fault for fault in BUGS if fault not in ("acc_not_rescaled", "gqa_modulo")}


@pytest.fixture
def graded(tmp_path):
    def run(source, device="cpu"):
        cells = [SolutionCell("flash_attention", source)]
        return grade(
            "flash_attention", cells, prelude=PRELUDE, device=device, seed=5, scratch=tmp_path
        )

    return run


def test_the_right_kernel_gets_all_points(graded):
    verdict = graded(KERNEL)
    assert [case for case in verdict.cases if not case.passed] == []
    assert verdict.points == 12


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=pytest.mark.slow if f in SLOW else ()) for f in BUGS]
)
def test_a_wrong_kernel_is_named(graded, fault):
    assert KERNEL.count(BUGS[fault][0]) == 1
    verdict = graded(KERNEL.replace(*BUGS[fault]))
    assert verdict.bug == fault
    assert 0 <= verdict.points < 12
    assert verdict.tile is not None


def test_an_error_in_a_kernel_is_told_by_its_line_in_the_cell(graded):
    verdict = graded(KERNEL.replace("tl.arange(0, BLOCK_M)", "tl.arange(0, 20)"))
    message = verdict.cases[0].message
    assert message.startswith("ValueError in line 8 of cell flash_attention")
    assert "tl.arange takes powers of two only" in message


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [None, "acc_not_rescaled", "gqa_modulo", "max_frozen"])
def test_kernels_are_graded_on_the_gpu(graded, fault):
    source = KERNEL.replace(*BUGS[fault]) if fault else KERNEL
    verdict = graded(source, device="cuda")
    assert verdict.bug == fault
    assert (verdict.points == 12) == (fault is None)
    assert verdict.device == "cuda"
    assert torch.cuda.is_available()


@pytest.mark.gpu
def test_a_fault_on_the_gpu_costs_its_own_case(graded):
    far = "q_ptr + bh * stride_qh + rows + tl.where(T == 37, 1 << 40, 0)"
    source = KERNEL.replace("q_ptr + bh * stride_qh + rows", far)
    failed = [case for case in graded(source, device="cuda").cases if not case.passed]
    assert [case.name for case in failed] == ["ragged lengths"]
    assert "past the end" in failed[0].message
