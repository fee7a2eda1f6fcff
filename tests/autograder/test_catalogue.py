"""Does the catalogue keep its word: one fault each, killed by its own case, the right spared?"""

import difflib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.catalogue import entries, read
from autograder.catalogue.command import PAGE
from autograder.catalogue.one_shape import accepts
from autograder.catalogue.page import page, terminal
from autograder.catalogue.runner import Outcome, judge, problems, scores
from autograder.engine import growth
from autograder.engine.supervisor import graded_cases
from flashkit.exercises import EXERCISES
from flashkit.faults import FAULTS

SOLUTIONS = Path(__file__).parents[2] / "solutions"
ALL = {entry.name: entry for entry in entries()}
WRONG = [entry for entry in ALL.values() if not entry.right]
RIGHT = [entry for entry in ALL.values() if entry.right]
JAILED = shutil.which("bwrap") is not None


def code(text):
    """The lines that do something, without indentation."""
    lines = (line.split("  #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def answers(exercise):
    """What an answer may be compared with: the lesson's own and the right variants."""
    lesson = EXERCISES[exercise].lesson
    source = (SOLUTIONS / lesson / f"{lesson}.py").read_text()
    cell = re.search(rf'"grade_id": "{exercise}".*?\n(.*?)\n# %%', source, re.S).group(1)
    return [code(cell), *(code(e.source) for e in RIGHT if e.exercise == exercise)]


def changes(entry):
    """The fewest lines in which the answer differs from one that is right."""
    mine = code(entry.source)
    diffs = (difflib.ndiff(theirs, mine) for theirs in answers(entry.exercise))
    return min(sum(line[0] == "+" for line in diff) for diff in diffs)


def test_the_catalogue_is_large():
    assert len(WRONG) >= 34
    assert len(RIGHT) >= 11


@pytest.mark.parametrize("entry", WRONG, ids=lambda e: e.name)
def test_a_wrong_answer_has_one_small_fault_and_a_case_that_is_there(entry):
    cases = [case.name for case in graded_cases(EXERCISES[entry.exercise])]
    assert entry.dies_by in [
        *cases,
        *([growth.NAME] if entry.exercise in growth.QUESTIONS else []),
    ]
    assert entry.bug is None or entry.bug in FAULTS
    assert changes(entry) <= 12


def test_every_bug_that_is_named_to_students_has_an_answer_that_shows_it():
    assert sorted(set(FAULTS) - {entry.bug for entry in WRONG}) == []


@pytest.mark.parametrize("entry", RIGHT, ids=lambda e: e.name)
def test_a_right_variant_is_for_an_exercise_and_says_what_differs(entry):
    assert entry.exercise in EXERCISES
    assert entry.differs
    assert code(entry.source) not in answers(entry.exercise)[:1]


@pytest.mark.parametrize(
    "header",
    ["# exercise: merge\n# bug: no_max", "# exercise: merge\n# dies by: x\n# bug: y\n# more", ""],
)
def test_a_header_that_is_not_complete_is_refused(tmp_path, header):
    path = tmp_path / "wrong" / "some.py"
    path.parent.mkdir()
    path.write_text(f"{header}\n\ncode\n")
    with pytest.raises(ValueError, match=r"some\.py: its header must be"):
        read(path)


FAST = ["update_no_guard", "online_in_input_dtype", "bounds_rounded_down", "merge_without_max"]
SPARED = ["update_as_one_more_key", "merge_one_by_one"]


@pytest.mark.parametrize("name", [*FAST, *SPARED])
def test_the_engine_does_with_an_answer_what_its_header_says(name):
    outcome = judge(ALL[name], "cpu", JAILED)
    assert outcome.problem == ""
    assert bool(outcome.failed) == (name in FAST)


def test_a_race_passes_in_the_interpreter_and_is_provisional():
    outcome = judge(ALL["merge_by_load_add_store"], "cpu", JAILED)
    assert outcome.failed == ()
    assert outcome.provisional
    assert outcome.problem == ""


@pytest.mark.gpu
@pytest.mark.parametrize("name", [e.name for e in WRONG if e.needs_gpu])
def test_a_gpu_finds_what_the_interpreter_cannot(name):
    outcome = judge(ALL[name], "cuda", JAILED)
    assert outcome.problem == ""
    assert not outcome.provisional


def outcome(entry, **changes):
    """An outcome that is as it must be, but for the changes."""
    failed = () if entry.right else (entry.dies_by,)
    return replace(Outcome(entry, "cpu", "graded", 9, failed, bug=entry.bug), **changes)


PROBLEMS = {
    "survives": ("no_max", {"failed": ()}, "must die by 'scores in the hundreds', failed: none"),
    "by accident": ("no_max", {"failed": ("float16",)}, "must die by .*, failed: float16"),
    "right fails": ("base_2", {"failed": ("float16",)}, "is right and fails: float16"),
    "wrong name": ("no_max", {"bug": "no_guard"}, "is named no_guard, and is no_max"),
    "not graded": ("no_max", {"status": "infra", "note": "why"}, "was not graded: why"),
    "a race dies": ("merge_by_load_add_store", {"bug": None}, "must pass here and be marked"),
    "not provisional": ("merge_by_load_add_store", {"failed": ()}, "and be marked provisional"),
}


@pytest.mark.parametrize("what", PROBLEMS)
def test_what_is_not_as_it_must_be_is_said(what):
    name, changed, said = PROBLEMS[what]
    assert outcome(ALL[name]).problem == "" or ALL[name].needs_gpu
    sentence = problems([outcome(ALL[name], **changed)])[0]
    assert re.search(said, sentence)


def test_one_bug_in_ten_may_stay_without_a_name():
    named = [outcome(entry) for entry in WRONG if entry.bug and not entry.needs_gpu][:20]
    assert problems([*(replace(o, bug=None) for o in named[:2]), *named[2:]]) == []
    (sentence,) = problems([*(replace(o, bug=None) for o in named[:3]), *named[3:]])
    assert sentence.startswith("17 of 20 bugs")
    assert problems([replace(named[0], bug=None)], whole=False) == []


def test_scores_leave_out_what_cannot_show_here():
    race = outcome(ALL["merge_by_load_add_store"], failed=(), provisional=True)
    shaped = outcome(ALL["no_max"], one_shape=True, public=("x",))
    score = scores([race, shaped, outcome(ALL["base_2"], one_shape=True)])
    assert (score.wrong, score.caught, score.by_public, score.right, score.spared) == (1,) * 5
    assert (score.one_shape_of, score.by_one_shape) == (1, 0)


@pytest.mark.parametrize(
    ("name", "accepted"), [("online_no_guard", True), ("online_l_takes_max", False)]
)
def test_a_test_of_one_shape_sees_some_bugs_and_not_others(name, accepted):
    assert accepts(ALL[name].path, ALL[name].exercise, "cpu") is accepted


def test_there_is_no_test_of_one_shape_for_bounds():
    assert accepts(ALL["bounds_by_search"].path, "tile_bounds", "cpu") is None


def test_page_and_table_tell_every_answer():
    outcomes = [outcome(entry) for entry in ALL.values()]
    for text in (page(outcomes), terminal(outcomes)):
        assert [name for name in ALL if name not in text] == []


def test_the_committed_page_is_of_this_catalogue():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+?) \|", PAGE.read_text(), re.M)
    told = {name: (exercise, rest.removesuffix(" (on a GPU)")) for name, exercise, rest in rows}
    now = {e.name: (e.exercise, e.differs if e.right else e.dies_by) for e in ALL.values()}
    assert told == now
