"""Each contract says what must hold and what was given."""

import re

import pytest
import torch

from flashkit import contracts, runtime


def qkv(q=(2, 4, 3, 16), k=(2, 2, 5, 16), v=(2, 2, 5, 16), dtype=torch.float32):
    return tuple(torch.zeros(shape, dtype=dtype) for shape in (q, k, v))


def test_dims():
    dims = contracts.check_qkv(*qkv(v=(2, 2, 5, 8)))
    assert dims == (2, 4, 2, 3, 5, 16, 8)
    assert dims.group == 2


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (4, 3, 16)}, "q must have 4 dimensions (B, H, T, D), got (4, 3, 16)"),
        (
            {"k": (2, 2, 5, 8)},
            "k must have shape (B, Hkv, S, D) = (2, Hkv, S, 16), got (2, 2, 5, 8)",
        ),
        ({"k": (1, 2, 5, 16)}, "k must have shape"),
        ({"v": (2, 2, 6, 16)}, "v must have shape (B, Hkv, S, Dv) = (2, 2, 5"),
        ({"v": (2, 2, 6, 16)}, "got (2, 2, 6, 16)"),
        ({"v": (2, 1, 5, 16)}, "v must have shape"),
        (
            {"q": (2, 3, 3, 16)},
            "query heads must be a multiple of KV heads, got Hq = 3, Hkv = 2",
        ),
        ({"k": (2, 0, 5, 16), "v": (2, 0, 5, 16)}, "multiple of KV heads, got Hq = 4, Hkv = 0"),
    ],
)
def test_shapes(shapes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        contracts.check_qkv(*qkv(**shapes))


def test_types():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="k must be a torch.Tensor, got list"):
        contracts.check_qkv(q, k.tolist(), v)
    with pytest.raises(ValueError, match=r"q must be a floating point tensor, got torch.int64"):
        contracts.check_qkv(q.long(), k.long(), v.long())
    with pytest.raises(
        ValueError, match=r"v must have q's dtype torch.float32, got torch.float64"
    ):
        contracts.check_qkv(q, k, v.double())
    with pytest.raises(ValueError, match="k must be on q's device cpu, got meta"):
        contracts.check_qkv(q, k.to("meta"), v)


def test_one_shape():
    contracts.check_shape("lse", torch.zeros(2, 4, 3), (2, 4, 3))
    with pytest.raises(ValueError, match=re.escape("lse must have shape (2, 4), got (2, 4, 1)")):
        contracts.check_shape("lse", torch.zeros(2, 4, 1), (2, 4))
    with pytest.raises(ValueError, match="lse must be a torch.Tensor, got NoneType"):
        contracts.check_shape("lse", None, (2, 4))


@pytest.mark.parametrize("value", [0, -3, 2.0, "4", True])
def test_positive(value):
    with pytest.raises(
        ValueError, match=re.escape(f"window must be an integer >= 1, got {value!r}")
    ):
        contracts.check_positive("window", value)
    contracts.check_positive("window", 1)
    contracts.check_positive("window", None)


@pytest.mark.parametrize("value", [0, 8, 24, -16, 16.0, None, True])
def test_block(value):
    message = f"block_m must be a power of two >= 16, got {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        contracts.check_block("block_m", value)
    contracts.check_block("block_m", 16)


@pytest.mark.parametrize("value", [1.0, "0", torch.tensor(1), True])
def test_offset(value):
    with pytest.raises(ValueError, match="query_offset must be an integer, got"):
        contracts.check_offset(value)
    contracts.check_offset(-7)


@pytest.mark.parametrize("d", [8, 15, 257])
def test_head_dim_of_kernels(d):
    with pytest.raises(ValueError, match=f"head dim D must be from 16 to 256, got {d}"):
        contracts.check_kernel_inputs(*qkv((1, 1, 2, d), (1, 1, 2, d), (1, 1, 2, d)))


def test_other_kernel_contracts():
    with pytest.raises(ValueError, match="the kernels need v's head dim to be q's: 16, got 32"):
        contracts.check_kernel_inputs(*qkv(v=(2, 2, 5, 32)))
    with pytest.raises(ValueError, match=r"got torch.float64; online_attention takes float64"):
        contracts.check_kernel_inputs(*qkv(dtype=torch.float64))


def test_bfloat16_is_refused_in_the_interpreter(monkeypatch):
    monkeypatch.setattr(runtime, "interpreting", lambda: True)
    with pytest.raises(ValueError, match="bfloat16 gives wrong numbers in Triton's interpreter"):
        contracts.check_kernel_inputs(*qkv(dtype=torch.bfloat16))


def test_compiled_kernels_need_a_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "interpreting", lambda: False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1 before flashkit is imported"):
        contracts.check_kernel_inputs(*qkv())
