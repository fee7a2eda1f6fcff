"""`autograder replay VERDICT`: the cases of a verdict once more, from its seed.

A verdict can be disputed. Its record holds the seed of its inputs, the device, the versions and a
hash of the answer, so that anybody who has the submission can see the same result come again.
"""

import argparse
import tempfile
from pathlib import Path

import nbformat
from traitlets.utils.importstring import import_item

from autograder.course import Course, CourseError
from autograder.execute import Asked, asked
from autograder.intake import transplant
from flashkit import runtime
from flashkit.exercises import EXERCISES
from flashkit.exercises.model import CaseResult, Verdict


def add_verb(verbs) -> None:
    """Add the verb to the command `autograder`."""
    text = "run the cases of a verdict once more and compare"
    new = verbs.add_parser("replay", help=text, description=text)
    new.add_argument("verdict", type=Path, metavar="VERDICT", help="the record, a .json file")
    what = "instead of the one that was collected"
    new.add_argument("--submission", type=Path, metavar="NOTEBOOK", help=what)
    new.set_defaults(does=run_replay)


def run_replay(course: Course, args: argparse.Namespace) -> int:
    """`autograder replay VERDICT`: 0 if the same result came, else 1."""
    then = read(args.verdict)
    answer = find_answer(course, args.verdict, then, args.submission)
    if then.answer and then.answer != answer.fingerprint:
        print("The answer is not the one that was graded: it has been changed since.")
    now = again(course, then, answer)
    lines, same = compared(then, now)
    print("\n".join(lines))
    return 0 if same else 1


def read(path: Path) -> Verdict:
    """The verdict in a file. Raises CourseError where there is none that could be replayed."""
    try:
        verdict = Verdict.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CourseError(f"{path} holds no verdict ({type(error).__name__})") from None
    if verdict.exercise not in EXERCISES:
        raise CourseError(f"{path}: there is no exercise {verdict.exercise!r} any more")
    if verdict.status != "graded":
        raise CourseError(f"{path}: nothing was judged (its status is {verdict.status!r})")
    if verdict.device == "cuda" and runtime.device() != "cuda":
        raise CourseError(f"{path} was graded on a GPU, and there is none here")
    return verdict


def find_answer(course: Course, path: Path, verdict: Verdict, notebook: Path | None) -> Asked:
    """The cells of the submission beside which the verdict lies: .../STUDENT/LESSON/EXERCISE.json.

    Raises CourseError where it is gone.
    """
    path = path.resolve()
    lesson, student = path.parent.name, path.parent.parent.name
    if notebook is None:
        folder = course.path("submitted", student, lesson)
        found = sorted(folder.glob("*.ipynb"))
        named = [x for x in found if x.stem == lesson]
        if not found:
            raise CourseError(f"the submission is gone: {folder} holds no notebook (--submission)")
        notebook = (named or found)[0]
    elif not notebook.is_file():
        raise CourseError(f"there is no notebook {notebook}")
    if lesson not in course.lessons():  # the record was moved
        lesson = EXERCISES[verdict.exercise].lesson
    release = course.release(lesson)
    if not release.exists():
        raise CourseError(f"{release} is missing: run `autograder release {lesson}`")
    return asked(transplant(nbformat.read(release, as_version=4), notebook))


def again(course: Course, then: Verdict, answer: Asked) -> Verdict:
    """The verdict of the same engine on the answer, from the same seed, on the same device.

    Raises JailError where it was jailed and can be no more.
    """
    engine = import_item(course.config.EngineExecute.get("engine", "autograder.engine.grade"))
    options = {} if then.jailed else {"jailed": False}
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        return engine(
            then.exercise,
            answer.cells,
            prelude=answer.prelude,
            device=then.device,
            seed=then.seed,
            scratch=Path(scratch),
            **options,
        )


def compared(then: Verdict, now: Verdict) -> tuple[list[str], bool]:
    """Both verdicts side by side, a line a case, and whether they are the same.

    Raises CourseError where the exercise has other cases than it had.
    """
    before, after = ({case.name: case for case in x.cases} for x in (then, now))
    if set(before) != set(after) and now.status != "infra":
        changed = ", ".join(sorted(set(before) ^ set(after)))
        raise CourseError(f"the exercise {then.exercise} has changed since: {changed}")
    differ = [name for name in before if _fate(before[name]) != _fate(after.get(name))]
    lines = [f"{then.exercise} on {then.device}"]
    for name, case in before.items():
        sign, was = "≠" if name in differ else "=", _fate(case)
        now_is = f", now {_fate(after.get(name))}" if name in differ else ""
        lines.append(f"  {sign} {name}: {was}{now_is}")
    for name in ("points", "bug", "status"):
        if getattr(then, name) != getattr(now, name):
            differ.append(name)
            lines.append(f"  ≠ {name}: {getattr(then, name)}, now {getattr(now, name)}")
    lines += [f"versions then: {_versions(then)}", f"versions now:  {_versions(now)}"]
    verdict = f"DIFFERENT in {len(differ)} places." if differ else "The same result came."
    return [*lines, verdict], not differ


def _fate(case: CaseResult | None) -> str:
    if case is None:
        return "not run"
    return case.kind if case.tile is None else f"{case.kind}, from tile {case.tile}"


def _versions(verdict: Verdict) -> str:
    return ", ".join(f"{k} {v}" for k, v in sorted(verdict.versions.items())) or "not recorded"
