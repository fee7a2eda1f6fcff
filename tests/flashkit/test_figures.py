"""The figures say what the data say: values, texts, titles; and they keep the house's look."""

import json

import pytest
import torch

from flashkit import cost
from flashkit.memory import peak_bytes
from flashkit.widgets import figures

FIGURES = {
    "traffic": lambda: figures.traffic(8192, 128, 128),
    "roofline": lambda: figures.roofline(
        {"slow": (1e9, 1e9), "fast": (1e12, 1e9)}, cost.DEVICES["H200"]
    ),
    "tile_map": lambda: figures.tile_map(40, 70, 30, 16, 16, window=24),
    "peak_memory": lambda: figures.peak_memory([(256, 2**20, 2**18), (512, 2**22, 2**19)]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_house_look(name):
    layout = FIGURES[name]().layout
    assert 800 <= layout.width <= 900
    assert 250 <= layout.height <= 800
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert layout.title.text
    assert max(len(line) for line in layout.title.text.split("<br>")) <= 105
    assert min([layout.font.size, *(note.font.size for note in layout.annotations)]) >= 12


@pytest.mark.parametrize("name", FIGURES)
def test_plain_and_repeatable(name):
    once, again = FIGURES[name]().to_json(), FIGURES[name]().to_json()
    assert once == again
    assert "bdata" not in once, "lists, not base64 arrays"
    assert "NaN" not in once
    assert "Infinity" not in once
    json.loads(once)


@pytest.mark.parametrize(("t", "d", "block_m"), [(8192, 128, 128), (4096, 64, 64)])
def test_traffic_stacks_up_to_the_totals(t, d, block_m):
    figure = figures.traffic(t, d, block_m)
    unfused, tiled = (sum(bar.x[row] for bar in figure.data) for row in (0, 1))
    assert unfused == cost.unfused_bytes(t, t, d)
    assert tiled == cost.flash_bytes(t, t, d, block_m)
    assert [bar.x[0] for bar in figure.data[:4]] == [2 * t * t] * 4
    assert f"{unfused / tiled:.1f} times" in figure.layout.title.text


def test_roofline_points_lie_on_the_roof():
    h200 = cost.DEVICES["H200"]
    figure = FIGURES["roofline"]()
    _, slow, fast = figure.data
    assert (slow.x[0], slow.y[0]) == (1, h200.bandwidth)
    assert (fast.x[0], fast.y[0]) == (1000, h200.flops)
    assert "1 of 2 stand left of the ridge" in figure.layout.title.text
    assert slow.name.endswith("memory-bound")
    assert fast.name.endswith("compute-bound")


@pytest.mark.parametrize("window", [None, 24])
def test_tile_map_agrees_with_cost(window):
    figure = figures.tile_map(40, 70, 30, 16, 16, window=window)
    kinds = figure.data[0].customdata
    for i, row in enumerate(kinds):
        for j, kind in enumerate(row):
            assert kind == cost.tile_kind(i, j, 40, 70, 30, 16, 16, True, window)
    counts = cost.tile_counts(40, 70, 30, 16, 16, True, window)
    assert f"{counts['skip']} are skipped" in figure.layout.title.text
    assert f"{counts['full']} are full" in figure.layout.title.text
    signs = {(k, s) for kr, sr in zip(kinds, figure.data[0].text, strict=True)
             for k, s in zip(kr, sr, strict=True)}  # fmt: skip
    assert len(signs) == len({kind for kind, _ in signs}) == len({sign for _, sign in signs})


def test_peak_memory_draws_what_was_measured():
    peak = peak_bytes(torch.zeros, 1024)
    figure = figures.peak_memory([(16, peak, 1024), (32, 8192, 2048)])
    assert [line.y for line in figure.data] == [(peak, 8192), (1024, 2048)]
    assert "4 times as much" in figure.layout.title.text
    assert len({line.marker.symbol for line in figure.data}) == 2
