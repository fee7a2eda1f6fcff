"""One course: its folders, its nbgrader configuration, its gradebook."""

import os
import secrets
import shutil
import sys
import warnings
from functools import cached_property
from pathlib import Path

from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SAWarning
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

REPOSITORY = Path(__file__).resolve().parents[1]
STUB = 'raise NotImplementedError("write your answer here, then run the check below")'


class CourseError(Exception):
    """Something the person at the keyboard can put right; the text says what."""


def configure(c: Config, root: Path = REPOSITORY, work: Path | None = None) -> None:
    """Fill nbgrader's settings `c` for the course at `root`; a grading run writes to `work`."""
    work = work or root / "autograder" / "work"
    (work / "exchange").mkdir(parents=True, exist_ok=True)  # else nbgrader looks in /usr/local
    _folders(c.CourseDirectory, root, work)
    c.Exchange.root = str(work / "exchange")
    c.NbGrader.logfile = str(work / "nbgrader.log")
    c.KernelManager.transport_encryption = "auto"
    c.ClearSolutions.code_stub = {"python": STUB}

    c.Autograde.exporter_class = "autograder.intake.SubmissionExporter"
    c.Autograde.pre_convert_hook = "autograder.intake.settle_names"
    c.Autograde.autograde_preprocessors = [
        "autograder.execute.EngineExecute",
        "nbgrader.preprocessors.LimitOutput",
        "nbgrader.preprocessors.SaveAutoGrades",
        "autograder.execute.FlagInfra",
        "nbgrader.preprocessors.AssignLatePenalties",
        "nbgrader.preprocessors.CheckCellMetadata",
    ]
    _feedback(c)
    c.EngineExecute.verdicts = str(work / "verdicts")
    c.EngineExecute.seed = _seed(work / "seed")
    warnings.filterwarnings("ignore", category=SAWarning)  # nbgrader's queries autoflush early
    _find_alembic()


def _feedback(c: Config) -> None:
    c.GenerateFeedback.preprocessors = [
        "autograder.feedback.HideTests",
        "nbgrader.preprocessors.GetGrades",
    ]
    c.GenerateFeedback.exporter_class = "autograder.feedback.FeedbackExporter"
    # Of this exporter alone: Formgrader has templates of its own.
    c.FeedbackExporter.extra_template_basedirs = [str(REPOSITORY / "autograder" / "templates")]


def _seed(path: Path) -> int:
    """The course's secret seed, drawn at its first use.

    One for all: equal work gets equal marks, whoever hands it in and whenever it is graded.
    """
    if not path.exists():
        path.write_text(f"{secrets.randbits(31)}\n", encoding="utf-8")
    return int(path.read_text(encoding="utf-8"))


def _folders(directory: Config, root: Path, work: Path) -> None:
    directory.root = str(root)
    directory.source_directory = "solutions"
    directory.release_directory = "notebooks"
    for step in ("submitted", "autograded", "feedback", "solution", "source_with_tests"):
        directory[f"{step}_directory"] = str(work / step)
    directory.db_url = f"sqlite:///{work / 'gradebook.db'}"
    directory.max_file_size = 10_000  # kB
    directory.max_dir_size = 50_000
    # nbgrader copies every other file of a lesson's folder to the students: never the source
    directory.ignore = ["*.py", "*.pyc", "__pycache__", ".ipynb_checkpoints", "feedback"]


def _find_alembic() -> None:
    """Put this environment's programs on PATH: nbgrader calls `alembic` by name."""
    here = str(Path(sys.executable).parent)
    if shutil.which("alembic") is None:
        os.environ["PATH"] = os.pathsep.join([here, os.environ.get("PATH", "")])


class Course:
    """The course whose nbgrader_config.py lies in `folder`; `overrides` go over its settings."""

    def __init__(self, folder: Path = REPOSITORY, overrides: Config | None = None):
        self.folder = Path(folder).resolve()
        loader = PyFileConfigLoader("nbgrader_config.py", path=str(self.folder))
        self.config = loader.load_config()
        self.config.merge(overrides or Config())
        self.directory = CourseDirectory(config=self.config)
        self.root = Path(self.directory.root)
        self.verdicts = Path(self.config.EngineExecute.verdicts)
        self.work = self.verdicts.parent

    def path(self, step: str, student: str, lesson: str) -> Path:
        """A lesson's folder at a step: source, release, submitted, autograded or feedback."""
        name = getattr(self.directory, f"{step}_directory")
        return Path(os.path.normpath(self.directory.format_path(name, student, lesson)))

    def source(self, lesson: str) -> Path:
        return self.path("source", ".", lesson) / f"{lesson}.ipynb"

    def release(self, lesson: str) -> Path:
        return self.path("release", ".", lesson) / f"{lesson}.ipynb"

    def lessons(self) -> list[str]:
        """The lessons in order: every folder of solutions/ that holds a source of its own name."""
        folders = self.path("source", ".", ".").glob("*/")
        return sorted(f.name for f in folders if (f / f"{f.name}.py").exists())

    def pick(self, names: list[str]) -> list[str]:
        """`names` checked against the lessons there are; all of them when none is named."""
        there = self.lessons()
        if unknown := [name for name in names if name not in there]:
            raise CourseError(f"no lesson {unknown[0]!r}; there are: {', '.join(there) or 'none'}")
        return names or there

    def students(self, lesson: str) -> list[str]:
        """Who has handed in a folder for `lesson`."""
        folders = self.path("submitted", ".", ".").glob(f"*/{lesson}/")
        return sorted(folder.parent.name for folder in folders)

    @cached_property
    def api(self) -> NbGraderAPI:
        api = NbGraderAPI(coursedir=self.directory, config=self.config)
        api.log_level = "WARN"
        return api
