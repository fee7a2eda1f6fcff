"""A hostile battery against the grader: attacks as data, and what must hold after each."""
