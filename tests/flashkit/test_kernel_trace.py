"""A kernel's variables are recorded step by step, and told apart by what they hold."""

import math
import sys

import lesson_kernel
import pytest
import torch

import flashkit
from flashkit import runtime
from flashkit.kernel_trace import compare, numbers, parse_names, record
from flashkit.reference import causal_attention

needs_interpreter = "needs Triton's interpreter: on a GPU, run with TRITON_INTERPRET=1"
pytestmark = pytest.mark.skipif(not runtime.interpreting(), reason=needs_interpreter)

INIT = 'm = tl.full((BLOCK_M,), -float("inf"), tl.float32)'
EXP2 = {
    '_precision="ieee") * scale': '_precision="ieee") * (scale * 1.4426950408889634)',
    "tl.exp(": "tl.exp2(",
}
RENAMED = {
    "m_new": "best", " m = ": " top = ", "maximum(m, ": "maximum(top, ", "exp(m - ": "exp(top - ",
    " l = ": " total = ", "alpha * l +": "alpha * total +", "(l == 0.0, 1.0, l)":
    "(total == 0.0, 1.0, total)", "acc": "result",
}  # fmt: skip
HELPER = {
    "@triton.jit\ndef _flash_kernel": "@triton.jit\ndef _nothing(x):\n    return x\n\n\n"
    "@triton.jit\ndef _flash_kernel",
    "m = m_new": "m = _nothing(m_new)",
}
WHILE = {
    "for start in range(0, stop, BLOCK_N):": "start = 0\n    while start < stop:",
    "        m = m_new": "        m = m_new\n        start += BLOCK_N",
}
COUNTED = {
    "for start in range(0, stop, BLOCK_N):\n        keys = start + offs_n":
    "for i in range(0, tl.cdiv(stop, BLOCK_N)):\n        keys = (i * BLOCK_N + offs_n) * 1",
}  # fmt: skip
BACKWARDS = {
    "range(0, stop, BLOCK_N)": "range((stop - 1) // BLOCK_N * BLOCK_N, -1, -BLOCK_N)",
}
REVERSED = {"pid_m = tl.program_id(0)": "pid_m = tl.num_programs(0) - 1 - tl.program_id(0)"}
FINITE = {'-float("inf")': "-1.0e9"}
DIVIDED = {
    "alpha * l + tl.sum(p, axis=1)": "alpha * l + tl.sum(p, axis=1)\n        r = 1.0 / l",
    "acc = acc * alpha[:, None] + ": "acc = acc * (alpha * l_old * r)[:, None] + r[:, None] * ",
    "        keys = start + offs_n": "        l_old = l\n        keys = start + offs_n",
    "o = acc / tl.where(l == 0.0, 1.0, l)[:, None]": "o = acc",
}


def draw(t=48, s=48, d=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, 1, n, d, generator=generator) for n in (t, s, s))


def recorded(function, qkv, offset=None, block_m=16, block_n=16):
    return record(lambda: function(*qkv, offset, block_m=block_m, block_n=block_n))


def compared(recording, qkv, tile, offset=None, names=None, block_m=16, block_n=16):
    q, k, v = (x[0, 0] for x in qkv)
    offset = len(k) - len(q) if offset is None else offset
    blocks = {"block_m": block_m, "block_n": block_n}
    return compare(
        recording, q, k, v, offset=offset, query_tile=tile, names=names or {}, **blocks
    )  # fmt: skip


def running_maximum(qkv, row, offset, ends):
    """Independent of flashkit: the largest visible score among the first `end` keys."""
    q, k, _ = (x[0, 0].double() for x in qkv)
    scores = (k @ q[row] / math.sqrt(k.shape[1]))[: row + offset + 1]
    return [scores[:end].max().item() for end in ends]


def first_wrong(found):
    tiles = [found.first_wrong(row) for row in range(len(found.problem.rows))]
    return min((tile for tile in tiles if tile is not None), default=None)


def assert_right(recording, qkv, tiles, **how):
    for tile in range(tiles):
        found = compared(recording, qkv, tile, **how)
        assert found.mine
        assert set(found.names) == {"m", "l", "acc"}
        assert first_wrong(found) is None
        assert not any(found.missed(row) for row in range(len(found.problem.rows)))


@pytest.fixture
def kernel(tmp_path):
    """A function: changes to the lesson's kernel -> its flash_attention."""
    return lambda changes=None: lesson_kernel.flash_attention(tmp_path, changes)


def test_m_is_the_running_maximum_in_our_kernel():
    qkv = draw(40, 70)
    recording = recorded(flashkit.flash_attention, qkv)
    assert recording.kernel == "_flash_fwd_kernel"
    assert recording.carried == ("m", "l", "acc")
    found = compared(recording, qkv, 1)
    got = [mine["m"][3].item() for mine in found.mine]
    assert got == pytest.approx(running_maximum(qkv, 19, 30, [16, 32, 48, 64]), abs=1e-5)
    assert_right(recording, qkv, 3)


def test_m_is_the_running_maximum_in_the_lesson_s_kernel(kernel):
    qkv = draw()
    recording = recorded(kernel(), qkv)
    found = compared(recording, qkv, 2)
    assert found.names == {"m": "m", "l": "l", "acc": "acc"}
    assert found.tiles == [range(0, 16), range(16, 32), range(32, 48)]
    got = [mine["m"][0].item() for mine in found.mine]
    assert got == pytest.approx(running_maximum(qkv, 32, 0, [16, 32, 48]), abs=1e-5)
    state = found.mine[-1]
    want = causal_attention(*(x.double() for x in qkv))[0, 0, 32:]
    assert torch.allclose(state["acc"] / state["l"][:, None], want, atol=1e-5)
    assert_right(recording, qkv, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (HELPER, ""), (WHILE, ""), (COUNTED, ""), (BACKWARDS, ""), (REVERSED, ""), (FINITE, ""),
        (EXP2, "scaled by log2 e"), (DIVIDED, "divided by l"), (RENAMED, "top is taken for m"),
    ],
    ids=["helper", "while", "counted", "backwards", "reversed", "finite", "exp2", "divided"]
    + ["renamed"],
)  # fmt: skip
def test_another_right_kernel_is_right(kernel, changes, said):
    qkv = draw(40, 44)
    recording = recorded(kernel(changes), qkv)
    assert recording.error is None
    assert_right(recording, qkv, 3)
    assert said in " ".join(compared(recording, qkv, 2).notes)


def test_tiles_of_other_sizes(kernel):
    qkv = draw(48, 60)
    recording = recorded(kernel(), qkv, block_m=32, block_n=16)
    assert_right(recording, qkv, 2, block_m=32)
    assert_right(recording, qkv, 2)  # the kernel's own sizes count, whatever was asked for
    assert len(compared(recording, qkv, 1).problem.rows) == 16  # 48 = 32 + 16


def test_rows_that_see_nothing(kernel):
    qkv = draw(48, 16)
    assert_right(recorded(kernel(), qkv, -20), qkv, 0, offset=-20)
    found = compared(recorded(kernel(), qkv, -20), qkv, 1, offset=-20)
    assert found.mine[0]["m"][0].item() == -math.inf
    assert first_wrong(found) is None


BUGS = {
    "l_not_rescaled": ({"l = alpha * l + tl.sum": "l = l + tl.sum"}, 2, 1),
    "acc_not_rescaled": ({"acc = acc * alpha[:, None] + ": "acc = acc + "}, 2, 1),
    "nothing_rescaled": (
        {"l = alpha * l + tl.sum": "l = l + tl.sum", "acc = acc * alpha[:, None] + ": "acc += "},
        2, 1,
    ),
    "alpha_inverted": ({"tl.exp(m - reference)":
                        "tl.where(m == -float('inf'), 0.0, tl.exp(reference - m))"}, 2, 1),
    "no_max": ({INIT: "m = tl.zeros((BLOCK_M,), tl.float32)",
                "m_new = tl.maximum(m, tl.max(s, axis=1))": "m_new = m * 1.0"}, 2, 0),
    "max_starts_at_zero": ({INIT: "m = tl.zeros((BLOCK_M,), tl.float32)"}, 0, 0),
    "scale_missing": ({'_precision="ieee") * scale': '_precision="ieee")'}, 2, 0),
    "causal_strict": ({"keys[None, :] <= positions": "keys[None, :] < positions"}, 2, 2),
    "causal_ignored": ({"(keys[None, :] <= positions[:, None]) & ": ""}, 2, 2),
    "divided_early": ({"        m = m_new": "        m = m_new\n        acc = acc / tl.where("
                       "l == 0.0, 1.0, l)[:, None]"}, 2, 0),
}  # fmt: skip


@pytest.mark.parametrize("fault", BUGS)
def test_a_planted_bug_is_stopped_at_its_tile_and_named(kernel, fault):
    changes, query_tile, tile = BUGS[fault]
    qkv = draw()
    found = compared(recorded(kernel(changes), qkv), qkv, query_tile)
    assert first_wrong(found) == tile
    assert found.faults(tile) == (fault,)


def test_a_renamed_kernel_with_a_bug_is_still_understood(kernel):
    changes = RENAMED | {"total = alpha * total + tl.sum": "total = total + tl.sum"}
    qkv = draw()
    found = compared(recorded(kernel(changes), qkv), qkv, 2)
    assert found.names == {"m": "top", "l": "total", "acc": "result"}
    assert first_wrong(found) == 1
    assert found.faults(1) == ("l_not_rescaled",)


@pytest.mark.parametrize(
    ("changes", "fault", "s"),
    [
        ({"offset + tl.minimum(T, (pid_m": "tl.minimum(T, (pid_m"}, "bound_without_offset", 64),
        ({"tl.minimum(S, offset": "tl.minimum(S // BLOCK_N * BLOCK_N, offset"},
         "last_tile_skipped", 70),
        ({"(pid_m + 1) * BLOCK_M)": "pid_m * BLOCK_M)"}, None, 80),
    ],
)  # fmt: skip
def test_a_loop_that_ends_too_early(kernel, changes, fault, s):
    qkv = draw(48, s)
    found = compared(recorded(kernel(changes), qkv), qkv, 2)
    assert first_wrong(found) is None
    assert found.missed(15)[-1] == s - 1
    assert found.bound_fault() == fault


def test_a_tile_that_is_cut_in_the_middle(kernel):
    """The loop's end is also the mask: row 0 stands at 54 and the kernel stops before key 54."""
    qkv = draw(48, 70)
    found = compared(recorded(kernel({"(pid_m + 1) * BLOCK_M)": "pid_m * BLOCK_M)"}), qkv), qkv, 2)
    assert found.first_wrong(0) == 3
    assert found.faults(3) == ()
    assert found.reach(3, 0) == 54


def test_names_can_be_given(kernel):
    qkv = draw()
    recording = recorded(kernel(), qkv)
    found = compared(recording, qkv, 2, names=parse_names("m = m_new"))
    assert found.names["m"] == "m_new"
    with pytest.raises(ValueError, match="no variable nonsense"):
        compared(recording, qkv, 2, names={"l": "nonsense"})
    with pytest.raises(ValueError, match="acc has shape"):
        compared(recording, qkv, 2, names={"acc": "m"})
    assert parse_names(" m=top ,l = total;acc=x,") == {"m": "top", "l": "total", "acc": "x"}
    with pytest.raises(ValueError, match="write names as in"):
        parse_names("q = top")


def test_what_is_not_found_is_said(kernel):
    """acc as two halves: no variable of its shape is carried."""
    qkv = draw()
    recording = recorded(kernel(), qkv)
    recording.carried = ("m",)
    found = compared(recording, qkv, 2)
    assert found.names == {"m": "m"}
    assert "l, the running sum of p, was not found" in found.notes[0]
    assert first_wrong(found) is None


def test_a_kernel_that_raises_in_the_middle(kernel):
    changes = {
        "        alpha = ": "        if start == 16:\n            tl.wrong\n        alpha = "
    }
    recording = recorded(kernel(changes), draw())
    assert isinstance(recording.error, AttributeError)
    assert [(step.program, step.number) for step in recording.iterations] == [(0, 0), (1, 0)]


def test_the_trace_function_is_put_back(kernel):
    def mine(*_):
        return None

    def interrupt():
        raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        record(lambda: kernel()(*draw()))
        assert sys.gettrace() is mine
        assert isinstance(record(lambda: 1 / 0).error, ZeroDivisionError)
        assert sys.gettrace() is mine
        with pytest.raises(KeyboardInterrupt):
            record(interrupt)
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)


def test_without_a_kernel_or_the_interpreter_it_says_so(monkeypatch):
    with pytest.raises(ValueError, match=r"no @triton.jit kernel with a loop"):
        record(lambda: None)
    with pytest.raises(ValueError, match="kernel named other with"):
        record(lambda: flashkit.flash_attention(*draw()), "other")
    monkeypatch.setattr(runtime, "interpreting", lambda: False)
    with pytest.raises(ValueError, match="needs TRITON_INTERPRET=1"):
        record(lambda: None)


def test_a_long_run_is_cut():
    recording = record(lambda: flashkit.flash_attention(*draw(), block_m=16), max_events=2)
    assert recording.cut
    assert len(recording.iterations) == 2


def test_what_holds_no_numbers_is_left_out():
    assert numbers(None) is None
    assert numbers("text") is None
    assert numbers(3).item() == 3
