"""RL Tango in one file: a generator and its verifier learn in turns. Read `grpo_loop.py` first, then this from top to bottom.

    python examples/tango_loop.py --turns 20 --seed 0
    python examples/tango_loop.py --model path/to/model --task jsonl --path problems.jsonl

The generator solves problems step by step. The verifier reads a solution and says of each step, and then of the whole, whether
it is right. Nobody knows which steps are right: the verifier learns only from whether its final verdict agrees with the grade
of the answer, and its step verdicts become a reward for the steps of the generator. The same algorithm with checkpoints,
evaluations and a report is `milonga run tango`.

RL Tango: Zha et al., arXiv 2505.15034.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from milonga.config import PolicySection, is_embedded
from milonga.context import find_step_spans
from milonga.credit import decay, mix_advantages, normalise
from milonga.credit.balance import ClassBalance
from milonga.credit.tokens import step_rewards_to_tokens
from milonga.engine import Completion, Decoding, Engine, Request
from milonga.engine.local import LocalEngine
from milonga.objectives import make_objective
from milonga.randomness import key64
from milonga.roles import Dialect, Role, StepSolver, StepVerifier
from milonga.tasks import make_task
from milonga.types import Floats, Problem, Rollout, Rollouts, Segment, TrainBatch

ALPHA, ALPHA_END = 0.3, 1e-3
"""Weight of the step advantages at the start and at the end: first the verifier helps, at last only answers count."""
FORMAT = 0.8
"""Weight of a well-formed verification in the verifier's reward."""


def train(args: argparse.Namespace) -> tuple[Engine, list[dict[str, Any]]]:
    """Train for some turns; return both trained policies, and for each turn who learned and how good both were before it."""
    task = make_task({"name": args.task} | ({"path": args.path} if args.path else {}))
    dialect: Dialect = "terse" if is_embedded(args.model) else "plain"
    roles: dict[str, Role] = {"generator": StepSolver(dialect), "verifier": StepVerifier(dialect)}
    # Two sets of weights, each with its own optimizer; both start from the same model.
    engine = LocalEngine({agent: PolicySection(model=args.model, lr=args.lr) for agent in roles})
    loss, balance, rows = make_objective("grpo").loss, ClassBalance(), []

    for turn in range(1, args.turns + 1):
        # 1. Who learns: at first the verifier alone, so that its verdicts are worth something; then, again and again, three
        #    turns of the generator and one of the verifier.
        learner = "verifier" if turn <= args.warmup or (turn - args.warmup) % 4 == 0 else "generator"
        # 2. Rollouts. The generator's group is many solutions of one problem, each verified once; the verifier's group is many
        #    verifications of one solution.
        size = {"generator": 1, "verifier": 1} | {learner: args.rollouts}
        problems = task.draw_problems("train", (turn - 1) * args.problems, args.problems)
        seed = (args.seed, turn)
        solutions = sample(engine, "generator", roles, problems, size["generator"], task.max_tokens, seed)
        answers = [(s.problem, s.solution.answer, s.solution.steps) for s in solutions]
        for solution, grade in zip(solutions, task.grade_all(answers), strict=True):
            solution.grade = grade
        checks = sample(engine, "verifier", roles, solutions, size["verifier"], 2 * task.max_tokens, seed)
        # 3. Rewards and advantages of whoever learns.
        if learner == "generator":
            batch, advantages = solutions, credit_generator(solutions, checks, decay(ALPHA, ALPHA_END, turn / args.turns))
        else:
            batch, advantages = checks, credit_verifier(checks, balance)
        # 4. The update: an optimizer step of one policy. The other stays as it is.
        engine.learn(TrainBatch(learner, loss, batch, advantages=advantages))
        engine.publish(learner)

        agrees = [check.verification.final == check.target.correct for check in checks]
        rows.append({"learner": learner, "accuracy": np.nanmean(solutions.correct), "agreement": np.mean(agrees)})
        print("turn {:3}  {learner:9}  accuracy {accuracy:.3f}  agreement {agreement:.3f}".format(turn, **rows[-1]), flush=True)
    return engine, rows


def credit_generator(solutions: Rollouts, checks: Rollouts, alpha: float) -> list[Floats]:
    """Return the token advantages of solutions: (1 - alpha) x those of the answers + alpha x those of the steps."""
    # Answers, as in GRPO: one advantage for all tokens of a solution.
    answers = normalise(solutions.correct, groups=solutions.problem_ids)
    outcome = [advantage * solution.mask for advantage, solution in zip(answers, solutions, strict=True)]
    # Steps: +1 for each that the verifier calls right, -1 for each that it calls wrong. A verification that does not match
    # the steps of its solution says nothing.
    process = [np.zeros(len(solution.ids)) for solution in solutions]
    verdicts = [check.verification.steps or () for check in checks]
    for problem in dict.fromkeys(solutions.problem_ids):
        rows = [n for n, s in enumerate(solutions) if s.problem.id == problem and 0 < len(verdicts[n]) == len(s.steps)]
        signs = [1.0 if right else -1.0 for n in rows for right in verdicts[n]]
        # Normalised over all steps of all solutions of the problem; a single step would have nothing to be compared with.
        rewards = normalise(signs, groups=[problem] * len(signs)) if len(signs) > 1 else np.zeros(len(signs))
        for n, own in zip(rows, np.split(rewards, np.cumsum([len(verdicts[n]) for n in rows])[:-1]), strict=True):
            # Divided by the number of steps, so that nothing is gained by length. A token is credited with the rewards of all
            # steps that end at or after it: those that it can still influence.
            process[n] = step_rewards_to_tokens(own / len(own), solutions[n])
    return mix_advantages(outcome, process, alpha)


def credit_verifier(checks: Rollouts, balance: ClassBalance) -> list[Floats]:
    """Return the token advantages of verifications: 1 for a final verdict that agrees with the grade, and a part for the form,
    normalised within the verifications of one solution."""
    labels = np.array([check.target.correct for check in checks])
    said = [check.verification.final for check in checks]
    rewards = [
        0.0 if verdict is None else float(verdict == label) + FORMAT * check.parsed.format
        for verdict, label, check in zip(said, labels, checks, strict=True)
    ]
    advantages = normalise(np.where(np.isnan(labels), np.nan, rewards), groups=checks.target_ids)
    # Right and wrong solutions count alike: else the verifier of a weak generator would learn to call everything wrong.
    balance.update(checks.targets.correct)
    weights = balance.weights(labels)
    return [a * w * check.mask for a, w, check in zip(advantages, weights, checks, strict=True)]


def sample(
    engine: Engine,
    agent: str,
    roles: dict[str, Role],
    targets: Sequence[Problem] | Rollouts,
    n: int,
    limit: int,
    seed: tuple[int, int],
) -> Rollouts:
    """Sample `n` completions of an agent for each target: a problem to solve, or a solution to judge. They are adjacent."""
    pairs = [(t, None) if isinstance(t, Problem) else (t.problem, t) for t in targets]
    asked = [(problem, target, f"{agent}/{(target or problem).id}/{k}") for problem, target in pairs for k in range(n)]
    prompts = engine.encode_all(agent, [roles[agent].prompt(problem, target) for problem, target, _ in asked])
    requests = [Request(prompt, key64(*seed, name)) for prompt, (_, _, name) in zip(prompts, asked, strict=True)]
    completions = engine.sample(agent, requests, Decoding(limit, stop=roles[agent].stop))
    version = engine.version(agent)
    return Rollouts(
        make_rollout(name, agent, roles[agent], version, problem, target, prompt, completion)
        for (problem, target, name), prompt, completion in zip(asked, prompts, completions, strict=True)
    )


def make_rollout(
    id: str,
    agent: str,
    role: Role,
    version: int,
    problem: Problem,
    target: Rollout | None,
    prompt: np.ndarray,
    done: Completion,
) -> Rollout:
    """Make a rollout as in `grpo_loop.py`; besides, it knows at which tokens its steps end, and which solution it judges."""
    start, parsed = len(prompt), role.parse(done.text, target)
    segments = (Segment("prompt", 0, start), Segment(agent, start, start + len(done.ids), agent, version, trained=True))
    ids, logprobs = np.concatenate([prompt, done.ids]), np.concatenate([np.zeros(start), done.logprobs])
    chars = np.concatenate([np.zeros(start, dtype=np.int64), done.ends])
    steps, targets = find_step_spans(parsed, chars, start), () if target is None else (target,)
    return Rollout(id, agent, problem, ids, segments, logprobs, done.text, parsed, steps, targets, finish=done.finish)


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="optimizer steps of both together")
    parser.add_argument("--warmup", type=int, default=3, help="turns of the verifier alone at the start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=32, help="problems in a turn")
    parser.add_argument("--rollouts", type=int, default=8, help="size of a group")
    parser.add_argument("--model", default="embedded", help="the model in the package, a folder, or a name on the hub")
    parser.add_argument("--lr", type=float, help="learning rate; by default 1e-4 for the embedded model, 1e-6 for others")
    parser.add_argument("--task", default="chain", help="the name of a task: `milonga list tasks`")
    parser.add_argument("--path", help="the file with the problems, for the task jsonl: question and answer on each line")
    return parser.parse_args(given)


if __name__ == "__main__":
    train(parse_arguments())
