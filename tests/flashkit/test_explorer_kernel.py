"""The explorer of the learner's kernel: it stops where the kernel first differs and says why."""

import lesson_kernel
import pytest
import torch

import flashkit
from flashkit import runtime
from flashkit.widgets.explorers import kernel_explorer, kernel_steps
from flashkit.widgets.explorers.kernel import INPUTS, draw

needs_interpreter = "needs Triton's interpreter: on a GPU, run with TRITON_INTERPRET=1"
pytestmark = pytest.mark.skipif(not runtime.interpreting(), reason=needs_interpreter)

FORGOTTEN = {"l = alpha * l + tl.sum": "l = l + tl.sum"}
FROM_ZERO = {'m = tl.full((BLOCK_M,), -float("inf"), tl.float32)':
             "m = tl.zeros((BLOCK_M,), tl.float32)"}  # fmt: skip


@pytest.fixture
def kernel(tmp_path):
    """A function: changes to the lesson's kernel -> its flash_attention."""
    return lambda changes=None: lesson_kernel.flash_attention(tmp_path, changes)


def facts(step):
    return dict(step.facts)


def test_a_right_kernel_agrees_to_the_end(kernel):
    explorer = kernel_explorer(kernel())
    assert explorer.error == ""
    assert [facts(step)["verdict"] for step in explorer.steps] == ["agrees"] * 4
    assert explorer.steps[1].sentence.startswith("Tile 2, keys 16 to 31: m rises from 1.1330")
    assert explorer.steps[-1].sentence.startswith("All tiles agree (3), in every row")
    for step in explorer.steps:
        assert facts(step)["your m"] == facts(step)["right m"]


def test_a_forgotten_rescale_stops_it_at_the_second_tile(kernel):
    steps = kernel_explorer(kernel(FORGOTTEN)).steps
    assert len(steps) == 2
    last = steps[-1]
    assert facts(last)["verdict"] == "l differs"
    assert facts(last)["your l"] == "13.3848"
    assert "l differs: your l is 13.3848, right is 11.5161, too large by a factor" in last.sentence
    assert "m and acc are right. l is not multiplied by alpha" in last.sentence
    assert last.panels[1].kinds[1] == ("wrong", "plain", "wrong")
    assert last.panels[1].texts[1] == ("13.3848", "11.5161", "✗ differs")


def test_a_row_that_does_not_show_the_bug_says_which_one_does(kernel):
    explorer = kernel_explorer(kernel(FORGOTTEN))
    explorer.set(row=3)
    assert facts(explorer.steps[-1])["verdict"] == "stopped"
    assert "set query tile 2 and row 0, tile 2 differs" in explorer.steps[-1].sentence


def test_scores_far_below_zero_show_a_maximum_that_starts_at_zero(kernel):
    explorer = kernel_explorer(kernel(FROM_ZERO))
    explorer.set(inputs=INPUTS[1])
    assert len(explorer.steps) == 1
    assert "m must start at -inf" in explorer.steps[0].sentence
    assert facts(explorer.steps[0])["your l"] == "2.27e−15"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"o = acc / tl.where(l == 0.0, 1.0, l)[:, None]": "o = acc"}, "is not divided by l"),
        ({"o = acc / tl": "o = 2 * acc / tl"}, "Look at the division by l"),
        ({"range(0, stop, BLOCK_N)": "range(0, stop - BLOCK_N, BLOCK_N)"}, "never visited"),
        ({"range(0, stop, BLOCK_N)": "range(0, 0, BLOCK_N)"}, "keys 0 to 32 were never visited"),
        ({"        alpha = ": "        if start == 16:\n            tl.wrong\n        alpha = "},
         "stopped before it came to this query tile: choose query tile 1."),
        ({"        alpha = ": "        if start == 32:\n            tl.wrong\n        alpha = "},
         "Tile 3 was not finished. Your flash_attention raised AttributeError in line"),
        ({"    return o": "    return None"}, "but flash_attention returned"),
        ({"l = alpha * l + ": "l = 0.5 * l + "}, "compare the line that updates l"),
        ({"(keys[None, :] < stop)": "(keys[None, :] < stop - 16)",
          "keys[:, None] < stop": "keys[:, None] < S"},
         "Of this tile your values count no key, but the row sees key 32"),
    ],
)  # fmt: skip
def test_what_else_can_be_wrong_is_said(kernel, changes, said):
    assert said in kernel_explorer(kernel(changes)).steps[-1].sentence


def test_an_unwritten_kernel_shows_ours():
    def flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32):
        raise NotImplementedError

    explorer = kernel_explorer(flash_attention)
    assert explorer.error == ""
    assert explorer.steps[0].sentence.startswith("Your flash_attention is not written yet")
    assert len(explorer.steps) == 4


def test_an_exception_is_a_sentence():
    def flash_attention(q, k, v, query_offset=None, block_m=32, block_n=32):
        return q.nonsense

    (step,) = kernel_explorer(flash_attention).steps
    assert "Your flash_attention raised AttributeError" in step.sentence
    assert "nothing to compare" in step.sentence


def test_the_controls(kernel):
    explorer = kernel_explorer(kernel())
    explorer.set(t=20, s=50, offset="30", program=1, row=3)
    assert explorer.error == ""
    assert len(explorer.steps) == 5
    assert facts(explorer.steps[3])["keys"] == "48 to 49"
    explorer.set(row=4)
    assert explorer.error == "row of the tile must be 0 to 3, got 4"
    explorer.set(row=0, program=2)
    assert explorer.error == "query tile must be 0 to 1, got 2"
    explorer.set(program=0, offset="ten")
    assert "offset must be a whole number" in explorer.error
    explorer.set(offset="", names="m = m_new")
    assert explorer.error == ""
    assert explorer.steps[0].panels[1].rows[0] == "m_new (m)"
    explorer.set(names="m = nothing")
    assert "no variable nothing" in explorer.error


def test_the_kernel_runs_again_only_for_other_inputs(kernel):
    calls = []
    function = kernel()

    def counted(*arguments, **blocks):
        calls.append(arguments)
        return function(*arguments, **blocks)

    explorer = kernel_explorer(counted)
    explorer.set(row=5)
    explorer.set(program=0)
    assert len(calls) == 1
    explorer.set(s=60)
    assert len(calls) == 2


def test_outside_the_interpreter_it_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(runtime, "interpreting", lambda: False)
    explorer = kernel_explorer(flashkit.flash_attention)
    assert "needs TRITON_INTERPRET=1" in explorer.error


def test_one_head_only():
    q = torch.zeros(1, 2, 16, 16)
    with pytest.raises(ValueError, match="one batch and one head"):
        kernel_steps(flashkit.flash_attention, q, q, q)


@pytest.mark.parametrize("inputs", INPUTS)
def test_our_kernel_is_right_for_all_inputs(inputs):
    steps = kernel_steps(flashkit.flash_attention, *draw(inputs, 40, 70, 32), 1, 7)
    assert [facts(step)["verdict"] for step in steps] == ["agrees"] * 5
