"""A pytest plugin for the release: under nbval each check cell must fail, and nothing else."""

import pytest


def pytest_collection_modifyitems(items):
    """Mark each check cell as a strict expected failure."""
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is not None and cell.metadata.get("nbgrader", {}).get("grade"):
            item.add_marker(pytest.mark.xfail(reason="nobody has solved it yet", strict=True))
