"""nbgrader's execute step, replaced: the engine judges each check cell, no student code runs here.

nbgrader takes a cell's mark from its outputs: an error or a line on stderr is 0, the first
execute_result is that many points, and *no output is full marks*. So every check cell gets exactly
one display_data (the report) and one execute_result (the points), whatever happens.
"""

import hashlib
import html
import math
import os
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from traitlets import Bool, Integer, Unicode, default
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from autograder.build import CHECK
from autograder.engine import SolutionCell, jail
from autograder.engine.jail import JailError
from autograder.intake import without_magics
from flashkit import runtime
from flashkit.exercises.model import CaseResult, Verdict
from flashkit.exercises.report import render_html, render_text

INFRA = (
    "The grader itself failed here ({error}), so this answer was not judged. The 0 stands only"
    " until it is graded again; nothing needs to be handed in anew."
)
OURS = "autograder.engine.grade"
Report = tuple[str, str]  # HTML and text


class Asked(NamedTuple):
    """What the engine is asked about: the pristine imports and the solution cells."""

    prelude: str
    cells: list[SolutionCell]

    @property
    def fingerprint(self) -> str:
        """A hash of all of it: the same answer, the same hash."""
        parts = [self.prelude, *(part for cell in self.cells for part in (cell.id, cell.source))]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


def asked(nb: NotebookNode) -> Asked:
    """The cells of a transplanted notebook."""
    answers = [(c.metadata.nbgrader.grade_id, c.source) for c in nb.cells if is_solution(c)]
    prelude = next(c.source for c in nb.cells if c.cell_type == "code")
    return Asked(prelude, [SolutionCell(name, without_magics(text)) for name, text in answers])


class EngineExecute(NbGraderPreprocessor):
    """Writes the engine's verdict into each check cell and to a JSON file."""

    engine = Unicode(OURS, help="the function that judges").tag(config=True)
    verdicts = Unicode(help="folder of the verdict records").tag(config=True)
    device = Unicode(help='"cuda" or "cpu"').tag(config=True)
    seed = Integer(help="makes the inputs of the cases; the same for every student").tag(
        config=True
    )

    unjailed = Bool(False, help="run students' code with the rights of this process").tag(
        config=True
    )

    @default("device")
    def _device(self) -> str:
        return os.environ.get("AUTOGRADER_DEVICE") or runtime.device()

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Judge every check cell of the transplanted notebook `nb`. JailError without a jail."""
        ids = resources["nbgrader"]
        folder = Path(self.verdicts) / ids["student"] / ids["assignment"]
        for number, cell in enumerate(filter(is_grade, nb.cells), start=1):
            verdict, report = self.judge(nb, cell)
            record(cell, number, verdict, report)
            self._save(folder / f"{verdict.exercise}.json", verdict)
        return nb, resources

    def judge(self, nb: NotebookNode, cell: NotebookNode) -> tuple[Verdict, Report]:
        """The verdict on one check cell and its report; a failure of ours is `infra`, 0 points."""
        mark = cell.metadata.nbgrader
        exercise, most = mark.grade_id.removeprefix(CHECK), float(mark.points)
        try:
            if why := nb.metadata.get("autograder", {}).get("unreadable"):
                verdict = _empty(exercise, most, "graded", self.device, _unreadable(why))
            else:
                verdict = clamped(self._ask(nb, exercise), most)
            return verdict, render(verdict, _note(nb, exercise))
        except JailError:  # true of every submission: a person must see to it first
            raise
        except Exception as error:
            self.log.error("%s could not be judged:\n%s", exercise, traceback.format_exc())
            note = INFRA.format(error=type(error).__name__)
            verdict = _empty(exercise, most, "infra", self.device, note=note)
            return verdict, (f"<p>{html.escape(note)}</p>", note)

    def _ask(self, nb: NotebookNode, exercise: str) -> Verdict:
        answer = asked(nb)
        options = {"prelude": answer.prelude, "device": self.device, "seed": self.seed}
        options |= {"jailed": False} if self.unjailed else {}
        with tempfile.TemporaryDirectory(prefix="check-") as scratch:
            options["scratch"] = Path(scratch)
            verdict = import_item(self.engine)(exercise, answer.cells, **options)
        return replace(verdict, answer=answer.fingerprint)

    def _save(self, path: Path, verdict: Verdict) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(verdict.to_json() + "\n", encoding="utf-8")
        except OSError as error:  # the mark stands in the notebook all the same
            self.log.error("cannot write %s: %s", path, error)


class FlagInfra(NbGraderPreprocessor):
    """Marks what could not be judged as needing a person's eye, so that no 0 passes unseen."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Flag the grade of each check cell whose verdict is `infra`."""
        ids = resources["nbgrader"]
        broken = [c for c in nb.cells if c.metadata.get("autograder", {}).get("status") == "infra"]
        if broken:
            with Gradebook(ids["db_url"]) as gradebook:
                for cell in broken:
                    grade = gradebook.find_grade(
                        cell.metadata.nbgrader.grade_id,
                        ids["notebook"],
                        ids["assignment"],
                        ids["student"],
                    )
                    grade.needs_manual_grade = True
                gradebook.db.commit()
        return nb, resources


def said(config: Config, device: str | None, unjailed: bool) -> Config:
    """What a command line adds to a course's settings, in which "cuda" or "cpu" may stand.

    Raises JailError where students' code must be jailed and cannot be.
    """
    words = {"device": device} if device else {}
    words |= {"unjailed": True} if unjailed else {}
    added = Config({"EngineExecute": words})
    merged = Config()
    merged.merge(config)
    merged.merge(added)
    engine = EngineExecute(config=merged)
    if engine.engine == OURS and not engine.unjailed:
        jail.require(engine.device, config.CourseDirectory.root)
    return added


def clamped(verdict: Verdict, most: float) -> Verdict:
    """`verdict` if its points lie in 0..most; else ValueError (NaN would be full marks)."""
    if not (math.isfinite(verdict.points) and 0 <= verdict.points <= most):
        raise ValueError(f"points must lie in 0..{most}, got {verdict.points}")
    return verdict


def render(verdict: Verdict, note: str) -> Report:
    """The report on `verdict`, after a note on how the answer was found."""
    page, text = render_html(verdict), render_text(verdict)
    return (f"<p>{html.escape(note)}</p>{page}", f"{note}\n{text}") if note else (page, text)


def record(cell: NotebookNode, number: int, verdict: Verdict, report: Report) -> None:
    """Write the report and the points of `verdict` into the check cell, and nothing else."""
    page, text = report
    points = {"text/plain": repr(float(verdict.points))}
    cell.execution_count = number
    cell.metadata["autograder"] = NotebookNode(status=verdict.status)
    cell.outputs = [
        new_output("display_data", data={"text/html": page, "text/plain": text}),
        new_output("execute_result", data=points, execution_count=number),
    ]


def _note(nb: NotebookNode, exercise: str) -> str:
    """How intake found the answer to `exercise`, where that is worth a word."""
    notes = (
        c.metadata.get("autograder", {}).get("note", "") for c in nb.cells if c.id == exercise
    )
    return "" if nb.metadata.get("autograder", {}).get("unreadable") else next(notes, "")


def _unreadable(why: str) -> CaseResult:
    return CaseResult("the submitted file", "it must be a notebook", kind="error", message=why)


def _empty(
    exercise: str, most: float, status: str, device: str, *cases: CaseResult, note: str = ""
) -> Verdict:
    return Verdict(exercise, 0.0, most, cases, status, seed=0, device=device, note=note)
