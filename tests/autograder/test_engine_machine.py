"""Is the machine told from the student, and memory that grows like a square from a line?"""

import pytest
import torch
from test_engine import PRELUDE as TORCH
from test_engine import RIGHT, right_but
from test_engine_kernels import KERNEL, PRELUDE

from autograder.engine import SolutionCell, grade, growth, jail, sentinel, session, supervisor
from flashkit.exercises import own_work
from flashkit.kernels import selftest

MIB = 2**20


@pytest.fixture(autouse=True)
def _jail_works():
    if why := jail.refusal():
        pytest.skip(f"needs bubblewrap: {why}")


def troubles(monkeypatch, *answers):
    """Let the sentinel say these things in turn, and the last for ever; how often it was asked."""
    asked = []

    def trouble(self, worker):
        asked.append(self.started)
        return answers[min(len(asked), len(answers)) - 1]

    monkeypatch.setattr(session.Session, "_trouble", trouble)
    return asked


def update(source, tmp_path):
    cells = [SolutionCell("online_update", source)]
    return grade("online_update", cells, prelude=TORCH, seed=1, scratch=tmp_path)


def test_a_machine_that_fails_known_work_is_infra_after_a_second_try(tmp_path, monkeypatch):
    asked = troubles(monkeypatch, "cuda is gone")
    verdict = update(RIGHT, tmp_path)
    assert (verdict.status, verdict.points, verdict.cases) == ("infra", 0.0, ())
    assert "cuda is gone" in verdict.note
    assert asked == [1, 2, 1, 2]


def test_a_machine_that_recovers_costs_nothing(tmp_path, monkeypatch):
    troubles(monkeypatch, "busy", "busy", "")
    assert update(RIGHT, tmp_path).points == 4


def test_the_sentinel_tries_torch_triton_and_the_watch(monkeypatch):
    assert sentinel.trouble("cpu", kernels=True) == ""
    assert "Error" in sentinel.trouble("no such device", kernels=False)
    monkeypatch.setattr(selftest, "miscounted", lambda device: ["tl.range"])
    assert "counts wrongly in tl.range" in sentinel.trouble("cpu", kernels=True)
    monkeypatch.setattr(selftest, "unwritten", lambda device: [3])
    assert "copies six numbers" in sentinel.trouble("cpu", kernels=True)
    monkeypatch.setattr(own_work, "READY_MADE", ())
    assert "is not seen" in sentinel.trouble("cpu", kernels=False)


@pytest.mark.parametrize("machine", ["", "the card is dead"])
def test_who_is_to_blame_when_the_last_case_costs_the_process(tmp_path, monkeypatch, machine):
    monkeypatch.setattr(supervisor, "graded_cases", lambda exercise: exercise.public[:1])
    asked = troubles(monkeypatch, "", machine)
    verdict = update(right_but("os._exit(7)"), tmp_path)
    assert verdict.status == ("infra" if machine else "graded")
    assert asked[:2] == [1, 2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_no_fault_of_the_student(tmp_path):
    cells = [SolutionCell("flash_attention", KERNEL)]
    verdict = grade("flash_attention", cells, prelude=PRELUDE, device="cuda", scratch=tmp_path)
    assert verdict.status == "infra"
    assert "No worker could be started" in verdict.note


@pytest.mark.parametrize(
    ("used", "grows"),
    [
        ([(1 * MIB, 0), (2 * MIB, 0), (4 * MIB, 0)], ""),
        ([(0, 0)] * 3, ""),
        ([(5 * MIB, 4 * MIB), (5 * MIB, 0), (5 * MIB, MIB)], ""),
        ([(1 * MIB, 0), (4 * MIB, 0), (16 * MIB, 0)], "new tensors grows from 1.0 over 4.0 to"),
        ([(2 * MIB, 0), (6 * MIB, 0), (20 * MIB, 0)], "new tensors"),
        ([(0, 4 * MIB), (0, 2 * MIB), (0, 9 * MIB)], "peak of memory grows from 4.0 over 2.0"),
    ],
)
def test_a_square_is_told_from_a_line(used, grows):
    said = growth.verdict(used, (128, 256, 512))
    assert grows in said
    assert bool(said) == bool(grows)


@pytest.fixture
def memory_case(tmp_path, monkeypatch):
    """The one result of the memory case for a kernel, without all others."""
    monkeypatch.setattr(supervisor, "graded_cases", lambda exercise: ())

    def run(source):
        cells = [SolutionCell("flash_attention", source)]
        verdict = grade("flash_attention", cells, prelude=PRELUDE, seed=5, scratch=tmp_path)
        (result,) = verdict.cases
        return result

    return run


ALLOCATION = "o = torch.empty_like(q)"


def test_a_kernel_without_a_matrix_passes(memory_case):
    assert KERNEL.count(ALLOCATION) == 1
    result = memory_case(KERNEL)
    assert (result.kind, result.message) == ("pass", "")


@pytest.mark.parametrize(
    ("matrix", "witness"),
    [
        ("torch.empty(heads, t, s, dtype=torch.float16)", "memory for new tensors"),
        ("[torch.zeros(s) for _ in range(heads * t)]", "memory for new tensors"),
        ("bytearray(b'x') * (32 * heads * t * s)", "peak of memory"),
    ],
)
def test_a_t_by_t_matrix_is_seen(memory_case, matrix, witness):
    result = memory_case(KERNEL.replace(ALLOCATION, f"{ALLOCATION}\n    big = {matrix}"))
    assert result.kind == "wrong"
    assert f"Its {witness} grows" in result.message
    assert "T = 128, 256, 512: that is a T x T matrix" in result.message


def test_a_kernel_that_is_wrong_at_those_sizes_is_told_so(memory_case):
    result = memory_case(KERNEL.replace("return o", "return o if t < 200 else 2 * o"))
    assert result.message == "At T = S = 256: the output is wrong."


def test_a_little_rounding_is_no_matter_of_memory(memory_case):
    assert memory_case(KERNEL.replace("return o", "return o + 1e-4")).passed
