"""The backward pass of one row: do its steps say what a nudge of the scores would show?"""

import pytest

from flashkit.widgets.explorers import gradient_explorer, gradient_steps
from flashkit.widgets.explorers.gradient import gradient_row

WORKED = ([0.0, 1.0, 2.0, -1.0], [2.0, 4.0, 1.0, 3.0])


def test_the_worked_example_has_its_numbers():
    row = gradient_row(*WORKED, 1.0)
    assert row.o == pytest.approx(1.8619, abs=1e-4)
    assert row.ds == pytest.approx([0.0120, 0.5065, -0.5550, 0.0365], abs=1e-4)
    assert sum(row.ds) == pytest.approx(0.0, abs=1e-12)
    assert row.ds == pytest.approx(row.measured, abs=1e-7)


@pytest.mark.parametrize("do", [-3.0, 0.0, 2.5])
@pytest.mark.parametrize("row", [WORKED, ([5.0], [2.0]), ([900.0, 1.0, -900.0], [0.0, -1.0, 7.0])])
def test_every_step_can_be_shown_and_the_nudge_agrees(row, do):
    steps = gradient_steps(*row, do)
    assert len(steps) == 6
    assert steps[-1].sentence == "A nudge of each score measures the same."
    assert all(step.to_json()["sentence"].endswith(".") for step in steps)


def test_a_forgotten_delta_is_shown_and_told_without_colour():
    *_, ds, last = gradient_steps(*WORKED, 1.0, "delta")
    assert "delta is forgotten. All ds add up to 1.8619, and should add up to 0." in ds.sentence
    assert last.sentence == "A nudge of each score measures something else: it is 1.2 apart."
    wrong, measured = last.panels[:2]
    assert all(text.startswith("✗") for text in wrong.texts)
    assert set(measured.kinds) == {"good"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1.0], [1.0, 2.0]), "1 scores, but 2 values"),
        (([0.0] * 11, [0.0] * 11), "at most 10 keys fit, got 11"),
        (([0.0], [0.0], 1.0, "p"), "forget must be one of"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=said):
        gradient_steps(*arguments)


def test_the_explorer_computes_again_when_a_control_changes():
    explorer = gradient_explorer()
    before = explorer.steps[3].sentence
    explorer.set(do=2.0)
    assert explorer.steps[3].sentence != before
