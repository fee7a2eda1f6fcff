"""The kill matrix, as a page of the docs and as a table for the terminal."""

from collections.abc import Sequence

from autograder.catalogue.runner import Outcome, Scores, scores
from autograder.tables import aligned

HEAD = """\
# The kill matrix

How strong are the tests that mark this course? This page answers with mutants: answers to the
exercises that are wrong in one way each, and variants that are right and look unlike ours. All
went through the engine that marks students, with the cases, the process walls and the error
budgets of every submission. `autograder catalogue` repeats it, `autograder catalogue --write`
writes this page; the answers are in `autograder/catalogue/`.

{totals}

"One shape" is the usual public test of an attention kernel: 128 queries and keys, head dim 64,
N(0, 1), causal and not, compared at atol = rtol = 1e-2. It can be put only to the exercises that
compute attention. "Public" are the cases that a student sees in the notebook.

## Wrong answers

Each must die by the case that is named for it, and not by another alone. *Named* is what the
diagnosis told the student, from the outputs only.

{wrong}

## Right answers

Each must pass every case.

{right}

## Cases that nothing else replaces

A case is listed with the wrong answers that it alone catches.

{alone}
"""


def totals(score: Scores) -> list[str]:
    """The scores as sentences."""
    return [
        f"Our cases catch {score.caught} of {score.wrong} wrong answers"
        f" and spare {score.spared} of {score.right} right ones.",
        f"The public cases alone catch {score.by_public} of {score.wrong}.",
        f"The one-shape test catches {score.by_one_shape} of the {score.one_shape_of}"
        " that it can be put to.",
        f"{score.named} of {score.nameable} bugs that have a name were named.",
    ]


def terminal(outcomes: Sequence[Outcome]) -> str:
    """One row an answer, then the totals."""
    rows = [["answer", "exercise", "failed", "by its case", "named", "public", "one shape"]]
    for outcome in _sorted(outcomes):
        entry = outcome.entry
        by_its_case = "-" if entry.right else _yes(entry.dies_by in outcome.failed)
        failed = f"{len(outcome.failed)} of {outcome.cases}"
        public, shape = _caught(outcome)
        rows.append(
            [entry.name, entry.exercise, failed, by_its_case, outcome.bug or "-", public, shape]
        )
    return "\n".join([aligned(rows), "", *totals(scores(outcomes))])


def page(outcomes: Sequence[Outcome]) -> str:
    """The Markdown page."""
    ordered = _sorted(outcomes)
    wrong = [["answer", "exercise", "dies by", "fails", "named", "public", "one shape"]]
    right = [["answer", "exercise", "what is different"]]
    for outcome in ordered:
        entry = outcome.entry
        if entry.right:
            right.append([f"`{entry.name}`", f"`{entry.exercise}`", entry.differs])
        else:
            wrong.append(_wrong_row(outcome))
    return HEAD.format(
        totals="\n".join(f"- {line}" for line in totals(scores(outcomes))),
        wrong=_markdown(wrong),
        right=_markdown(right),
        alone=_markdown(_alone(ordered)),
    )


def _wrong_row(outcome: Outcome) -> list[str]:
    entry, (public, shape) = outcome.entry, _caught(outcome)
    fails = f"{len(outcome.failed)} of {outcome.cases}"
    named = f"`{outcome.bug}`" if outcome.bug else "unknown"
    dies_by = entry.dies_by
    if outcome.hidden_here:
        dies_by, fails, named = f"{dies_by} (on a GPU)", "passes, provisional", "-"
    return [f"`{entry.name}`", f"`{entry.exercise}`", dies_by, fails, named, public, shape]


def _alone(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """The cases that are the only one to catch an answer, and which."""
    names: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if not outcome.entry.right and len(outcome.failed) == 1:
            key = outcome.entry.exercise, outcome.failed[0]
            names.setdefault(key, []).append(f"`{outcome.entry.name}`")
    rows = [[f"`{exercise}`", case, ", ".join(n)] for (exercise, case), n in names.items()]
    return [["exercise", "case", "catches alone"], *rows]


def _caught(outcome: Outcome) -> tuple[str, str]:
    """Whether the public cases and the one-shape test notice."""
    shape = "-" if outcome.one_shape is None else _yes(not outcome.one_shape)
    return _yes(bool(outcome.public)), shape


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _sorted(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda o: (o.entry.right, o.entry.exercise, o.entry.name))


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
