"""Does check() say what is wrong, in words, and nothing else?"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

import flashkit
from flashkit import online
from flashkit.exercises import EXERCISES, CheckFailed, check, lesson1
from flashkit.exercises.calling import call
from flashkit.exercises.check import run_public
from flashkit.exercises.report import render_html, render_text


@pytest.fixture(autouse=True)
def _whoever_did_the_work(monkeypatch):
    """The answers here may be flashkit's own."""
    for name, exercise in EXERCISES.items():
        monkeypatch.setitem(EXERCISES, name, replace(exercise, own_work=""))


def run(exercise_id, function):
    return run_public(EXERCISES[exercise_id], function)


def right_update(m, l, a, scores, values):
    return tuple(online.update(online.State(m, l, a), scores, values))


def failure(exercise_id, function, name=None):
    """The report that check() raises when the notebook holds this function."""
    names = {"check": check, name or EXERCISES[exercise_id].function: function}
    with pytest.raises(CheckFailed) as caught:
        exec(f"check({exercise_id!r})", names)
    return str(caught.value)


def test_a_right_function_gets_one_line(capsys):
    exec("check('online_update')", {"check": check, "online_update": right_update})
    assert capsys.readouterr().out == "online_update: 4 of 4 public cases pass.\n"


def test_a_question_is_recorded_and_not_marked(capsys):
    exec("check('question_1')", {"check": check, "answer_1": lambda: "a"})
    assert capsys.readouterr().out == "question_1: recorded; marked when graded.\n"


@pytest.mark.parametrize("answer", ["e", "", "ab", None, 1, ["a"]])
def test_a_question_wants_one_of_its_letters(answer):
    assert "one of the letters a, b, c, d" in failure("question_1", lambda: answer)


def test_an_unknown_exercise_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"exercise must be one of predict_second_tile, .*'typo'"):
        check("typo")


def test_a_missing_function_is_named_with_its_signature():
    report = failure("online_update", right_update, name="another_name")
    assert "no function online_update" in report
    assert "online_update(m, l, a, scores, values) -> (m, l, a)" in report


def test_a_stub_is_not_written_yet():
    def stub(*args):
        raise NotImplementedError("about six lines")

    report = failure("online_update", stub)
    assert report.splitlines() == [
        "online_update: 0 of 4 public cases pass.",
        "online_update is not written yet.",
    ]


def test_a_notebook_shows_the_report_and_no_traceback():
    error = CheckFailed("two\nlines")
    assert error._render_traceback_() == ["two", "lines"]
    assert isinstance(error, AssertionError)


def test_a_classic_bug_is_named_with_index_wanted_and_got():
    def forgets_l(m, l, a, scores, values):
        m_new = torch.maximum(m, scores.max())
        safe = torch.where(m_new == -torch.inf, 0.0, m_new)
        p = torch.exp(scores - safe)
        return m_new, l + p.sum(), torch.exp(m - safe) * a + p @ values

    report = failure("online_update", forgets_l)
    assert "Likely reason: l is not multiplied by alpha" in report
    assert "✗ the maximum rises" in report
    assert "✓ the maximum stays" in report
    assert "catches: l or a that is not rescaled by alpha" in report
    assert "l is wrong: wanted 2.30302, got 5.94578; the largest error is 3.6" in report


def test_a_prediction_is_told_its_bug_and_not_the_answer():
    right, wrong = lesson1._predicted(), lesson1._predicted("l_not_rescaled")
    report = failure("predict_second_tile", lambda: right | {"l": wrong["l"]})
    assert f"l = {wrong['l']:g} is not right." in report
    assert "l is not multiplied by alpha" in report
    assert f"{right['l']:.2f}" not in report


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "got None (does the function end with return?)"),
        ("text", "got the str 'text'"),
        (torch.zeros(2), "got a tensor of shape (2,), float32"),
        ((torch.zeros(()), torch.zeros(())), "got a tuple of 2"),
        ((torch.zeros(()), torch.zeros(()), torch.zeros(7)), "a = a tensor of shape (7,)"),
        ((torch.zeros(()), torch.zeros(()), torch.zeros(3).double()), "a = dtype torch.float64"),
    ],
)
def test_a_wrong_type_or_shape_is_told_what_to_return(value, said):
    report = failure("online_update", lambda *args: value)
    assert "online_update must return a tuple (m, l, a)" in report
    assert said in report


def test_a_changed_input_is_named():
    def careless(m, l, a, scores, values):
        new = right_update(m, l, a, scores, values)
        a += 1.0
        return new

    assert "changed its input a: work on a copy" in failure("online_update", careless)


def test_an_exception_is_told_with_the_line_and_no_library_frame():
    def broken(m, l, a, scores, values):
        return scores.reshape(77)

    report = failure("online_update", broken)
    assert "RuntimeError in line" in report
    assert "(return scores.reshape(77))" in report
    assert "Traceback" not in report
    assert "site-packages" not in report


def test_an_equal_to_everything_is_not_right():
    class Always:
        def __eq__(self, other):
            return True

        def __abs__(self):
            return 0.0

    assert run("online_update", lambda *args: (Always(),) * 3).passed == 0
    assert run("predict_second_tile", lambda: {"alpha": Always()}).passed == 0


@triton.jit
def _kernel_with_a_bad_tile(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, N), 0.0)


def test_the_interpreters_error_is_unwrapped_and_explained():
    def launches(q, k, v, query_offset=None, block_m=32, block_n=32):
        o = torch.empty_like(q)
        _kernel_with_a_bad_tile[(1,)](o, N=20)
        return o

    report = failure("flash_attention", launches)
    assert "ValueError in line" in report
    assert "(tl.store(x_ptr + tl.arange(0, N), 0.0))" in report
    assert "tl.arange takes powers of two only" in report
    assert "InterpreterError" not in report


def test_a_kernel_from_before_the_interpreter_is_told_to_restart():
    def launches(*args):
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    assert "restart the kernel" in failure("flash_attention", launches)


def test_a_kernel_that_does_not_compile_is_told_by_its_own_line():
    class CompilationError(Exception):
        src = "def kernel(x_ptr):\n    marked_line = 1"
        node = SimpleNamespace(lineno=2)

    def launches(*args):
        marked_line = 1
        raise CompilationError(f"at {marked_line}:2:\n  source\n  ^\nno such thing")

    report = failure("flash_attention", launches)
    assert "(marked_line = 1): no such thing" in report


def test_a_kernel_report_names_the_first_wrong_tile():
    def second_tile_wrong(q, k, v, query_offset=None, block_m=32, block_n=32):
        o = flashkit.causal_attention(q, k, v)
        o[:, :, 17:] += 1.0
        return o

    report = failure("flash_attention", second_tile_wrong)
    assert "the first at [0, 0, 17, 0]" in report
    assert "first wrong tile of queries: 1" in report


def test_a_load_past_the_end_reads_nan():
    seen = []

    def peeks(m, l, a, scores, values):
        seen.append(values.as_strided((1,), (1,), values.storage_offset() + values.numel()))
        return m, l, a

    call(peeks, EXERCISES["online_update"].build(EXERCISES["online_update"].public[0], 0)[0])
    assert torch.isnan(seen[0]).all()


def test_a_row_without_a_key_must_raise():
    case = EXERCISES["online_attention"].public[3]
    nan = run("online_attention", lambda q, *args: torch.full_like(q, torch.nan))
    assert nan.cases[3].message == "online_attention must raise ValueError here."
    right = run("online_attention", flashkit.online_attention)
    assert right.cases[3].passed
    assert case.params["raises"] == "ValueError"


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_every_report_can_be_written(exercise):
    def stub(*args):
        raise ValueError("<b>no</b>")

    verdict = run_public(exercise, stub)
    # A row without a key must raise ValueError, and here everything does.
    assert verdict.passed == (exercise.id == "online_attention")
    page = render_html(verdict)
    assert "<script" not in page
    assert "<b>no</b>" not in page
    assert exercise.id in render_text(verdict)
