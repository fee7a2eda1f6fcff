"""The charts of the bench say what its rows say."""

import pytest

from flashkit.bench.ladder import DECODE_RUNGS, DECODES, PREFILLS, RUNGS
from flashkit.bench.machine import Ceilings
from flashkit.bench.rows import Row
from flashkit.bench.shapes import backward, decode, grouped, prefill
from flashkit.widgets import figures

K = 1024
RATES = Ceilings(700.0, 50.0, 4000.0)
SPEEDS = {"cudnn": 600.0, "flash": 300.0, "triton": 450.0, "hopper": 660.0, "novel": 100.0}


def row(shape, name, speed, **more):
    """A row of so many TFLOP/s, or GB/s of a decode shape."""
    ms = shape.bytes / speed / 1e6 if shape.decodes else shape.flops / speed / 1e9
    ours = name in ("triton", "hopper", "teaching")
    return Row(shape, name, ours, **({"measure": "call", "ms": ms} | more))


def forward_rows():
    shapes = [prefill(128, t) for t in (4 * K, 512)]
    rows = [row(shape, name, speed) for shape in shapes for name, speed in SPEEDS.items()]
    return rows + [
        row(prefill(64, 4 * K), "cudnn", 1.0),
        row(prefill(128, 512), "seen at one length", 1.0),
        *(row(shape, "auto", 660.0) for shape in shapes),
        row(prefill(128, 4 * K, causal=False), "cudnn", 1.0),
        row(grouped(8 * K, True), "cudnn", 1.0),
        row(prefill(128, 8 * K), "hopper", 1.0, status="wrong"),
        Row(prefill(128, 8 * K), "flex", False, "call", "skipped", "out of memory"),
    ]


def decode_rows():
    rows = [row(decode(1, s), name, s / 10) for s in (K, 8 * K) for name in ("cudnn", "triton")]
    rotated = row(decode(1, K), "cudnn", 1.0, measure="rotated")
    return [*rows, rotated, row(decode(16, K), "cudnn", 1.0)]


def ladder_rows(rungs=RUNGS, shape=PREFILLS[0]):
    rows = [row(shape, r.implementation.name, 100.0 * (i + 1)) for i, r in enumerate(rungs)]
    return [*rows, row(shape, "cudnn", 550.0)]


def backward_rows():
    shapes = [backward(prefill(128, t)) for t in (4 * K, 8 * K)]
    return forward_rows() + [
        row(shape, name, speed / 2) for shape in shapes for name, speed in SPEEDS.items()
    ]


FIGURES = {
    "forward": lambda: figures.forward_speed(forward_rows(), RATES, 128),
    "backward": lambda: figures.backward_speed(backward_rows(), RATES, 128),
    "decode": lambda: figures.decode_speed(decode_rows(), RATES),
    "ladder": lambda: figures.ladder(RUNGS, PREFILLS[0], ladder_rows()),
}


@pytest.mark.parametrize("name", FIGURES)
def test_house_look(name):
    layout = FIGURES[name]().layout
    assert 800 <= layout.width <= 900
    assert 250 <= layout.height <= 800
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert max(len(line) for line in layout.title.text.split("<br>")) <= 105
    assert min([layout.font.size, *(note.font.size for note in layout.annotations)]) >= 12
    assert FIGURES[name]().to_json() == FIGURES[name]().to_json()
    assert "bdata" not in FIGURES[name]().to_json()


def test_a_line_holds_the_right_times_of_one_implementation_by_length():
    figure = FIGURES["forward"]()
    lines = {line.name: line for line in figure.data}
    assert {name: line.y for name, line in lines.items()} == {
        name: (speed, speed) for name, speed in SPEEDS.items()
    }
    assert lines["hopper"].x == (512, 4 * K)
    assert "hopper is the fastest at 4k, 1.10 times cudnn" in figure.layout.title.text
    assert figure.layout.annotations[0].text == "matmul: 700"
    assert figure.layout.shapes[0].y0 == 700.0


def test_the_backward_is_drawn_by_itself():
    figure = FIGURES["backward"]()
    lines = {line.name: line.y for line in figure.data}
    assert lines == {name: (speed / 2, speed / 2) for name, speed in SPEEDS.items()}
    assert figure.layout.title.text.startswith("Backward, D 128, causal: hopper is the fastest")


def test_lines_differ_in_more_than_colour():
    lines = FIGURES["forward"]().data
    assert len({line.marker.symbol for line in lines}) == len(lines)
    peers = [line.line.dash for line in lines if line.name in ("cudnn", "flash")]
    assert "solid" not in peers


def test_decode_draws_one_sequence_one_call_at_a_time():
    figure = FIGURES["decode"]()
    assert [line.name for line in figure.data] == ["cudnn", "triton"]
    assert figure.data[0].y == pytest.approx((102.4, 819.2))
    assert figure.layout.annotations[0].text == "copy: 4,000"


def test_the_ladder_has_a_bar_a_rung_and_the_line_of_cudnn():
    figure = FIGURES["ladder"]()
    (bars,) = figure.data
    assert bars.x == tuple(100.0 * (i + 1) for i in range(len(RUNGS)))
    assert bars.text[0] == "100"
    assert [RUNGS[i].new in bars.y[i] for i in range(len(RUNGS))] == [True] * len(RUNGS)
    assert figure.layout.shapes[0].x0 == 550.0
    assert f"from 100 to {100 * len(RUNGS)} TFLOP/s" in figure.layout.title.text


def test_a_rung_without_a_time_has_no_bar():
    rows = [r for r in ladder_rows() if r.implementation != "Gluon, no overlap"]
    figure = figures.ladder(RUNGS, PREFILLS[0], rows)
    assert len(figure.data[0].x) == len(RUNGS) - 1
    of_decode = figures.ladder(DECODE_RUNGS, DECODES[0], ladder_rows(DECODE_RUNGS, DECODES[0]))
    assert of_decode.layout.xaxis.title.text == "GB/s"


def test_rows_without_a_time_cannot_be_drawn():
    for draw in (
        lambda: figures.forward_speed([], RATES, 128),
        lambda: figures.decode_speed([], RATES),
        lambda: figures.ladder(RUNGS, PREFILLS[0], []),
    ):
        with pytest.raises(ValueError, match="the rows hold no"):
            draw()
