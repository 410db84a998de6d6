"""SPIN: where its loss leads in closed form, its pairs, its rounds, and the trap of winning by length."""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import milonga
from cases import FAST, TINY
from helpers import make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.objectives import Loss, make_objective
from milonga.objectives.losses import Denominators, Rows, TokenTerms, compute_loss
from milonga.patterns.preference_pairs import BEFORE
from milonga.resolve import Plan, resolve
from milonga.runfolder.files import JsonLines
from milonga.systems.spin.recipe import length_accuracy, shorten_answer
from milonga.types import Rollouts, TrainBatch

DATA, START = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)


# What the loss leads to, with three answers of one token.


def population_loss(loss: Loss, logits: Tensor, before: Tensor) -> Tensor:
    """Over all pairs of an answer of the data and one of the copy, each weighed by how often it comes."""
    pairs = list(itertools.product(range(3), range(3)))
    answers = torch.tensor([side for pair in pairs for side in pair])
    weights = torch.tensor([DATA[good] * float(before[own]) * len(pairs) for good, own in pairs for _ in range(2)])
    rows = Rows(torch.ones(18), weights, pairs=torch.arange(18).reshape(9, 2))
    logp, reference = logits.log_softmax(0)[answers], before.log()[answers]
    terms = TokenTerms(logp, torch.zeros(18), reference, torch.arange(18), rows, reference=reference)
    return compute_loss(loss, terms, Denominators(18, 18, 9))[0]


def best_response(beta: float, before: Tensor) -> tuple[Tensor, float]:
    loss, logits = make_objective("dpo", {"beta": beta}).loss, before.log().clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = population_loss(loss, logits, before)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[arg-type]
    return logits.detach().softmax(0), float(population_loss(loss, logits.detach(), before))


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(0.5, (0.767, 0.184, 0.049)), (1.0, DATA), (2.0, (0.339, 0.322, 0.339)), (5.0, (0.251, 0.314, 0.435))],
)
def test_a_round_leads_where_the_closed_form_says(beta: float, expected: tuple[float, ...]) -> None:
    """p' is p * (data / p)^(1 / beta): a small beta overshoots, a large one goes part of the way."""
    found, least = best_response(beta, torch.tensor(START))
    closed = torch.tensor(START) * (torch.tensor(DATA) / torch.tensor(START)) ** (1 / beta)
    assert found.tolist() == pytest.approx((closed / closed.sum()).tolist(), abs=2e-4)
    assert found.tolist() == pytest.approx(list(expected), abs=1e-3) and least == pytest.approx(0.5686, abs=1e-4)


def test_rounds_close_in_on_the_data() -> None:
    now, found = torch.tensor(START), []
    for _ in range(4):
        now, _ = best_response(2.0, now)
        found.append(sum(p * math.log(p / float(q)) for p, q in zip(DATA, now, strict=True)))
    assert found == pytest.approx([0.0675, 0.0165, 0.0041, 0.0010], abs=2e-4)


@pytest.mark.parametrize("beta", [0.1, 1.0, 5.0])
def test_at_the_start_of_a_round_the_loss_is_log_two_and_the_data_are_a_fixed_point(beta: float) -> None:
    start = torch.tensor(START)
    assert float(population_loss(make_objective("dpo", {"beta": beta}).loss, start.log(), start)) == pytest.approx(math.log(2))
    assert best_response(beta, torch.tensor(DATA))[0].tolist() == pytest.approx(list(DATA), abs=1e-4)


def test_log_ratios_are_summed_over_tokens_and_not_averaged() -> None:
    """Two winners with the same log-ratio at every token: the longer one's margin is larger."""
    margins = []
    for length in (2, 6):
        sizes = torch.tensor([length, 1])
        rows = torch.repeat_interleave(torch.arange(2), sizes)
        logp = torch.where(rows == 0, -0.5, -1.0)
        reference, of_rows = torch.full((length + 1,), -1.0), Rows(sizes, pairs=torch.tensor([(0, 1)]))
        terms = TokenTerms(logp, logp, logp, rows, of_rows, reference=reference)
        found = float(compute_loss(make_objective("dpo", {"beta": 1.0}).loss, terms, Denominators(length + 1, 2, 1))[0])
        margins.append(-math.log(math.expm1(found)))
    assert margins == pytest.approx([1.0, 3.0], rel=1e-4)


# Its pairs.


@cache
def engine() -> Any:
    made = make_engine(plan())
    made.snapshot("generator", BEFORE)
    return made


def plan(**settings: Any) -> Plan:
    return resolve([TINY, {"recipe": "spin", "batch": {"problems": 16, "rollouts": 2}}, settings])


def ctx(p: Plan, **more: Any) -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), 1, "generator", **more)


def sample_rollouts(p: Plan, **more: Any) -> tuple[TrainBatch, Rollouts, Context]:
    one = ctx(p, **more)
    own = p.recipe.rollout(one)
    (made,) = p.recipe.credit(one, own)
    return made, own, one


def test_the_data_win_and_the_copy_loses_whoever_is_right() -> None:
    made, own, one = sample_rollouts(plan())
    samples = {t.id: t for t in own}
    assert made.labels == [1.0, 0.0] * (len(made.rollouts) // 2)
    for winner, loser in zip(made.rollouts[::2], made.rollouts[1::2], strict=True):
        assert winner.problem.id == loser.problem.id and winner.correct == 1.0 and winner.text != loser.text
        assert loser.ids.tolist() == samples[loser.id].ids.tolist()
        start = loser.segments[-1].start
        assert loser.length == len(loser.ids) - start
        assert winner.ids[:start].tolist() == loser.ids[:start].tolist(), "one prompt for the data and for the copy"
        assert winner.ids[-1] == loser.ids[-1] == engine().policy("generator").codec.tokenizer.eos_token_id
    same = sum(t.correct == 1.0 for t in own)
    assert len(made.rollouts) // 2 == len(own) - same == len(one.preferences.kept) and made.notes["same"] == same / len(own)


def test_the_copy_and_the_reference_are_the_same_version() -> None:
    p = plan()
    assert p.recipe.objectives["generator"].loss.kl_from == BEFORE and p.recipe.schedule().cycle[0].enter[0].source == BEFORE


def test_truncated_answers_are_left_out() -> None:
    p = plan(sampling={"max_tokens": 4})
    one = ctx(p)
    own = p.recipe.rollout(one)
    assert {t.finish for t in own} == {"length"} and list(p.recipe.credit(one, own)) == []


def test_half_of_the_pairs_are_those_of_the_round_before() -> None:
    made, _, one = sample_rollouts(plan())
    first = len(made.rollouts) // 2
    p = plan(options={"replay": 0.5})
    later = Context(one.run, 2, "generator", round=1, preferences=one.preferences)
    (again,) = p.recipe.credit(later, p.recipe.rollout(later))
    new = int(again.notes["new_pairs"])
    assert again.notes["old_pairs"] == round(0.5 * new) > 0 and len(again.rollouts) == 2 * (new + round(0.5 * new))
    ids = {t.ids.tobytes() for t in made.rollouts}
    assert all(t.ids.tobytes() in ids for t in again.rollouts[2 * new :]) and len(one.preferences.select_round(0)) == first


def test_rounds_begin_at_log_two(tmp_path: Path) -> None:
    """The copy is taken anew at the start of each round, and the reference of all pairs is that copy."""
    settings = TINY | {"options": {"round_turns": 2}, "policies": {"generator": FAST}, "batch": {"problems": 8}}
    milonga.run("spin", turns=5, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1:]
    losses = [row["learn/generator/loss"] for row in rows]
    assert [losses[turn] == pytest.approx(math.log(2), abs=1e-5) for turn in range(5)] == [True, False, True, False, True]
    assert [row["credit/generator/old_pairs"] > 0 for row in rows] == [False, False, True, True, True]


# The trap.


def test_a_shortened_answer_keeps_its_end() -> None:
    short = shorten_answer(make_rollout(2, 11), 0.3)
    assert short.ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12] and short.length == 8 and len(short.text) == 8
    whole = make_rollout(2, 11)
    assert shorten_answer(whole, 0.0) is whole


def test_length_alone_tells_shortened_answers_from_the_data() -> None:
    plain, cut = (sample_rollouts(plan(options={"shorten": share}))[0].notes["length_alone"] for share in (0.0, 0.3))
    assert plain < 0.65 and cut > 0.95
    assert length_accuracy([]) is None and not np.isnan(plain)
