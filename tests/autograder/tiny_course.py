"""The tiny course as data: two exercises, a configuration that asks the fake engine."""

from pathlib import Path

SOURCE = Path(__file__).parent / "fixtures" / "tiny" / "tiny.py"
POINTS = {"double": 2, "hypotenuse": 3}
CONFIG = """
from pathlib import Path
from autograder.course import configure
c = get_config()
configure(c, Path(__file__).resolve().parent)
c.EngineExecute.engine = "fake_engine.grade"
c.EngineExecute.device = "cpu"
"""
