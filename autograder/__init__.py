"""Release, collect, autograde, give feedback: nbgrader with an engine of its own behind it."""
