"""What must hold after the pipeline has been attacked: marks, gradebook, what came back."""

import sqlite3
from pathlib import Path

from autograder.attacks.battery import LESSONS, Attack
from autograder.attacks.direct import leaks, verdict_problems
from autograder.attacks.notebooks import SCRIPT
from autograder.attacks.pipeline import CANARY, POINTS
from autograder.course import REPOSITORY, Course
from autograder.grading import Outcome
from flashkit.exercises.model import Verdict

GRADED = {"student", "submitted_assignment", "submitted_notebook", "grade", "comment"}
"""Tables of the gradebook that grading adds to; it changes no other."""


def attack_problems(
    course: Course, attack: Attack, done: Outcome, secrets: list[str]
) -> list[str]:
    """What an attack has achieved in the pipeline, one sentence each."""
    if done.mark is None:
        refused = attack.points == 0 and attack.others == 0 and done.status == "failed"
        return [] if refused else [f"it was not graded: {done.reason}"]
    found = []
    record = course.verdicts / attack.name / attack.lesson / f"{attack.target}.json"
    verdict = Verdict.from_json(record.read_text(encoding="utf-8"))
    found += [] if attack.flagged else verdict_problems(attack, verdict)
    if attack.flagged and not done.attention:
        found.append("nobody was told to read it")
    if done.mark.exercises[attack.target] != verdict.points:
        found.append("the gradebook does not say what the verdict says")
    if done.mark.max_score != sum(POINTS[name] for name in LESSONS[attack.lesson]):
        found.append(f"the lesson is worth {done.mark.max_score:g} points")
    others = sum(done.mark.exercises[name] for name in LESSONS[attack.lesson][1:])
    if attack.others is not None and others != attack.others:
        found.append(f"the honest answers beside it got {others:g}, not {attack.others:g}")
    if done.mark.needs_review:
        found.append("it made work for a person")
    return found + returned_problems(course, attack, secrets)


def returned_problems(course: Course, attack: Attack, secrets: list[str]) -> list[str]:
    """Secrets, and programs, in what goes back to the student."""
    found, name = [], f"{attack.lesson}.ipynb"
    pages = [course.path("feedback", attack.name, attack.lesson) / f"{attack.lesson}.html"]
    pages += [course.path("autograded", attack.name, attack.lesson) / name]
    pages += course.verdicts.glob(f"{attack.name}/*/*.json")
    for page in filter(Path.exists, pages):
        text = page.read_text(encoding="utf-8", errors="replace")
        # A verdict's own record holds the seed, and stays with the course.
        hidden = secrets if page.suffix != ".json" else secrets[:1]
        found += leaks(text, tuple(hidden))
        if page.suffix == ".html" and (SCRIPT in text or "onerror=attack()>" in text):
            found.append("its program stands in the feedback page")
    return found


def secrets_of(course: Course, canary: str) -> list[str]:
    """What no student may read: the canary first, then the seed and the text of hidden cases."""
    seed = (course.work / "seed").read_text(encoding="utf-8").strip()
    lines = [
        line.strip()
        for path in sorted((REPOSITORY / "autograder" / "hidden").glob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    # A text of its own may be a reason, which a report shows; a line of code never is.
    code = [line for line in lines if len(line) > 30 and "(" in line and line[0] not in "\"'"]
    return [canary, seed, *code]


def untouchable(course: Course, students: list[str]) -> dict[str, list]:
    """What of the gradebook no attack may change: the fixed tables, and these students' rows."""
    with sqlite3.connect(course.work / "gradebook.db") as db:
        tables = db.execute("select name from sqlite_master where type = 'table'").fetchall()
        fixed = {name for (name,) in tables} - GRADED
        rows = {name: db.execute(f"select * from {name}").fetchall() for name in sorted(fixed)}
        for name in [CANARY, *students]:
            rows[name] = db.execute("select * from student where id = ?", (name,)).fetchall()
            rows[f"marks of {name}"] = db.execute(_GRADES, (name,)).fetchall()
    return rows


_GRADES = """select grade.* from grade
join submitted_notebook on submitted_notebook.id = grade.notebook_id
join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id
where submitted_assignment.student_id = ? order by grade.id"""


def set_by_hand(course: Course) -> list[str]:
    """Students who have a mark that no grader gave."""
    query = f"select * from ({_GRADES.replace('= ?', 'is not null')})"
    with sqlite3.connect(course.work / "gradebook.db") as db:
        db.row_factory = sqlite3.Row
        rows = db.execute(query).fetchall()
    return [str(row["id"]) for row in rows if row["manual_score"] or row["extra_credit"]]
