"""A cache in pages: the answer is that of the same cache in one piece, whatever lies around it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import library

from flashkit import flash_decode, paged_decode

pytestmark = pytest.mark.filterwarnings("error")

GARBAGE = -(2**30)
"""A table entry that would end the process if a kernel followed it."""


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """A partial result that nobody wrote shows as NaN."""
    oracle.poison_new_tensors(monkeypatch)


def in_pages(k, v, page, lengths, window=None):
    """Pages of k and v and their table; NaN in rows and garbage in entries that nobody sees."""
    k, v = k.clone(), v.clone()
    first = [max(0, n - window) if window else 0 for n in lengths]
    for b, length in enumerate(lengths):
        for x in (k, v):
            x[b, :, length:] = math.nan
            x[b, :, : first[b]] = math.nan
    (k_pages, table), (v_pages, _) = (oracle.paginate(x, page) for x in (k, v))
    for b, length in enumerate(lengths):
        table[b, -(-length // page) :] = GARBAGE
        table[b, : first[b] // page] = GARBAGE
    return k_pages, v_pages, table


def check(q, k, v, page, lengths, *, window=None, num_splits=None):
    offset = np.array(lengths) - 1
    want, want_lse = oracle.attention(q, k, v, offset, window=window)
    baseline = oracle.eager(q, k, v, torch.tensor(offset, device=q.device), window=window)
    pages = in_pages(k, v, page, lengths, window)
    o, lse = paged_decode(
        q, *pages, torch.tensor(lengths, device=q.device),
        window=window, num_splits=num_splits, return_lse=True,
    )  # fmt: skip
    oracle.assert_within_budget(o, want, baseline)
    oracle.assert_same(lse, want_lse, 1e-5)


@pytest.mark.parametrize("page", [1, 16, 24, 64, 128])
@pytest.mark.parametrize("num_splits", [None, 1, 3, 40])
def test_pages_and_splits(page, num_splits):
    """Pages smaller than a tile, larger, and no multiple of it; a full last page; length 0."""
    check(*oracle.draw(0, 4, (4, 2), 1, 144, 16), page, [0, 1, 77, 144], num_splits=num_splits)


@pytest.mark.parametrize("page", [16, 128])
@pytest.mark.parametrize("window", [1, 20, 64, 500])
def test_pages_before_a_window_may_be_gone(page, window):
    check(*oracle.draw(1, 2, (2, 1), 1, 260, 16), page, [257, 70], window=window, num_splits=2)


@pytest.mark.parametrize("heads", [(3, 1), (5, 1), (16, 2), (20, 1)])
def test_groups(heads):
    check(*oracle.draw(2, 1, heads, 1, 70, 16), 16, [67], num_splits=2)


@pytest.mark.parametrize("d", [17, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_head_dims(d, dtype):
    check(*oracle.draw(3, 1, (2, 1), 1, 70, d, dtype), 16, [69], num_splits=2)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=3),
    page=st.sampled_from([5, 16, 64]),
    splits=st.integers(1, 6),
    window=st.one_of(st.none(), st.integers(1, 90)),
)
def test_pages_change_nothing(lengths, page, splits, window):
    """The pages of a cache give what the cache gives, bit for bit where the tiles are the same."""
    q, k, v = oracle.draw(sum(lengths), len(lengths), (2, 1), 1, 90, 128)
    want, want_lse = flash_decode(
        q, k, v, lengths=lengths, window=window, num_splits=splits, return_lse=True,
        backend="triton",
    )  # fmt: skip
    pages = in_pages(k, v, page, lengths, window)
    o, lse = paged_decode(q, *pages, lengths, window=window, num_splits=splits, return_lse=True)
    assert torch.equal(o, want)
    assert torch.equal(lse, want_lse)


@settings(max_examples=10, deadline=None)
@given(length=st.integers(1, 200), splits=st.integers(2, 9))
def test_splits_change_nothing_but_the_last_digits(length, splits):
    q, k, v = oracle.draw(length, 1, (2, 1), 1, length, 128)
    want = flash_decode(q, k, v, num_splits=1, backend="triton")
    got = flash_decode(q, k, v, num_splits=splits, backend="triton")
    oracle.assert_same(got, oracle.numpy64(want), 1e-5)


def test_pages_that_two_sequences_share_and_any_strides():
    """A prefix is held once; heads may come before rows in memory; the table may be a slice."""
    q, k, v = oracle.draw(4, 2, (4, 2), 1, 96, 16)
    k[1], v[1] = k[0], v[0]
    k_pages, v_pages, table = in_pages(k, v, 16, [96, 96])
    table[1] = table[0]
    heads_first = k_pages.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.full((2, 2 * table.shape[1]), GARBAGE, dtype=torch.int32, device=q.device)
    wide[:, ::2] = table
    lengths = torch.tensor([96, 40], device=q.device)
    want, _ = oracle.attention(q, k, v, np.array([95, 39]))
    o = paged_decode(q, heads_first, v_pages, wide[:, ::2], lengths, num_splits=2)
    oracle.assert_same(o, want)


def test_nothing_to_do():
    """No sequence, no page in the table, no key."""
    q, k, v = oracle.draw(5, 2, (2, 1), 1, 16, 16)
    k_pages, v_pages, table = in_pages(k, v, 16, [16, 16])
    o, lse = paged_decode(q, k_pages, v_pages, table[:, :0], [0, 0], return_lse=True)
    assert (o == 0).all()
    assert (lse == -math.inf).all()
    nobody = torch.zeros(0, dtype=torch.int32)
    assert paged_decode(q[:0], k_pages, v_pages, table[:0], nobody).shape == (0, 2, 1, 16)


def test_it_is_one_operator_for_the_compiler():
    q, k, v = oracle.draw(6, 2, (4, 2), 1, 70, 16)
    pages = in_pages(k, v, 16, [70, 3])
    lengths = torch.tensor([70, 3], device=q.device)
    library.opcheck(torch.ops.flashkit.paged_decode, (q, *pages, lengths, None, 2))


def wrong(**changes):
    """Good arguments with some of them replaced."""
    q, k, v = oracle.draw(7, 2, (2, 1), 1, 32, 16)
    k_pages, v_pages, table = in_pages(k, v, 16, [32, 20])
    arguments = {"q": q, "k_pages": k_pages, "v_pages": v_pages, "block_table": table}
    return {**arguments, "lengths": [32, 20], **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"q": torch.zeros(2, 2, 2, 16)},
            r"q must have shape \(B, Hq, 1, D\), got \(2, 2, 2, 16\)",
        ),
        ({"k_pages": torch.zeros(7, 16, 16)}, r"k_pages must have 4 dimensions \(B, H, T, D\)"),
        ({"k_pages": torch.zeros(7, 8, 1, 16)}, "k_pages and v_pages must have one shape"),
        ({"block_table": [[0, 1], [2, 3]]}, "block_table must be a torch.Tensor, got list"),
        ({"block_table": torch.zeros(3, 2, dtype=torch.int32)}, r"shape \(2, n\)"),
        ({"block_table": torch.zeros(2, 2)}, "must be int32 or int64"),
        ({"lengths": [32]}, r"lengths must be int32 or int64 of shape \(2,\)"),
        ({"lengths": [33, 0]}, r"lengths must be from 0 to S = 32, got \[33, 0\]"),
        ({"num_splits": 0}, "num_splits must be an integer >= 1"),
        ({"window": 0}, "window must be an integer >= 1"),
    ],
)
def test_wrong_arguments(changes, message):
    changes = {k: v.to(oracle.DEVICE) if hasattr(v, "to") else v for k, v in changes.items()}
    with pytest.raises(ValueError, match=message):
        paged_decode(**wrong(**changes))


@pytest.mark.skipif(oracle.DEVICE != "cpu", reason="a table on the GPU is not read on the host")
@pytest.mark.parametrize("entry", [-1, 7])
def test_a_used_entry_that_is_no_page_is_refused_by_name(entry):
    arguments = wrong()
    arguments["block_table"][1, 1] = entry
    with pytest.raises(ValueError, match=r"block_table\[1\] must name pages from 0 to 6"):
        paged_decode(**arguments)
    paged_decode(**arguments | {"lengths": [32, 16]})


def test_gradients_are_refused_by_name():
    arguments = wrong()
    arguments["k_pages"].requires_grad_()
    with pytest.raises(NotImplementedError, match="use online_attention"):
        paged_decode(**arguments)


def test_it_compiles_and_pages_do_not_shorten_what_is_loaded_ahead():
    """The interpreter accepts what the compiler refuses; a page id that is a pipeline stage of its
    own would leave k and v one tile of three stages instead of two. It needs no GPU.
    """
    script = Path(__file__).with_name("compile_decode.py")
    command = [sys.executable, script, "0", "16", "48", "64", "128"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) == 6
    assert all(line["tiles ahead"] == 2 for line in found), found
