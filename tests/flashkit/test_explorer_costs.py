"""The explorers of costs say what independent arithmetic says, and every grouping ends alike."""

import itertools
import json
import math

import pytest

from flashkit import cost
from flashkit.widgets import explorers
from flashkit.widgets.explorers import merging, score_matrix, split
from flashkit.widgets.wording import duration, number, size

H200, A100, T4 = (cost.DEVICES[name] for name in ("H200", "A100", "T4"))


def facts(step) -> dict[str, str]:
    return dict(step.facts)


def panels(step) -> dict:
    return {panel.title: panel for panel in step.panels}


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (2**28, "256 MiB"), (3 * 2**39, "1.5 TiB")]
)
def test_sizes_are_worded(n_bytes, text):
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 µs"), (7.49e-6, "7.49 µs"), (2.5e-3, "2.5 ms"), (14.7, "14.7 s"), (4321, "4,321 s")],
)
def test_durations_are_worded(seconds, text):
    assert duration(seconds) == text


def test_the_score_matrix_of_lesson_1():
    steps = explorers.score_matrix_steps(32, 8, 4, 64, 128, H200)
    assert [facts(step)["T"] for step in steps[:4]] == ["1,024", "2,048", "4,096", "8,192"]
    at = facts(steps[3])
    assert at["S, one head"] == "256 MiB"
    assert at["S and P, all heads"] == "128 GiB"
    assert at["q, k, v, o"] == "2 GiB"
    assert [facts(step)["fits"] for step in steps] == ["yes"] * 4 + ["no"] * 4
    assert "they do not fit, by a factor of 3.93" in steps[4].sentence  # 516 GiB of 131.3


@pytest.mark.parametrize(
    ("heads", "batch", "itemsize", "d", "block_m"),
    [(32, 8, 4, 64, 128), (1, 1, 2, 128, 64), (3, 5, 1, 16, 256)],
)
def test_traffic_and_times_by_hand(heads, batch, itemsize, d, block_m):
    for device in (H200, T4):
        for step in explorers.score_matrix_steps(heads, batch, itemsize, d, block_m, device):
            t = int(facts(step)["T"].replace(",", ""))
            every, rows = heads * batch * itemsize, t * d
            unfused = every * (4 * t * t + 4 * rows)
            tiled = every * (2 * rows * -(-t // block_m) + 2 * rows)
            work = 4 * t * t * d * heads * batch / device.flops
            moved, times = step.panels[1:]
            assert moved.values[-2:] == (unfused, tiled)
            assert sum(moved.values[:5]) == unfused
            want = (work, unfused / device.bandwidth, tiled / device.bandwidth)
            assert times.values == pytest.approx(want)
            for name, seconds in zip(("unfused", "tiled"), want[1:], strict=True):
                bound = "memory-bound" if seconds > work else "compute-bound"
                said = f"{duration(max(seconds, work))}, {bound}"
                assert facts(step)[f"time, {name}"] == said
                assert said.replace(", ", " (") in step.sentence


def test_the_two_halves_of_the_score_matrix_make_the_whole():
    arguments = (32, 8, 4, 64, 128, A100)
    memory, traffic, whole = (
        explorers.score_matrix_steps(*arguments, about=about)[5] for about in score_matrix.ABOUT
    )
    assert whole.sentence == memory.sentence + traffic.sentence.removeprefix("T = 32,768:")
    assert whole.panels == memory.panels + traffic.panels
    with pytest.raises(ValueError, match="about must be one of memory, traffic, all, got 'time'"):
        explorers.score_matrix_steps(*arguments, about="time")


def test_the_score_matrix_explorer_takes_own_numbers():
    explorer = explorers.score_matrix_explorer(about="memory", t=4096)
    assert facts(explorer.steps[explorer.index])["T"] == "4,096"
    explorer.set(device="own numbers", gigabytes=1.0, heads=1, batch=1)
    assert explorer.error == ""
    assert "the memory of the machine you described is 953.7 MiB" in explorer.steps[0].sentence
    assert panels(explorer.steps[0])["Bytes held, log scale"].line == 10**9
    with pytest.raises(ValueError, match="t must be a power of two from 1,024 to 131,072"):
        explorers.score_matrix_explorer(t=1000)


def test_eight_programs_leave_124_sms_idle():
    steps = explorers.split_steps(1, 8, 8192, H200)
    assert "8 programs on 132 SMs: 124 stand idle" in steps[0].sentence
    assert " ".join(facts(step)["num_splits"] for step in steps) == "1 2 4 8 16 32 64 128"
    assert " ".join(facts(step)["waves"] for step in steps) == "1 1 1 1 1 2 4 8"
    assert facts(steps[5])["keys a program"] == "256"
    fastest = [step for step in steps if "the least of all" in step.sentence]
    assert [facts(step)["num_splits"] for step in fastest] == ["16"]


@pytest.mark.parametrize(
    ("batch", "kv_heads", "s", "device"),
    [(1, 8, 8192, H200), (3, 5, 1000, A100), (64, 8, 131072, T4), (1, 1, 1, H200)],
)
def test_waves_and_sms_by_counting(batch, kv_heads, s, device):
    for step in explorers.split_steps(batch, kv_heads, s, device):
        n = int(facts(step)["num_splits"].replace(",", ""))
        waiting, waves, busy = batch * kv_heads * n, 0, 0
        while waiting:
            busy = min(waiting, device.sms)
            waiting, waves = waiting - busy, waves + 1
        assert facts(step)["waves"] == f"{waves:,}"
        assert facts(step)["busy in the last wave"] == f"{busy / device.sms:.0%}"
        drawn = list(itertools.chain(*step.panels[1].texts))
        assert (drawn.count("×"), drawn.count("·")) == (busy, device.sms - busy)
        assert n == 1 or (n - 1) * 64 < s, "no split without a key of its own"
        json.dumps(step.to_json(), allow_nan=False)


def test_the_predicted_time_by_hand():
    share = 4.8e12 / 132  # bytes a second of one SM
    tile = 2 * 64 * 128 * 2  # K and V, float16
    one = cost.decode_time(1, 8, 8192, 1, H200)
    assert one == pytest.approx(128 * tile / share)
    state = (128 + 2) * 4
    want = 2 * (4 * tile + 4 * state) + 32 * state  # two waves, then 32 states for each query head
    assert cost.decode_time(1, 8, 8192, 32, H200) == pytest.approx(want / share)
    for batch, s, n in itertools.product((1, 7), (1, 100, 10**5), (1, 2, 64)):
        reads = 2 * batch * 8 * s * 128 * 2 / H200.bandwidth
        assert cost.decode_time(batch, 8, s, n, H200) >= reads, "no faster than all SMs reading"


@pytest.mark.parametrize("grouping", merging.GROUPINGS)
@pytest.mark.parametrize("parts", range(1, 9))
def test_every_grouping_ends_in_the_same_output(grouping, parts):
    weights = [math.exp(score) for score in split.SCORES]
    mean = sum(w * v for w, v in zip(weights, split.VALUES, strict=True)) / sum(weights)
    assert f"{mean:.4f}" == "1.8619"
    nodes = merging.merged(merging.cut(split.SCORES, split.VALUES, parts), grouping)
    assert len(nodes) == 2 * parts - 1
    assert merging.output(nodes[-1]) == pytest.approx(mean, abs=1e-12)
    assert (nodes[-1].start, nodes[-1].stop) == (0, 8)
    drawn = merging.tree("", nodes)
    assert len(drawn.edges) == 2 * parts - 2
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y, *_ in drawn.nodes)
    places = {(round(x, 6), round(y, 6)) for x, y, *_ in drawn.nodes}
    assert len(places) == len(nodes), "no node hides another"


def test_groupings_merge_in_their_own_order():
    def spans(grouping):
        nodes = merging.merged(merging.cut([0.0] * 4, [1.0] * 4, 4), grouping)
        return [(node.start, node.stop) for node in nodes[4:]]

    assert spans("pairwise") == [(0, 2), (2, 4), (0, 4)]
    assert spans("left to right") == [(0, 2), (0, 3), (0, 4)]
    assert spans("right to left") == [(2, 4), (1, 4), (0, 4)]
    with pytest.raises(ValueError, match="grouping must be one of"):
        spans("at random")


def test_the_split_explorer_moves_with_its_controls():
    explorer = explorers.split_explorer()
    assert len(explorer.steps) == 8
    explorer.set(batch=16, s=1000, device="T4", grouping="right to left")
    assert explorer.error == ""
    assert len(explorer.steps) == 5
    assert facts(explorer.steps[0])["programs"] == "128"
    assert facts(explorer.steps[0])["SMs"] == "40"
    with pytest.raises(ValueError, match="batch must be an integer >= 1, got 0"):
        explorers.split_steps(0, 8, 100, T4)


def test_merge_steps_are_the_merges_of_lesson_4():
    steps = explorers.merge_steps([0.0, 1.0, 2.0, -1.0], [2.0, 4.0, 1.0, 3.0], 4)
    assert len(steps) == 4
    e = math.exp
    l, a = e(-2) + e(-1) + 1 + e(-3), 2 * e(-2) + 4 * e(-1) + 1 + 3 * e(-3)
    last = facts(steps[-1])
    assert (last["l"], last["a"], last["a / l"]) == (f"{l:.4f}", f"{a:.4f}", f"{a / l:.4f}")
    assert "keys 0–1 with keys 2–3" in steps[-1].sentence
    assert "factors are 0.3679 and 1.0000" in steps[-1].sentence
    assert "O = 1.8619" in steps[-1].sentence
    rule = steps[-1].panels[0].lines
    assert rule[1] == f"l = 0.3679 × 1.3679 + 1.0000 × 1.0498 = {number(l)}"


def test_the_merge_explorer_says_what_does_not_fit():
    explorer = explorers.merge_explorer()
    explorer.set(parts=5)
    assert explorer.error == "parts must be from 1 to 4, got 5"
    explorer.set(values="1, 2")
    assert explorer.error == "4 scores, but 2 values"
    explorer.set(values="1, 2, 3, 4", parts=1)
    assert (explorer.error, len(explorer.steps)) == ("", 1)
