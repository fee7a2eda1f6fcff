"""The battery is sound data, and a few of its attacks hold; `autograder attack` runs them all."""

import os
import subprocess
import sys

import pytest

from autograder.attacks import notebooks, page, verb
from autograder.attacks.battery import (
    FAMILIES,
    LESSONS,
    Attack,
    Scene,
    cell_source,
    load,
    prelude,
    right_answer,
)
from autograder.attacks.class_run import run_on_class
from autograder.attacks.direct import verdict_problems
from autograder.attacks.run import run_on_engine, table
from autograder.attacks.scene import leftovers, marked, stage
from autograder.engine.jail import refusal
from flashkit.exercises.model import CaseResult, Verdict

ATTACKS = {attack.name: attack for attack in load()}
jailed = pytest.mark.skipif(bool(refusal()), reason=f"no jail here: {refusal()}")


def quiet(text):
    pass


def broken(results):
    return {result.name: result.broken for result in results if result.broken}


def test_there_are_attacks_of_every_family():
    assert len(ATTACKS) >= 60
    assert {attack.family for attack in ATTACKS.values()} == set(FAMILIES)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_each_attack_is_a_sentence_and_code_that_compiles(attack, tmp_path):
    assert attack.aim[0].islower()
    assert not attack.aim.endswith(".")
    with stage(tmp_path) as (scene, _, _):
        told = Scene({**scene.facts, "MARK": "mark"})
        compile(cell_source(attack, told), attack.name, "exec")
    assert not attack.notebook or callable(getattr(notebooks, attack.notebook))


def test_the_answers_and_imports_come_from_the_lessons():
    for lesson, exercises in LESSONS.items():
        assert "import torch" in prelude(lesson)
        assert all(f"def {'answer_1' if 'q' in n else n}(" in right_answer(n) for n in exercises)
        assert "SOLUTION" not in "".join(map(right_answer, exercises))


def verdict(points, kind="wrong", message="", status="graded"):
    cases = (CaseResult("a case", "a reason", kind, message),)
    return Verdict("online_update", points, 4, cases, status, seed=1, device="cpu")


def test_what_an_attack_earns_is_judged():
    harmless = Attack("a", "theft", "an aim")
    assert verdict_problems(harmless, verdict(0.0)) == []
    assert "earned 3.67 points, not 0" in verdict_problems(harmless, verdict(3.67))[0]
    assert "crime succeeded" in verdict_problems(harmless, verdict(0.0, "error", "LOOT x"))[0]
    assert "not judged: infra" in verdict_problems(harmless, verdict(0.0, status="infra"))[0]
    partly = Attack("a", "work", "an aim", below=True)
    assert verdict_problems(partly, verdict(3.0)) == []
    assert "all 4 points" in verdict_problems(partly, verdict(4.0))[0]


def test_what_stays_behind_is_found_and_removed(tmp_path):
    mark = marked(7)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / f"{mark}.so").write_text("")
    program = "print('awake', flush=True); import time; time.sleep(600)"
    sleeper = subprocess.Popen([sys.executable, "-c", program, mark], stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout.readline() == b"awake\n"
        found = leftovers(mark, tmp_path)
        assert any("wrote" in sentence for sentence in found)
        assert any("1 processes outlived" in sentence for sentence in found)
        assert sleeper.wait(10) == -9
    finally:
        sleeper.kill()
    assert leftovers(mark, tmp_path) == []


def test_a_listener_hears_what_gets_out(tmp_path):
    with stage(tmp_path) as (scene, secret, listener):
        names = {"network": ATTACKS["network"], "udp": ATTACKS["names_of_the_network"]}
        for attack in names.values():
            body = scene.fill(attack.crime).replace("\n", "\n    ")
            space = {}
            exec(f"def crime():\n    {body}", space)
            assert space["crime"]() == secret
        assert listener.heard == 2
        assert os.environ["ATTACK_CANARY"] == secret


@jailed
@pytest.mark.slow
def test_the_engine_holds_a_few():
    names = ["forged_verdict", "the_gradebook", "network", "a_process_that_stays"]
    results = run_on_engine([ATTACKS[name] for name in names], "cpu", 2, quiet)
    assert broken(results) == {}
    assert [result.points for result in results[1:5]] == [0.0] * 4


@jailed
@pytest.mark.slow
def test_the_pipeline_holds_a_few():
    names = ["skipped_check_cells", "forged_record", "someone_elses_file", "change_the_gradebook"]
    results = run_on_class([ATTACKS[name] for name in names], "cpu", 2, quiet)
    assert broken(results) == {}
    assert f"{len(results)} of {len(results)} held" in table(results)


def test_the_page_is_what_the_battery_says():
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


def test_an_unknown_name_is_told(capsys):
    with pytest.raises(SystemExit) as stop:
        verb.main(["--only", "nope"])
    assert stop.value.code == 2
    assert "no attack or family 'nope'" in capsys.readouterr().err
