"""A course of one tiny lesson: no need of the real lessons or of the engine."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("nbgrader", reason="the autograder needs the extra `grading`")

from tiny_course import CONFIG, POINTS, SOURCE  # noqa: E402

from autograder.build import build  # noqa: E402
from autograder.course import Course  # noqa: E402
from autograder.release import release  # noqa: E402


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """A folder with the tiny course, its notebook built."""
    root = tmp_path_factory.mktemp("tiny")
    (root / "solutions" / "tiny").mkdir(parents=True)
    shutil.copy(SOURCE, root / "solutions" / "tiny")
    (root / "nbgrader_config.py").write_text(CONFIG)
    build(root / "solutions" / "tiny" / "tiny.py", POINTS, root)
    return root


@pytest.fixture(scope="session")
def released_once(built, tmp_path_factory) -> Path:
    """A folder with the tiny course, released and entered in its gradebook."""
    root = tmp_path_factory.mktemp("released") / "course"
    shutil.copytree(built, root)
    release(Course(root), ["tiny"], POINTS)
    return root


@pytest.fixture
def course(released_once, tmp_path) -> Course:
    """A fresh copy of the tiny course as it is when submissions come in."""
    shutil.copytree(released_once, tmp_path / "course")
    return Course(tmp_path / "course")
