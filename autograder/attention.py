"""Why a person should look at a graded submission: what the marks alone do not show."""

import json
import re
from pathlib import Path

from autograder.course import Course
from autograder.handed_in import notebooks

LIKENESS = "its likeness"
"""How intake says that it went by the text of a cell alone."""
MACHINERY = re.compile(
    r"\b(autograder|own_work|_python_dispatch|ctypes|_getframe|get_objects|settrace|setprofile"
    r"|builtins|__import__|importlib|exec|eval|modules)\b"
)
"""Words of code that looks for the grader in its own process. A hint to read it, no verdict."""


def reasons(course: Course, lesson: str, student: str) -> tuple[str, ...]:
    """One sentence for each reason; none for almost everybody."""
    graded = _read(course.path("autograded", student, lesson) / f"{lesson}.ipynb")
    found = _of_files(course.path("submitted", student, lesson), graded)
    for path in sorted((course.verdicts / student / lesson).glob("*.json")):
        verdict = _read(path)
        if verdict.get("status") == "infra":
            found.append(f"{verdict['exercise']} was not judged: {verdict['note']}")
        if verdict.get("provisional"):
            found.append(f"{verdict['exercise']} is provisional: grade it again on a GPU")
    for cell in graded.get("cells", []):
        if LIKENESS in cell["metadata"].get("autograder", {}).get("note", ""):
            found.append(f"{cell['id']} was found by its text alone: is it the right cell?")
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            found += _of_source(cell["id"], "".join(cell["source"]))
    return tuple(found)


def _of_files(folder: Path, graded: dict) -> list[str]:
    """What is odd about the files that were handed in."""
    why = graded.get("metadata", {}).get("autograder", {}).get("unreadable")
    found = [f"nothing could be read, so it got 0: {why}"] if why else []
    others = [path.name for path in notebooks(folder) if path.stem != folder.name]
    if others:
        found.append(f"{folder.name}.ipynb was graded, and not {', '.join(others)} beside it")
    return found


def _of_source(name: str, source: str) -> list[str]:
    """Whether a cell names what no answer needs."""
    words = sorted(set(MACHINERY.findall(source)))
    return [f"{name} names {', '.join(words)}, which no answer needs: read it"] if words else []


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it was not written: grading failed, and says so itself
        return {}
