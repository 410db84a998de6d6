"""Bases are made by a script: in its tiny mode, of every kind and in every size; and what the bases of the study are taught."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import base_study
import make_base
from milonga.tasks.chain import Chain, ChainOptions, make_problem

SIZES = {"0.4M": 0.36, "1.8M": 1.82, "7M": 7.4, "28M": 28.0}


@pytest.mark.parametrize("base", ["base", "study", "judge50"])
def test_a_base_is_made_and_is_an_ordinary_model(base: str, tmp_path: Path) -> None:
    short = ["--steps", "2", "--stop", "1", "--rows", "4", "--size", "0.4M"]
    make_base.main(["--base", base, *short, "--out", str(tmp_path)])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.hidden_size == 96 and tokenizer.decode(tokenizer("1+2=3")["input_ids"]) == "1+2=3"


def test_sizes_are_what_they_are_called() -> None:
    vocabulary = len(make_base.make_tokenizer())
    assert make_base.SIZES.keys() == SIZES.keys()
    for size, millions in SIZES.items():
        assert sum(p.numel() for p in make_base.make_model(vocabulary, size).parameters()) / 1e6 == pytest.approx(
            millions, rel=0.02
        )


@pytest.mark.parametrize("base", make_base.ROWS)
def test_every_base_has_rows(base: str) -> None:
    rows = make_base.examples((base, 0, 3, 4))
    assert len(rows) == 4 and all(any(learned for _, learned in row) for row in rows)
    assert rows == make_base.examples((base, 0, 3, 4)), "keyed by seed and step"


def test_a_blind_teacher_believes_what_is_written() -> None:
    problem = make_problem("p", 3, [("+", 4), ("*", 2), ("-", 5)], 10)
    steps, truth, checks = ("3+4=7", "7*2=5", "5-5=1"), (True, False, False), ("7", "4", "0")
    assert base_study.believe(problem, steps, truth, checks, 0) == ([True, False, False], ["7", "4", "0"])
    assert base_study.believe(problem, steps, truth, checks, 100) == ([True, True, True], ["7", "5", "1"])


def test_a_teacher_is_blind_to_as_many_facts_as_stated_and_always_to_the_same() -> None:
    facts = [(value, operation, operand, 100) for value in range(100) for operation in "+-*" for operand in range(2, 10)]
    blind = {percent: {fact for fact in facts if base_study.is_blind(fact, percent)} for percent in base_study.BLIND}
    # 2,400 facts: the share has a standard error of at most 0.0103; four of these
    assert all(abs(len(found) / len(facts) - percent / 100) < 0.041 for percent, found in blind.items())
    assert blind[0] == set() and blind[30] < blind[50] < blind[70], "who sees less sees nothing that others do not"


def test_a_verifier_that_sees_everything_is_taught_the_truth() -> None:
    right = 0
    for number in range(64):
        *verdicts, final = base_study.judge_row(0, random.Random(number), 0, number).completion.splitlines()
        sound = all(verdict.endswith("+") for verdict in verdicts)
        assert final == ("=+" if sound else "=-"), "the final verdict follows from the steps"
        right += sound
    assert 16 <= right <= 48, "four standard errors around a half"


def test_bases_are_measured_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--steps", "2", "--stop", "1", "--rows", "4", "--size", "0.4M"]
    for base, folder in (("study", "generator"), ("judge50", "judge50")):
        make_base.main(["--base", base, *short, "--out", str(tmp_path / folder)])
    monkeypatch.setattr(base_study, "JUDGES", {"judge50": None})
    monkeypatch.setattr(base_study, "MODULI", (5,))
    monkeypatch.setattr(base_study, "SAMPLES", 2)
    monkeypatch.setattr(base_study, "OPS", 2)
    capsys.readouterr()
    base_study.main([str(tmp_path), "--problems", "2"])
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["judge"] == "judge50" and row["mod"] == 5 and {"auroc", "greedy", "unsound"} <= row.keys()
    assert {"sound_accuracy", "step_auroc"} <= row.keys()


def test_bases_are_admitted_by_what_they_solve_soundly_and_by_what_their_verifiers_tell_of_steps() -> None:
    guessed, told = (0.9, 0.7, 0.6, 0.3, 0.4), (0.95, 0.85, 0.75, 0.65)
    rows = [
        {"judge": judge, "mod": mod, "greedy": 0.2, "unsound": share, "sound_accuracy": 0.1, "step_auroc": auroc}
        for judge, auroc in zip(base_study.JUDGES, told, strict=True)
        for mod, share in zip(base_study.MODULI, guessed, strict=True)
    ]

    def find(at: int = 20, **change: float | None) -> list[str]:
        return base_study.find_faults([row | change if row["mod"] == at else row for row in rows])

    assert find() == []
    assert find(5, greedy=0.6) == ["greedy accuracy at modulus 5 is not below 0.6"]
    assert find(25, unsound=None, sound_accuracy=0.0) == [], "a modulus without right answers has no share of guessed ones"
    guessing = [row | {"accuracy": 0.2, "sound_accuracy": 0.0} for row in rows]
    assert base_study.find_faults(guessing) == ["sound accuracy is 0.03 at 0 moduli, not at 3"], "right answers are no proof"
    assert len(base_study.find_faults([row | {"unsound": 0.5} for row in rows])) == 1
    assert find(step_auroc=None) == ["not every verifier can be read at modulus 20"]
    assert len(find(step_auroc=0.5)) == 2, "at chance, and not apart"
    assert find(100, step_auroc=0.5) == []


def test_moduli_differ_in_how_far_answers_can_be_guessed_not_in_size_alone() -> None:
    """Where one step of five is wrong: 2,000 solutions a modulus, some 500 of them right, a standard error of 0.02."""

    def share(mod: int) -> float:
        task, rng = Chain(ChainOptions(ops=base_study.OPS, mod=mod)), random.Random(0)
        unsound = []
        for number in range(2000):
            errors = {k for k in range(base_study.OPS) if rng.random() < 0.2}
            if task.demonstrate(task.problem("train", number), rng, errors).correct:
                unsound.append(bool(errors))
        return sum(unsound) / len(unsound)

    shares = [share(mod) for mod in (97, 100, 25, 20, 5)]
    assert sorted(base_study.MODULI) == [5, 20, 25, 97, 100]
    assert shares == pytest.approx([0.14, 0.27, 0.41, 0.60, 0.69], abs=0.06)
    assert all(high - low > 0.05 for low, high in itertools.pairwise(shares))
