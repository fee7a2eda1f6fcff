"""Lets plain `nbgrader`, Formgrader and JupyterLab find the course from this folder."""

c = get_config()  # noqa: F821  (nbgrader provides it)
load_subconfig("autograder/nbgrader_config.py")  # noqa: F821
