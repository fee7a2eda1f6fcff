"""`autograder release`: solutions/ -> notebooks/, through nbgrader and the gate."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.config import Config

from autograder import build, gate
from autograder.course import Course, CourseError

START = "start"  # notebooks/start.ipynb, the page that JupyterLab opens on
REPAIR = "run `autograder build && autograder release`"


def release(
    course: Course, lessons: list[str], points: Mapping[str, float], say: Callable = print
) -> None:
    """Write notebooks/ from solutions/ and enter the lessons in the gradebook.

    Raises CourseError for a notebook that is not its source's, and for anything the gate finds;
    notebooks/ is then as it was before.
    """
    refuse([s for lesson in lessons for s in _source_drift(course, lesson, points)])
    with scratch_release(course, lessons) as fresh:
        refuse(gate_all(course, fresh, lessons))
        for lesson in lessons:
            register(course, lesson)
            swap(fresh / lesson, course.release(lesson).parent)
            say(f"released {lesson}")
    page, folder = start_page(course), course.path("release", ".", ".")
    if page is not None:
        build.write(page, folder / f"{START}.ipynb")
        say("released the start page")
        refuse(gate.dead_links(page, folder))


def drift(course: Course, lessons: list[str], points: Mapping[str, float]) -> list[str]:
    """One sentence for each file that is not what its source makes it; empty when all agree."""
    found = [sentence for lesson in lessons for sentence in _source_drift(course, lesson, points)]
    with scratch_release(course, lessons) as fresh:
        found += gate_all(course, fresh, lessons)
        for lesson in lessons:
            made, kept = fresh / lesson / f"{lesson}.ipynb", course.release(lesson)
            if not kept.exists() or made.read_bytes() != kept.read_bytes():
                found.append(f"{kept} is not the release of {course.source(lesson)}")
    return found + _start_drift(course) + _strays(course)


def _source_drift(course: Course, lesson: str, points: Mapping[str, float]) -> list[str]:
    notebook = course.source(lesson)
    source = notebook.with_suffix(".py")
    wanted = build.read_lesson(source, points)
    if not notebook.exists():
        return [f"{notebook} has not been built"]
    if build.bare(wanted) != build.bare(nbformat.read(notebook, as_version=4)):
        return [f"{notebook} is not what {source} builds: run `autograder build {lesson}`"]
    return []


def _start_drift(course: Course) -> list[str]:
    page, folder = start_page(course), course.path("release", ".", ".")
    if page is None:
        return []
    kept = folder / f"{START}.ipynb"
    if not kept.exists() or nbformat.writes(page) + "\n" != kept.read_text(encoding="utf-8"):
        return [f"{kept} is not the page that solutions/{START}.py makes"]
    return gate.dead_links(page, folder)


def _strays(course: Course) -> list[str]:
    folders = course.path("release", ".", ".").glob("[!.]*/")
    return [f"{f} has no source in solutions/" for f in folders if f.name not in course.lessons()]


@contextmanager
def scratch_release(course: Course, lessons: list[str]) -> Iterator[Path]:
    """A folder with each lesson as nbgrader releases it; course and gradebook stay untouched."""
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        for lesson in lessons:
            _generate(course, lesson, Path(name), no_database=True)
        yield Path(name) / "notebooks"


def register(course: Course, lesson: str) -> None:
    """Enter `lesson` in the gradebook, as `nbgrader generate_assignment` does.

    Raises CourseError where submissions exist and the released cells have changed.
    """
    with tempfile.TemporaryDirectory(prefix="register-") as name:
        _generate(course, lesson, Path(name), no_database=False)


def _generate(course: Course, lesson: str, scratch: Path, no_database: bool) -> None:
    source = course.source(lesson)
    if not source.exists():
        raise CourseError(f"{source} has not been built: run `autograder build {lesson}`")
    (scratch / "solutions" / lesson).mkdir(parents=True)
    shutil.copy(source, scratch / "solutions" / lesson)
    config = Config(course.config)
    config.merge(Config(CourseDirectory={"root": str(scratch)}))
    config.GenerateAssignment.no_database = no_database
    config.SaveCells.enabled = not no_database
    api = NbGraderAPI(coursedir=CourseDirectory(config=config), config=config)
    api.log_level = "WARN"
    result = api.generate_assignment(lesson, force=True, create=True)
    if not result["success"]:
        raise CourseError(
            f"nbgrader cannot release {lesson}:\n{result.get('log', result['error'])}"
        )
    if no_database:
        tidy(scratch / "notebooks" / lesson / f"{lesson}.ipynb")


def tidy(path: Path) -> None:
    """Strip what nbgrader leaves in a release: authors' tags, widget state, other metadata."""
    nb = nbformat.read(path, as_version=4)
    nb.metadata = NotebookNode(
        {k: v for k, v in nb.metadata.items() if k in gate.NOTEBOOK_METADATA}
    )
    for cell in nb.cells:
        kept = {k: v for k, v in cell.metadata.items() if k in gate.CELL_METADATA}
        if tags := [tag for tag in kept.pop("tags", []) if tag in gate.TAGS]:
            kept["tags"] = tags
        cell.metadata = NotebookNode(kept)
    build.write(nb, path)


def gate_all(course: Course, fresh: Path, lessons: list[str]) -> list[str]:
    """Every violation of the gate by the scratch release in `fresh`."""
    sources = {lesson: nbformat.read(course.source(lesson), as_version=4) for lesson in lessons}
    return [p for lesson in lessons for p in gate.inspect_folder(fresh / lesson, sources[lesson])]


def refuse(problems: list[str]) -> None:
    """Raise CourseError listing `problems`, if there are any."""
    if problems:
        raise CourseError("\n".join(["not released:", *problems]))


def swap(new: Path, old: Path) -> None:
    """Put the folder `new` in place of `old`; a reader sees one or the other, never half."""
    old.parent.mkdir(parents=True, exist_ok=True)
    ready, gone = old.with_name(f".{old.name}.new"), old.with_name(f".{old.name}.old")
    for leftover in (ready, gone):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(new, ready)
    if old.exists():
        old.rename(gone)
    ready.rename(old)
    shutil.rmtree(gone, ignore_errors=True)


def start_page(course: Course) -> NotebookNode | None:
    """The unexecuted start page made from solutions/start.py, or None where there is none."""
    source = course.path("source", ".", ".") / f"{START}.py"
    return build.read_lesson(source, {}) if source.exists() else None
