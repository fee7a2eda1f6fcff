"""The doctor says ready on a sound machine and names what is broken on another."""

import importlib.metadata
import json

import pytest
import torch

from flashkit import cli, doctor
from flashkit.kernels import selftest
from flashkit.native import build


def run(capsys, *arguments):
    code = cli.main(["doctor", *arguments])
    return code, capsys.readouterr().out


def test_a_sound_machine_is_ready(capsys):
    code, out = run(capsys)
    assert code == 0
    assert out.rstrip().endswith("ready")
    for title in doctor.CHECKS:
        assert f"ok      {title}" in out


@pytest.mark.gpu
def test_the_gpu_is_named_and_its_kernels_are_right(capsys):
    code, out = run(capsys)
    assert code == 0
    assert f"ok      kernels run on {torch.cuda.get_device_name()}" in out
    assert "broken" not in out


def test_json_has_the_same_findings(capsys):
    code, out = run(capsys, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["ready"] is True
    assert {row["level"] for row in report["findings"]} <= {"ok", "note"}
    assert any(row["text"].startswith("torch ") for row in report["findings"])


def test_an_unwritten_output_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(selftest, "unwritten", lambda device: [4, 5])
    code, out = run(capsys)
    assert code == 1
    assert "broken  a kernel writes all of its output: elements [4, 5]" in out
    assert f"-> {doctor.RENEW}" in out
    assert "NOT ready" in out


def test_a_wrong_attention_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "flash_attention", lambda q, k, v, **_: q + 1)
    code, out = run(capsys)
    assert code == 1
    assert "away from float64" in out


def test_an_exception_is_one_line(monkeypatch, capsys):
    def die(device):
        raise RuntimeError("0 active drivers")

    monkeypatch.setattr(selftest, "miscounted", die)
    code, out = run(capsys)
    assert code == 1
    assert "loops in a kernel keep their bounds: RuntimeError: 0 active drivers (triton" in out
    assert "Traceback" not in out


def without(monkeypatch, *missing):
    """Let the doctor believe that these packages are not installed."""
    real = importlib.metadata.version

    def version(name):
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_package_for_instructors_may_be_absent(monkeypatch, capsys):
    without(monkeypatch, "nbgrader")
    code, out = run(capsys)
    assert code == 0
    assert "note    nbgrader is not installed (needed for: instructors only)" in out
    assert "-> pip install nbgrader==" in out


def test_no_gpu_and_no_interpreter_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    code, out = run(capsys)
    assert code == 1
    assert "-> unset TRITON_INTERPRET" in out
    assert doctor.RENEW not in out  # a new environment would not help


@pytest.mark.parametrize(("system", "code"), [("linux", 1), ("darwin", 0), ("win32", 0)])
def test_no_triton_is_broken_only_where_it_exists(monkeypatch, capsys, system, code):
    without(monkeypatch, "triton")
    monkeypatch.setattr(doctor.sys, "platform", system)
    monkeypatch.setattr(doctor.runtime, "has_triton", lambda: False)
    got, out = run(capsys)
    assert got == code
    assert ("lessons 1 and 2 run here" in out) == (code == 0)
    assert ("-> pip install triton==" in out) == (code == 1)


def test_another_version_is_noted(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_pins", lambda: {"torch": "1.0.0"})
    code, out = run(capsys)
    assert code == 0
    assert "(the course is tested with 1.0.0)" in out


def test_without_compilers_the_twins_are_noted(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "RUSTC", "CUDACXX"):
        monkeypatch.delenv(name, raising=False)
    build.load.cache_clear()
    code, out = run(capsys)
    assert code == 0
    assert "note    the worked example in C++ can only be read" in out
    assert "-> no Rust compiler here" in out


def test_a_twin_that_computes_something_else_is_broken(monkeypatch, capsys):
    def online_attention(q, k, v, tile, language):
        return v.mean(0), None

    monkeypatch.setattr(doctor.native, "online_attention", online_attention)
    code, out = run(capsys)
    assert code == 1
    assert "broken  the worked example in Rust is 2.50000, not 1.86191" in out


def test_the_loops_are_counted_one_by_one(monkeypatch):
    monkeypatch.setattr(selftest, "_count_kernel", {(1,): lambda *_, **__: None})
    assert selftest.miscounted("cpu") == list(selftest.LOOPS)


def test_poison_survives_a_kernel_that_does_nothing(monkeypatch):
    monkeypatch.setattr(selftest, "_copy_kernel", {(3,): lambda *_, **__: None})
    assert selftest.unwritten("cpu") == list(range(6))
