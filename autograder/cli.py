"""The command `autograder`: an instructor's verbs, from authoring to marks."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from autograder import demo, replay
from autograder.attacks import verb as attacks
from autograder.build import build
from autograder.catalogue import command as catalogue
from autograder.course import REPOSITORY, Course, CourseError
from autograder.engine.jail import JailError
from autograder.execute import said
from autograder.feedback import feedback
from autograder.gradebook import Mark, as_csv, marks
from autograder.grading import Outcome, grade, prepare
from autograder.release import REPAIR, drift, release
from autograder.tables import attention_table, demo_table, marks_table
from flashkit import runtime
from flashkit.exercises import EXERCISES
from flashkit.faults import FAULTS

POINTS = {name: exercise.points for name, exercise in EXERCISES.items()}
EXIT_CODES = """exit codes: 0 done; 1 something needs a person (a lesson that drifted or leaks, a
submission that could not be graded; the output says which); 2 the command line is wrong"""


UNJAILED = "run students' code with your own rights"


def say(text: str) -> None:
    """A line of progress: on stderr, so that stdout stays for results."""
    print(text, file=sys.stderr, flush=True)


def run_build(course: Course, args: argparse.Namespace) -> int:
    """`autograder build`."""
    lessons = course.pick(args.lessons)
    for number, lesson in enumerate(lessons, start=1):
        say(f"[{number}/{len(lessons)}] building {lesson}")
        build(course.source(lesson).with_suffix(".py"), POINTS, course.root)
    return 0


def run_release(course: Course, args: argparse.Namespace) -> int:
    """`autograder release [--check]`."""
    lessons = course.pick(args.lessons)
    if not args.check:
        release(course, lessons, POINTS, say)
        return 0
    found = drift(course, lessons, POINTS)
    for sentence in found:
        print(sentence)
    if found:
        print(REPAIR)
    return 1 if found else 0


def run_grade(course: Course, args: argparse.Namespace) -> int:
    """`autograder grade LESSON`."""
    (lesson,) = course.pick([args.lesson])
    students = [args.student] if args.student else course.students(lesson)
    if not students:
        raise CourseError(f"no submissions in {course.path('submitted', '*', lesson)}")
    overrides = said(course.config, args.device, args.unjailed)
    prepare(course, lesson)
    pairs, outcomes = [(lesson, student) for student in students], []
    for done in grade(course.folder, overrides, pairs, jobs=args.jobs, force=args.force):
        outcomes.append(done)
        say(f"[{len(outcomes)}/{len(pairs)}] {done.student}: {_what(done)}")
    outcomes.sort(key=lambda done: done.student)
    tables = [marks_table(outcomes), attention_table(outcomes)]
    shown = "\n\n".join(filter(None, tables))
    print(json.dumps([asdict(o) for o in outcomes]) if args.json else shown)
    return 0 if all(done.mark and not done.mark.needs_review for done in outcomes) else 1


def _what(done: Outcome) -> str:
    if done.mark is None:
        return f"NOT GRADED: {done.reason}"
    points = f"{done.mark.score:g} of {done.mark.max_score:g}"
    unchanged = "unchanged since it was graded (--force grades it again): "
    return unchanged + points if done.status == "unchanged" else f"{points}, {done.seconds:.0f} s"


def run_feedback(course: Course, args: argparse.Namespace) -> int:
    """`autograder feedback LESSON`."""
    (lesson,) = course.pick([args.lesson])
    students = [args.student] if args.student else [m.student for m in marks(course, lesson)]
    if not students:
        raise CourseError(f"nobody is graded in {lesson}: run `autograder grade {lesson}`")
    for page in feedback(course, lesson, students):
        print(page)
    return 0


def run_export(course: Course, args: argparse.Namespace) -> int:
    """`autograder export`."""
    rows: list[Mark] = [m for lesson in course.pick(args.lessons) for m in marks(course, lesson)]
    text = json.dumps([asdict(row) for row in rows]) + "\n" if args.json else as_csv(rows)
    if args.to:
        args.to.write_text(text, encoding="utf-8")
        say(f"{len(rows)} rows in {args.to}")
    else:
        sys.stdout.write(text)
    return 0


def run_demo(course: Course, args: argparse.Namespace) -> int:
    """`autograder demo`."""
    lessons = course.pick(args.lessons)
    overrides = said(course.config, None, args.unjailed)
    course = demo.set_up()
    outcomes = demo.run(course, lessons, overrides, args.jobs, say)
    print(demo_table(outcomes))
    for lesson in lessons:
        bug = demo.named_bug(course, lesson)
        print(f"{lesson}, wrong submission: {FAULTS[bug] if bug else 'its bug was not named'}")
    print(f"feedback pages: {course.path('feedback', '*', '*')}/*.html")
    found = demo.surprises(course, outcomes)
    for sentence in found:
        print(f"NOT AS IT MUST BE: {sentence}")
    return 1 if found else 0


def add_verb(verbs, name: str, does, text: str, lessons: str) -> argparse.ArgumentParser:
    """A new verb of does(course, args) -> exit code, for a `lesson` or any number of `lessons`."""
    new = verbs.add_parser(name, help=text, description=text, epilog=EXIT_CODES)
    new.add_argument(lessons, nargs="*" if lessons == "lessons" else None, metavar="LESSON")
    new.set_defaults(does=does)
    return new


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser("autograder", description=__doc__, epilog=EXIT_CODES)
    top.add_argument("--course", type=Path, default=REPOSITORY, help=argparse.SUPPRESS)
    verbs = top.add_subparsers(required=True, metavar="VERB")

    verb = partial(add_verb, verbs)
    verb("build", run_build, "make the executed notebooks from solutions/*/*.py", "lessons")
    new = verb("release", run_release, "make notebooks/ from solutions/", "lessons")
    new.add_argument("--check", action="store_true", help="change nothing, name what drifted")
    new = verb("grade", run_grade, "grade the submissions of a lesson", "lesson")
    new.add_argument("--student", help="only this one")
    new.add_argument("--device", choices=["cpu", "cuda"], help="default: what there is")
    new.add_argument("--force", action="store_true", help="grade again what is unchanged")
    new = verb("feedback", run_feedback, "write the feedback pages of a lesson", "lesson")
    new.add_argument("--student", help="only this one")
    new = verb("export", run_export, "write the marks as CSV", "lessons")
    new.add_argument("--to", type=Path, metavar="FILE", help="instead of the terminal")
    verb("demo", run_demo, "grade three sample submissions of each lesson", "lessons")
    catalogue.add_verb(verbs)
    attacks.add_verb(verbs)
    replay.add_verb(verbs)
    for name in ("grade", "export"):
        verbs.choices[name].add_argument("--json", action="store_true", help="for programs")
    for new in (verbs.choices["grade"], verbs.choices["demo"]):
        new.add_argument("--jobs", type=int, default=_jobs(), help="at a time (%(default)s)")
        new.add_argument("--unjailed", action="store_true", help=UNJAILED)
    return top


def _jobs() -> int:
    return min(4, os.cpu_count() or 1) if runtime.device() == "cpu" else 1


def main(argv: list[str] | None = None) -> int:
    """Run one verb; the exit code."""
    args = parser().parse_args(argv)
    try:
        return args.does(Course(args.course), args)
    except (CourseError, JailError) as error:
        print(error, file=sys.stderr)
        return 1
