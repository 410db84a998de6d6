"""APRM: the game's rewards, its oracle and corruptions, optimistic gradients, and the traps of playing against a scorer."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from engine_helpers import constant, engine_of, model_folder, same_bits, sample_rollouts, train_batch, weights
from helpers import GRAMMARS, PROPERTY
from milonga.api import make_engine
from milonga.config import merge
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.objectives import make_objective
from milonga.objectives.losses import (
    Denominators,
    Rows,
    bernoulli_entropy,
    bernoulli_kl,
    compute_value_loss,
    extrapolate_gradient,
)
from milonga.patterns.slicing import build_step_prefix
from milonga.randomness import keyed_rng
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect, StepSolver
from milonga.roles.slices import split_into_slices
from milonga.systems.aprm.attacks import (
    attack_metrics,
    check_rewritten_step,
    family_metrics,
    grade_attacks,
    judge_last_steps,
    label_last_step,
    sample_gold_steps,
    sample_own_steps,
    slice_correct_steps,
)
from milonga.systems.aprm.credit import AttackReward, balanced_accuracy
from milonga.systems.aprm.roles import Corruptor
from milonga.tasks import make_task
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Solution
from test_resume import assert_same, die, finish, whole

# -- The toy game ----------------------------------------------------------------------------------


def distance(tau: float, ahead: bool, at_once: bool = True, rate: float = 0.2, steps: int = 400) -> float:
    """How far from (0, 0) play ends on f = xy + tau x^2 / 2 - tau y^2 / 2: x descends, y ascends, from (1, 1)."""
    x = y = 1.0
    last: tuple[float, float] | None = None
    for _ in range(steps):
        g = (y + tau * x, x - tau * y)
        move = [extrapolate_gradient(now, before) for now, before in zip(g, last or g, strict=True)] if ahead else list(g)
        last, x = g, x - rate * move[0]
        y += rate * (move[1] if at_once else x - tau * y)
    return float(np.hypot(x, y))


@pytest.mark.parametrize(
    ("tau", "ahead", "at_once", "expected"),
    [
        (0.0, False, True, 3607.0),  # plain simultaneous play spirals outwards
        (0.1, False, True, 1.53),
        (0.0, True, True, 2.9e-4),
        (0.1, True, True, 5.3e-8),
        (0.0, False, False, 1.28),  # alternating play hides it: a bounded orbit that never arrives
        (0.1, False, False, 4.2e-4),
    ],
)
def test_optimism_makes_the_toy_game_converge(tau: float, ahead: bool, at_once: bool, expected: float) -> None:
    assert distance(tau, ahead, at_once) == pytest.approx(expected, rel=0.05)


@PROPERTY
@given(gradient=st.floats(-1e6, 1e6))
def test_looking_ahead_from_a_constant_gradient_changes_nothing(gradient: float) -> None:
    assert extrapolate_gradient(gradient, gradient) == gradient


def test_optimism_takes_in_five_times_the_variance_of_independent_noise() -> None:
    noise = np.random.default_rng(0).normal(size=200_001)
    assert np.var(extrapolate_gradient(noise[1:], noise[:-1])) == pytest.approx(5.0, rel=0.02)


# -- Optimism in the learner -----------------------------------------------------------------------


def seen_by_the_optimizer(engine: Any, one: Any) -> list[torch.Tensor]:
    policy, found = engine.policy("p"), []
    step = policy.optimizer.step
    try:
        policy.optimizer.step = lambda: found.extend(p.grad.clone() for p in policy.parameters)
        engine.learn(one)
    finally:
        policy.optimizer.step = step
    return found


def test_the_optimizer_is_handed_twice_the_gradient_less_the_one_before(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    plain, ahead = engine_of(folder, grad_clip=1e9), engine_of(folder, grad_clip=1e9, optimism=True)
    rollouts = sample_rollouts(plain)
    train_batches = [train_batch(rollouts, values) for values in ([1.0, -1.0] * 4, [0.5, 0.5, -0.5, -0.5] * 2, [1.0, -1.0] * 4)]
    g = [seen_by_the_optimizer(plain, one) for one in train_batches]  # no step is taken: all at the same weights
    found = [seen_by_the_optimizer(ahead, one) for one in train_batches]
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(found[0], g[0], strict=True))
    for t in (1, 2):
        assert all(torch.allclose(f, 2 * a - b, atol=1e-6) for f, a, b in zip(found[t], g[t], g[t - 1], strict=True))


def test_gradients_are_clipped_after_they_were_combined(tmp_path: Path) -> None:
    ahead = engine_of(model_folder(tmp_path), grad_clip=1e-3, optimism=True)
    rollouts = sample_rollouts(ahead)
    for values in ([1.0, -1.0] * 4, [-1.0, 1.0] * 4):
        found = seen_by_the_optimizer(ahead, train_batch(rollouts, values))
        assert float(torch.cat([f.flatten() for f in found]).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_a_refused_step_does_not_change_what_is_looked_ahead_from(tmp_path: Path) -> None:
    ahead = engine_of(model_folder(tmp_path), optimism=True)
    rollouts = sample_rollouts(ahead)
    ahead.learn(train_batch(rollouts, [1.0, -1.0] * 4))
    before = [g.clone() for g in ahead.policy("p").gradients or ()]
    report = ahead.learn(replace(train_batch(rollouts, [1.0] * 8), advantages=constant(rollouts, [float("inf")] * 8)))
    assert report.skipped and same_bits(before, ahead.policy("p").gradients or ())


def test_the_last_gradient_is_saved_and_forgotten_with_the_optimizer(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    one, other = engine_of(folder, optimism=True), engine_of(folder, optimism=True)
    rollouts = sample_rollouts(one)
    one.learn(train_batch(rollouts, [1.0, -1.0] * 4))
    (tmp_path / "saved").mkdir()
    one.save(tmp_path / "saved")
    other.load(tmp_path / "saved")
    for engine in (one, other):
        engine.learn(train_batch(rollouts, [1.0, 1.0, -1.0, -1.0] * 2))
    assert same_bits(weights(one), weights(other))
    one.copy("p", "p", "ref")
    assert one.policy("p").gradients is None


# -- Regularised heads -----------------------------------------------------------------------------


@PROPERTY
@given(logit=st.floats(-30, 30), other=st.floats(-30, 30))
def test_entropy_and_divergence_of_a_head_are_those_of_a_coin(logit: float, other: float) -> None:
    v, u = torch.tensor([logit, other], dtype=torch.float64)
    p, q = torch.distributions.Bernoulli(logits=v), torch.distributions.Bernoulli(logits=u)
    assert float(bernoulli_entropy(v)) == pytest.approx(float(p.entropy()), abs=1e-8)  # softplus is linear beyond 20
    assert float(bernoulli_kl(v, u)) == pytest.approx(float(torch.distributions.kl_divergence(p, q)), abs=1e-7)


def test_a_regularised_head_by_hand() -> None:
    loss = make_objective("value_bce", {"entropy_coef": 0.5, "kl_coef": 2.0}).loss
    values, targets, rows = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0]), torch.tensor([0, 1])
    over = Denominators(2, 2)
    total, sums = compute_value_loss(loss, values, targets, rows, Rows(torch.tensor([1, 1])), over, torch.zeros(2))
    cross = (np.log(2) + np.log(1 + np.exp(2.0))) / 2
    p = 1 / (1 + np.exp(-2.0))
    entropy = [np.log(2), -p * np.log(p) - (1 - p) * np.log(1 - p)]
    divergence = [0.0, np.log(2) - entropy[1]]  # from a fair coin
    assert float(total) == pytest.approx(cross - 0.5 * np.mean(entropy) + 2.0 * np.mean(divergence), abs=1e-6)
    assert sums["kl"] == pytest.approx(divergence[1], abs=1e-6)


# -- Rewards ---------------------------------------------------------------------------------------


def test_the_rewards_of_the_four_cases_and_of_no_step() -> None:
    reward = AttackReward()
    ctx = {(right, said): reward(right, said) for right in (True, False) for said in (True, False)}
    assert ctx == {(False, True): 1.0, (False, False): 0.0, (True, True): -1.0, (True, False): -1.0}
    assert reward(None, False) == -1.0


def test_a_corruptor_that_corrupts_nothing_may_not_be_paid_as_one_that_was_caught() -> None:
    with pytest.raises(ValueError, match="rise"):
        AttackReward(1.0, 0.0, 0.0)


def test_balanced_accuracy_does_not_reward_saying_wrong_to_all() -> None:
    assert balanced_accuracy([False] * 10, [True] + [False] * 9) == 0.5
    assert balanced_accuracy([True, False, False, True], [True, True, False, False]) == 0.5
    assert balanced_accuracy([True], [True]) is None


# -- Families of corruptions -----------------------------------------------------------------------


@pytest.mark.parametrize("mod", [20, 100])
def test_every_family_makes_well_formed_steps_that_are_wrong(mod: int) -> None:
    task = make_task({"name": "chain", "ops": 4, "mod": mod})
    made = dict.fromkeys(task.families, 0)
    for problem in task.draw_problems("train", 0, 60):
        steps = task.demonstrate(problem, keyed_rng("x")).steps
        for family in task.families:
            for at in range(4):
                text = task.corrupt_step(problem, steps, at, family, keyed_rng(problem.id, family, at))
                if text is not None:
                    changed = [*steps[:at], text, *steps[at + 1 :]]
                    truth = task.grade(problem, None, changed).steps
                    assert task.is_step(text) and text != steps[at] and truth is not None and not truth[at]
                    made[family] += 1
    assert all(count > 60 for count in made.values())


def test_families_by_hand() -> None:
    task = make_task({"name": "chain", "ops": 3})
    problem = Problem("p", "10+5*3-4%100", "41", {"start": 10, "chain": [("+", 5), ("*", 3), ("-", 4)], "mod": 100})
    steps = ["10+5=15", "15*3=45", "45-4=41"]

    def corrupted(family: str, at: int) -> str | None:
        return task.corrupt_step(problem, steps, at, family, keyed_rng(0))

    assert corrupted("carry_drop", 0) == "10+5=5" and corrupted("carry_drop", 2) == "45-4=51"
    assert corrupted("sign_flip", 0) == "10+5=5" and corrupted("sign_flip", 1) == "15*3=55"
    assert corrupted("stale_operand", 1) == "10*3=30" and corrupted("stale_operand", 0) is None
    assert corrupted("digit_slip", 1) in {f"15*3=4{d}" for d in range(10) if d != 5}
    assert corrupted("operand_copy", 0) in {f"10+{d}={10 + d}" for d in (2, 3, 4, 6, 7, 8, 9)}
    assert corrupted("operator_swap", 0) in {"10-5=5", "10*5=50"}


def test_held_out_families_are_in_no_demonstration() -> None:
    task, held = make_task({"name": "chain", "ops": 4}), ("carry_drop", "stale_operand")
    role = Corruptor("terse", held)
    assert set(role.list_allowed_families(task)) == set(task.families) - set(held)
    for problem in task.draw_problems("train", 0, 300):
        piece, text = role.demonstrate(task, problem, keyed_rng("d", problem.id))
        assert piece is not None
        value = piece.parsed.value
        steps, at = (*value.before, *value.steps), len(value.before)
        carry, flip = (task.corrupt_step(problem, steps, at, family, keyed_rng(0)) for family in ("carry_drop", "sign_flip"))
        step = text.removesuffix("\n")
        assert step != carry or step == flip  # with an operand of 5 a flipped sign looks the same
        numbers = re.compile(r"[0-9]+")
        assert numbers.match(step)[0] == numbers.match(piece.text)[0]  # type: ignore[index]


def test_a_family_that_the_task_does_not_know_is_an_error() -> None:
    with pytest.raises(ConfigError, match="carry_drop"):
        Corruptor("terse", ("carry_drp",)).list_allowed_families(make_task({"name": "chain"}))


# -- The role --------------------------------------------------------------------------------------

CORRUPTORS = {dialect: Corruptor(dialect) for dialect in GRAMMARS}
STEPS = {
    "terse": st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=12).filter(
        lambda x: x[0] != "#"
    ),
    "tagged": st.text(st.characters(codec="utf-8", exclude_characters="<>"), min_size=1, max_size=12)
    .map(str.strip)
    .filter(bool),
}


@PROPERTY
@given(dialect=st.sampled_from(GRAMMARS), data=st.data())
def test_a_written_step_reads_back(dialect: Dialect, data: Any) -> None:
    step = data.draw(STEPS[dialect])
    parsed = CORRUPTORS[dialect].parse(CORRUPTORS[dialect].write(step), None)
    assert parsed.is_valid and parsed.format == 1.0 and parsed.value.steps == (step,)


@PROPERTY
@given(dialect=st.sampled_from(GRAMMARS), text=st.text(max_size=30) | st.text("#\n<step>/0+=", max_size=40))
def test_whatever_is_read_is_one_step_or_none(dialect: Dialect, text: str) -> None:
    parsed = CORRUPTORS[dialect].parse(text, None)
    assert parsed.is_valid == (len(parsed.value.steps) == 1) == (parsed.format == 1.0)
    assert not parsed.is_valid or all((step and "\n" not in step) or dialect == "tagged" for step in parsed.value.steps)


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_the_corruptor_sees_the_steps_so_far_and_no_further(dialect: Dialect) -> None:
    solver = StepSolver(dialect)
    text = solver.write(["FIRST", "SECOND", "THIRD"], "ANSWER")
    piece = split_into_slices(
        Rollout.from_text("s", "generator", Problem("p", "QUESTION", "x"), text, solver.parse(text)), 1, dialect
    )[1]
    seen = "".join(part.text for part in CORRUPTORS[dialect].prompt(piece.problem, piece))
    assert "QUESTION" in seen and "FIRST" in seen and "SECOND" in seen and "THIRD" not in seen and "ANSWER" not in seen


def test_in_prose_a_rewrite_is_about_as_long_as_its_step() -> None:
    """Qwen2.5-Coder-1.5B-Instruct went on to solve the whole problem in 9 of 24 rewrites."""
    corruptor = Corruptor("plain")
    step = "Therefore, each friend received 16 marbles."
    piece = Rollout.from_text("s", "generator", Problem("p", "How many?", "16"), step, StepSolver("plain").parse(step))
    assert corruptor.parse("Therefore, each friend received 18 marbles.", piece).is_valid
    assert corruptor.parse("x" * (200 + 2 * len(step)), piece).is_valid
    assert corruptor.parse("x" * (201 + 2 * len(step)), piece).invalid == "not one step"


# -- At the context ----------------------------------------------------------------------------------


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "aprm"}, merge(TINY, {"task": {"ops": 3}}), settings])


@cache
def engine() -> Any:
    return make_engine(plan())


def ctx(p: Plan, phase: str = "game", learner: str = "verifier") -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), 1, learner, phase)


def rewrite(piece: Rollout, step: str, number: int = 0) -> Rollout:
    made = Rollout.from_text(f"{piece.id}/{number}", "corruptor", piece.problem, step, Parsed(Solution((step,), (), None), 1.0))
    return replace(made, targets=(piece,))


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_the_scorer_sees_the_rewritten_step_and_never_the_original(dialect: Dialect) -> None:
    one = ctx(plan(dialect=dialect))
    for piece in sample_gold_steps(one, 12):
        value = piece.parsed.value
        work = build_step_prefix(one, piece, "1+2=REWRITTEN")
        assert value.steps[0] not in work.text or value.steps[0] in "".join(value.before)
        assert work.parsed.value.steps == (*value.before, "1+2=REWRITTEN") and work.finish == "length"
        assert build_step_prefix(one, piece).parsed.value.steps == (*value.before, *value.steps)
        # What the solver writes begins just so: a prefix is not another format.
        solver = one.run.roles["generator"]
        assert isinstance(solver, StepSolver)
        assert piece.target.text.startswith(build_step_prefix(one, piece).text)


def test_the_oracle_judges_a_step_where_it_stands() -> None:
    """Work that stops at the step would be wrong there for stopping: the steps after it stay as they were."""
    one = ctx(plan())
    for piece in sample_gold_steps(one, 12):
        value = piece.parsed.value
        assert check_rewritten_step(one, piece, value.steps[0]) is True
        wrong = one.run.task.corrupt_step(
            piece.problem, value.before + value.steps, len(value.before), "digit_slip", keyed_rng(0)
        )
        assert wrong is not None and check_rewritten_step(one, piece, wrong) is False


def test_by_answers_a_repeated_step_is_right_and_no_completion_saves_a_wrong_end() -> None:
    """The last step of a solution leads to its own answer: no completion from another last step arrives at the right one,
    unless the generator goes on from it as if nothing had happened."""
    one = ctx(plan(options={"oracle": "answers", "sft": 0}))
    pieces = [split_into_slices(piece.target, 1, "terse")[-1] for piece in sample_gold_steps(one, 8)]
    wrong = [f"{piece.text.split('=')[0]}=999" for piece in pieces]
    rewrites = Rollouts(rewrite(piece, text, k) for piece, bad in zip(pieces, wrong, strict=True)
                        for k, text in enumerate((piece.text, bad, "gibberish")))  # fmt: skip
    right = [attack.right for attack in grade_attacks(one, rewrites, completions=4)]
    assert right[::3] == [True] * 8 and right[2::3] == [None] * 8
    assert right[1::3].count(False) >= 7
    own = sample_own_steps(one, 8)
    assert len(own) and all(piece.target.correct == 1.0 for piece in own)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"sft": 1}, "options.sft: nobody"), ({"oracle": "steps"}, "options.oracle: task 'jsonl'"),
     ({"held_out": ["carry_drop"]}, "no family 'carry_drop'")],
)  # fmt: skip
def test_what_a_file_of_answers_cannot_have_is_said_before_anything_is_loaded(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(f'{{"question": "what is {n}?", "answer": "{n}"}}\n' for n in range(60)))
    settings = {"recipe": "aprm", "task": {"name": "jsonl", "path": str(path)}, "policies": {"generator": {"model": "a/b"}}}
    assert resolve([settings]).config.options["sft"] == 0
    with pytest.raises(ConfigError, match=re.escape(says)):
        resolve([settings, {"options": options}])


@pytest.mark.parametrize("at", [0, 1, 2])
def test_in_prose_a_prefix_is_the_solution_as_it_was_written(at: int) -> None:
    one = ctx(plan(dialect="plain"))
    text = "**Step 1:** We add.\n\n1. 2 + 3 = 5\n2. So \\boxed{5}."
    solver = one.run.roles["generator"]
    whole = Rollout.from_text("s", "generator", Problem("p", "2+3?", "5"), text, solver.parse(text, None))
    piece = split_into_slices(whole, 1, "plain")[at]
    assert text.startswith(build_step_prefix(one, piece).text)
    work = build_step_prefix(one, piece, "2 + 3 = REWRITTEN")
    assert len(work.solution.steps) == at + 1 and work.solution.steps[-1] == "2 + 3 = REWRITTEN"
    assert work.text.startswith(text[: whole.solution.ends[at - 1]].rstrip() if at else "")


def test_what_is_no_step_is_shown_to_nobody_and_repeating_is_not_corrupting() -> None:
    one = ctx(plan())
    piece = sample_gold_steps(one, 1)[0]
    left = piece.text.split("=")[0]
    texts = ["gibberish", piece.text, f"{left}=0{piece.text.split('=')[1]}", f"{left}=999"]
    found = grade_attacks(one, Rollouts(rewrite(piece, text, k) for k, text in enumerate(texts)))
    assert [attack.right for attack in found] == [None, True, True, False]
    assert found[0].shown is None and all(attack.shown is not None for attack in found[1:])
    # A head at its start says one half to everything, which is yes.
    assert [attack.accepted for attack in found] == [False, True, True, True]
    assert attack_metrics(found) == {"fool_rate": 1.0, "invalid_rate": 0.75, "malformed_rate": 0.25}
    rewards = [AttackReward()(attack.right, attack.accepted) for attack in found]
    assert rewards == [-1.0, -1.0, -1.0, 1.0]


def test_the_scorer_learns_both_classes_alike_and_only_at_the_step_in_question() -> None:
    p = plan(batch={"problems": 8, "rollouts": 4})
    one = ctx(p)
    rollouts = replace_corruptor(p, one)
    (train_batch_,) = [x for x in p.recipe.credit(one, rollouts) if x.policy == "verifier"]
    assert train_batch_.targets is not None and train_batch_.weights is not None
    labels = []
    for row, target in zip(train_batch_.rollouts, train_batch_.targets, strict=True):
        asked = np.flatnonzero(~np.isnan(target))
        assert asked.tolist() == [row.steps[-1][1] - 1]
        labels.append(target[asked[0]])
    heavy = np.array(train_batch_.weights)
    assert heavy[np.array(labels) == 1].sum() == pytest.approx(heavy[np.array(labels) == 0].sum())
    assert 0.3 < np.mean(labels) < 0.7  # as many untouched steps as rewritten ones, not weights alone
    assert all("gibberish" not in row.text for row in train_batch_.rollouts)


def replace_corruptor(p: Plan, one: Context) -> Rollouts:
    """A play whose corruptor writes random corruptions, and now and then no step."""
    solutions = one.ask("generator", one.problems())
    pieces = [steps[-1] for steps in slice_correct_steps(one, solutions) if steps]
    role = one.run.roles["corruptor"]
    assert isinstance(role, Corruptor)
    texts = [[role.corrupt_step(p.task, piece, keyed_rng(piece.id, k)) for k in range(3)] + ["gibberish"] for piece in pieces]
    given = one.write("corruptor", [piece for piece in pieces for _ in range(4)], [t for some in texts for t in some])
    return Rollouts([*solutions, *(replace(t, origin="sampled") for t in given)])


def test_rewrites_are_compared_with_those_of_the_same_step() -> None:
    p = plan(batch={"problems": 8, "rollouts": 4})
    one = ctx(p)
    (first, _) = p.recipe.credit(one, replace_corruptor(p, one))
    assert first.policy == "corruptor" and first.advantages is not None
    by_step: dict[str, list[float]] = {}
    for rollout, advantage in zip(first.rollouts, first.advantages, strict=True):
        by_step.setdefault(rollout.target.id, []).append(float(advantage[rollout.mask][0]))
    # Three wrong steps, accepted by a head that knows nothing, and one that is no step.
    assert all(sum(values) == pytest.approx(0.0) and values[3] < 0 < min(values[:3]) for values in by_step.values())


def test_a_rewrite_that_nobody_could_grade_earns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not paid as one that corrupted nothing: it is in no train batch, and no rate counts it."""
    p = plan(batch={"problems": 8, "rollouts": 4})
    one = ctx(p)
    rollouts = replace_corruptor(p, one)
    problems = sorted({t.problem.id for t in rollouts.of("corruptor")})
    lost, grade = set(problems[:2]), p.task.grade
    monkeypatch.setattr(p.task, "grade", lambda problem, *rest: Grade(None) if problem.id in lost else grade(problem, *rest))
    found = grade_attacks(one, rollouts.of("corruptor"))
    unknown = {attack.rewrite.id for attack in found if not attack.is_known}
    assert len(unknown) == 3 * len(lost), "that the fourth is no step is known all the same"
    assert attack_metrics(found)["malformed_rate"] == pytest.approx(len(problems) / (len(found) - len(unknown)))
    first, second = p.recipe.credit(one, rollouts)
    assert {t.id for t in first.rollouts} == {attack.rewrite.id for attack in found} - unknown
    assert one.dropped["corruptor: nobody could grade its step"] == len(unknown)
    assert not {t.target.id for t in second.rollouts} & {a.shown.id for a in found if not a.is_known and a.shown is not None}
    lost |= set(problems)
    only = [t for t in rollouts if t.agent == "generator" or not t.text.startswith("gibberish")]
    assert "corruptor" not in {batch.policy for batch in p.recipe.credit(one, Rollouts(only))}


def test_old_rewrites_come_back_as_a_quarter() -> None:
    p = plan(batch={"problems": 8, "rollouts": 4})
    p.recipe.state = {}
    one = ctx(p)
    rollouts = replace_corruptor(p, one)
    found = grade_attacks(one, rollouts.of("corruptor"))
    fresh = len({a.shown.id for a in found if a.shown is not None})
    list(p.recipe.credit(one, rollouts))
    assert len(p.recipe.state["labelled"]) == fresh
    later = list(p.recipe.credit(one, rollouts))[-1]
    again = [row for row in later.rollouts if row.target.id.startswith("again/")]
    assert len(again) == round(len(found) / 3)
    # A corruptor that writes only gibberish stops nobody from learning: what it wrote before is still there.
    silent = rollouts.select(lambda t: t.agent != "corruptor" or t.text.startswith("gibberish"))
    twice = Rollouts([*silent, *(replace(t, id=f"{t.id}/again") for t in silent if t.agent == "corruptor")])
    only = [row.target.id for row in list(p.recipe.credit(one, twice))[-1].rollouts]
    assert any(id.startswith("again/") for id in only)
    p.recipe.state = {}


def test_random_attacks_teach_the_scorer_alone_and_warming_up_has_nothing_to_stay_near() -> None:
    p = plan(options={"attack": "random"})
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    rewrites = rollouts.of("corruptor")
    assert len(rewrites) and all(attack.right is False for attack in grade_attacks(one, rewrites))
    (alone,) = p.recipe.credit(one, rollouts)
    assert alone.policy == "verifier" and alone.loss.kl_coef == 0.05
    (warm,) = plan().recipe.credit(ctx(plan(), "warm up"), rollouts)
    assert warm.loss.kl_coef == 0.0 and warm.loss.entropy_coef == 0.01


def test_families_are_measured_apart() -> None:
    one = ctx(plan())
    targets = sample_gold_steps(one, 20)
    found = family_metrics(one, targets, ("carry_drop", "stale_operand"))
    assert found["held_out_accuracy"] == found["allowed_accuracy"] == 0.5  # a head that says yes to everything
    assert found["accepts_untouched"] == 1.0
    assert set(one.run.task.families) == {n.removeprefix("accuracy_on_") for n in found if n.startswith("accuracy_on_")}
    said = judge_last_steps(one, [build_step_prefix(one, targets[0])])
    assert said == {build_step_prefix(one, targets[0]).id: True}
    assert label_last_step(build_step_prefix(one, targets[0]), False).steps[-1] == 0.0


# -- Resume ----------------------------------------------------------------------------------------

RUN: dict[str, Any] = merge(
    TINY,
    {
        "recipe": "aprm",
        "turns": 4,
        "options": {"sft": 1, "sft_steps": 8, "warmup": 1, "measured": 4},
        "eval": {"every": 2},
        "keep": {"checkpoint_every": 1, "rollouts_every": 2},
    },
)


def test_a_game_killed_at_several_moments_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Replay, snapshots and the last gradients are all part of where a run stands."""
    expected, _ = whole(tmp_path / "whole", RUN)
    folder = tmp_path / "run"
    for moment, count in (("learning", 2), ("a file of a checkpoint", 2), ("learning", 3), ("publishing", 2), ("a row", 1)):
        die(folder, RUN, moment, count)
    finish(folder, RUN)
    assert_same(folder, expected)
