"""Is a submission graded rightly whatever its cells do, and does the rest of it come through?"""

from dataclasses import replace

import pytest

from autograder.engine import SolutionCell, grade, launch, session, supervisor
from flashkit.exercises import EXERCISES
from flashkit.exercises.model import Verdict
from flashkit.exercises.report import render_html, render_text

PRELUDE = "import os, sys, time\nimport torch\n"
RIGHT = """
def online_update(m, l, a, scores, values):
    m_new = torch.maximum(m, scores.max())
    safe = torch.where(m_new == -torch.inf, 0.0, m_new)
    alpha, p = torch.exp(m - safe), torch.exp(scores - safe)
    return m_new, alpha * l + p.sum(), alpha * a + p @ values
"""
FORGETS_L = RIGHT.replace("alpha * l +", "l +")
CASES = len(supervisor.graded_cases(EXERCISES["online_update"]))


def right_but(*statements):
    """The right function that first runs these lines, which look at its arguments."""
    head = "def online_update(m, l, a, scores, values):\n"
    lines = "".join(f"    {statement}\n" for statement in statements)
    return RIGHT.replace(head, head + lines)


@pytest.fixture
def graded(tmp_path, monkeypatch):
    """Grade a source for online_update, after other cells if there are any."""
    quick = replace(EXERCISES["online_update"], limit_s=3.0)
    monkeypatch.setitem(EXERCISES, "online_update", quick)
    monkeypatch.setattr(session, "CELL_LIMIT_S", 3.0)

    def run(source, *others, prelude=PRELUDE, seed=1):
        cells = [SolutionCell(f"other_{i}", other) for i, other in enumerate(others)]
        cells.append(SolutionCell("online_update", source))
        verdict = grade("online_update", cells, prelude=prelude, seed=seed, scratch=tmp_path)
        assert Verdict.from_json(verdict.to_json()) == verdict
        assert render_text(verdict)
        assert "<script" not in render_html(verdict)
        return verdict

    return run


def failures(verdict):
    return {case.name: case for case in verdict.cases if not case.passed}


def test_the_right_function_gets_all_points_and_a_record(graded):
    verdict = graded(RIGHT)
    assert (verdict.points, verdict.max_points, verdict.status) == (4.0, 4, "graded")
    assert (verdict.passed, verdict.bug, verdict.seed, verdict.device) == (CASES, None, 1, "cpu")
    assert set(verdict.versions) == {"python", "torch", "triton"}


def test_a_stub_gets_nothing(graded):
    verdict = graded("def online_update(*x):\n    raise NotImplementedError('six lines')")
    assert verdict.points == 0
    assert render_text(verdict).endswith("online_update is not written yet.")


def test_a_classic_bug_gets_part_of_the_points_and_its_name(graded):
    verdict = graded(FORGETS_L)
    assert 0 < verdict.points < 4
    assert verdict.points == round(4 * verdict.passed / CASES, 2)
    assert verdict.bug == "l_not_rescaled"


def test_a_seed_is_drawn_and_repeats(tmp_path):
    cells = [SolutionCell("online_update", FORGETS_L)]
    drawn = grade("online_update", cells, prelude=PRELUDE, scratch=tmp_path / "a")
    same = grade("online_update", cells, prelude=PRELUDE, seed=drawn.seed, scratch=tmp_path / "b")
    assert same == drawn
    assert drawn.seed > 1


def test_a_case_that_costs_the_process_costs_itself_alone(graded):
    verdict = graded(
        right_but(
            "if len(scores) == 1: os._exit(0)",
            "if values.shape[1] == 1: os.kill(os.getpid(), 9)",
            "if scores.max() > 250: [write(fd) for fd in os.listdir('/proc/self/fd')]",
            "while values.shape[1] == 16: pass",
        ),
        "def write(fd):\n"
        "    try: int(fd) > 2 and os.write(int(fd), b'x' * 99)\n"
        "    except OSError: pass",
    )
    lost = failures(verdict)
    assert {name: case.kind for name, case in lost.items()} == {
        "one key": "died",
        "scores in the hundreds": "died",
        "values of one column": "died",
        "a wide tile": "timeout",
    }
    assert "ended before it answered (exit code 0)" in lost["one key"].message
    assert "ended before it answered (signal 9)" in lost["values of one column"].message
    assert "could not be read (no frame)" in lost["scores in the hundreds"].message
    assert lost["a wide tile"].message.startswith("no answer within 3 s")


def test_after_a_few_lost_processes_the_rest_is_not_run(graded, monkeypatch):
    monkeypatch.setattr(session, "MAX_LOST", 1)
    verdict = graded(right_but("os._exit(3)"))
    assert [case.kind for case in verdict.cases] == ["died"] * 2 + ["skipped"] * (CASES - 2)
    assert verdict.points == 0


def test_a_process_that_ends_at_any_moment_ends_the_check(graded, monkeypatch):
    monkeypatch.setattr(session, "MAX_LOST", 1)
    bomb = "import threading\nthreading.Timer(0.01, os._exit, [0]).start()\n"
    verdict = graded(right_but("time.sleep(1)"), bomb)
    assert verdict.points == 0
    assert verdict.status == "graded"


ODD = (
    ("sys.exit(0)", "SystemExit in line"),
    ("raise ValueError('<b>mine</b>')", "(if count == 2: raise ValueError('<b>mine</b>'))"),
    ("import autograder.hidden", "ModuleNotFoundError in line"),
    ("from autograder.hidden import HIDDEN", "ModuleNotFoundError in line"),
    ("deep()", "RecursionError in line"),
    ("scores.zero_()", "Your function changed its input scores: work on a copy."),
    ("raise Unprintable", "Unprintable in line"),
)


def test_an_odd_call_is_told_and_costs_itself_alone(graded):
    lines = [f"if count == {n}: {statement}" for n, (statement, _) in enumerate(ODD, start=1)]
    verdict = graded(right_but("global count; count += 1", *lines), HELPERS)
    assert [case.passed for case in verdict.cases] == [False] * len(ODD) + [True] * (
        CASES - len(ODD)
    )
    for case, (_, said) in zip(verdict.cases, ODD, strict=False):
        assert said in case.message


HELPERS = """def deep():
    deep()

count = 0
class Unprintable(Exception):
    def __str__(self): raise RuntimeError
"""


GARBAGE = """
class Always:
    __eq__ = __abs__ = __lt__ = __le__ = lambda self, *other: True
    def __bool__(self): return True

class Tensor(torch.Tensor): pass

def numbers():
    yield from ["text", None, torch.zeros(1).expand(10**9), (Always(),) * 3, Always(), b"bytes"]
    yield (torch.zeros(()), torch.zeros(()), torch.full((3,), torch.nan))
    yield (torch.zeros(()), torch.zeros(()), torch.zeros(4))
    yield (torch.zeros(()), torch.zeros(()), torch.zeros(3, dtype=torch.complex64))
    yield (torch.zeros(()).as_subclass(Tensor),) * 3
    yield [[[[[[[[[[1]]]]]]]]]]
    while True:
        yield list(range(10**6))

garbage = numbers()

def online_update(m, l, a, scores, values):
    return next(garbage)
"""


def test_garbage_earns_nothing_and_is_told_what_to_return(graded):
    verdict = graded(GARBAGE)
    assert verdict.points == 0
    assert {case.kind for case in verdict.cases} == {"wrong"}
    told = [case for case in verdict.cases if "must return a tuple (m, l, a)" in case.message]
    assert len(told) == CASES - 1  # NaN has the right shape
    assert "far too large" in verdict.cases[2].message


NOISE = (
    "print('points: 4'); print('x' * 10**6, file=sys.stderr)",
    "os.write(1, b'y' * 10**6); os.write(2, b'{\"points\": 4}')",
    "assert 'SECRET_TOKEN' not in os.environ",
)


def test_a_clumsy_submission_with_the_right_function_gets_all_points(graded, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    others = ("raise RuntimeError('mine')", "while True: pass", "os._exit(1)", "def broken(:")
    assert graded("%matplotlib inline\n!ls\n" + right_but(*NOISE), *others).points == 4.0


def test_a_name_that_another_cell_failed_to_make_is_explained(graded):
    source = RIGHT.replace("torch.maximum", "largest")
    verdict = graded(source, "raise RuntimeError('mine')\nlargest = torch.maximum")
    message = verdict.cases[0].message
    assert message.startswith("NameError in line 3 of cell online_update")
    assert "Cell other_0 failed before: RuntimeError in line 1 of cell other_0" in message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "There is no function online_update: its cell must define online_update(m, l, a,"),
        ("online_update = 3", "There is no function online_update"),
        ("x = 1\ndef online_update(:", "Cell online_update failed: SyntaxError in line 2"),
        ("raise KeyError('k')", "Cell online_update failed: KeyError in line 1"),
        ("os._exit(0)", "Cell online_update failed: the process ended"),
    ],
)
def test_a_missing_function_is_told_why(graded, source, said):
    verdict = graded(source)
    assert verdict.points == 0
    assert {case.kind for case in verdict.cases} == {"error"}
    assert said in verdict.cases[0].message


def test_a_broken_prelude_is_told(graded):
    verdict = graded("x = 1", prelude="import nothing_of_that_name")
    assert "Cell imports failed: ModuleNotFoundError" in verdict.cases[0].message


def test_a_machine_that_cannot_start_a_worker_is_infra(graded, monkeypatch):
    monkeypatch.setattr(launch, "command", lambda *fds: ["/bin/sh", "-c", "echo no torch; exit 1"])
    verdict = graded(RIGHT)
    assert (verdict.status, verdict.points, verdict.cases) == ("infra", 0.0, ())
    assert "no torch" in verdict.note
    assert "the grader itself failed" in render_text(verdict)


def test_an_unknown_exercise_or_device_is_refused(tmp_path):
    with pytest.raises(ValueError, match="exercise must be one of"):
        grade("typo", [], scratch=tmp_path)
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'tpu'"):
        grade("online_update", [], device="tpu", scratch=tmp_path)


def test_a_question_is_marked_with_its_explanation(tmp_path):
    def answer(letter):
        cells = [SolutionCell("question_1", f"def answer_1():\n    return '{letter}'")]
        return grade("question_1", cells, scratch=tmp_path / letter)

    wrong, right = answer("a"), answer("b")
    assert [wrong.points, right.points] == [0.0, 1.0]
    assert "one factor alpha repairs both" in render_text(wrong)
