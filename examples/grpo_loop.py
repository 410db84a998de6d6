"""GRPO in one file: a language model learns from whether its answers are right. Read it from top to bottom.

    python examples/grpo_loop.py --turns 20 --seed 0
    python examples/grpo_loop.py --model path/to/model --task jsonl --path problems.jsonl

One turn: draw problems, sample a group of solutions for each, reward the right ones, compare each solution with the others of
its group (that is the advantage), and take one optimizer step. The same algorithm with checkpoints, evaluations, other losses
and a report is `milonga run grpo`.

GRPO: Shao et al., arXiv 2402.03300.
"""

from __future__ import annotations

import argparse

import numpy as np

from milonga.config import PolicySection, is_embedded
from milonga.credit import normalise
from milonga.engine import Completion, Decoding, Engine, Request
from milonga.engine.local import LocalEngine
from milonga.objectives import make_objective
from milonga.randomness import key64
from milonga.roles import StepSolver
from milonga.tasks import Task, make_task
from milonga.types import Floats, Problem, Rollout, Rollouts, Segment, TrainBatch

POLICY = "generator"
"""The name of the weights that learn. An engine may hold several sets of weights, each under its name."""


def train(args: argparse.Namespace) -> tuple[Engine, list[float]]:
    """Train for some turns; return the trained policy, and the accuracy of each turn's samples."""
    # The task draws problems and grades answers. It knows no model.
    task = make_task({"name": args.task} | ({"path": args.path} if args.path else {}))
    # The role writes the prompt and parses the completion. The embedded model was taught a short notation ("terse"); other
    # models write prose, with their answer in a box.
    solver = StepSolver("terse" if is_embedded(args.model) else "plain")
    # The engine holds the weights and their optimizer (AdamW): it samples, scores and learns.
    engine = LocalEngine({POLICY: PolicySection(model=args.model, lr=args.lr)})
    # The clipped loss of PPO, averaged over the tokens of each rollout and then over the rollouts.
    loss = make_objective("grpo").loss

    accuracies = []
    for turn in range(1, args.turns + 1):
        # 1. Problems. The chain task never runs out of new ones, so that accuracy is always that on unseen problems.
        problems = task.draw_problems("train", (turn - 1) * args.problems, args.problems)
        # 2. Rollouts: a group of solutions for each problem, sampled from the current policy.
        solutions = sample_solutions(engine, task, solver, problems, args, turn)
        # 3. Rewards: 1 if the answer is right, 0 if not; NaN if the grader could not tell.
        rewards = solutions.correct
        # 4. Advantages: (reward - mean of the group) / standard deviation of the group. The mean is the baseline: no value
        #    network is needed. A group that is all right or all wrong teaches nothing: its advantages are zero.
        advantages = normalise(rewards, groups=solutions.problem_ids)
        # 5. The update. Every sampled token of a solution gets the advantage of the whole solution; the prompt gets none.
        tokens = [advantage * solution.mask for advantage, solution in zip(advantages, solutions, strict=True)]
        report = engine.learn(TrainBatch(POLICY, loss, solutions, advantages=tokens))
        # 6. From now on the samples come from the new weights.
        engine.publish(POLICY)

        accuracies.append(float(np.nanmean(rewards)))
        # The loss itself says nothing: advantages of a group sum to zero. Its gradient does, and how random the samples are.
        print(
            f"turn {turn:3}  accuracy {accuracies[-1]:.3f}  gradient {report.grad_norm:.3f}  entropy {report.entropy or 0:.3f}",
            flush=True,
        )
    return engine, accuracies


def sample_solutions(
    engine: Engine, task: Task, solver: StepSolver, problems: list[Problem], args: argparse.Namespace, turn: int
) -> Rollouts:
    """Sample a group of solutions for each problem, and grade them. Those of one problem are adjacent."""
    group = [(problem, n) for problem in problems for n in range(args.rollouts)]
    prompts = engine.encode_all(POLICY, [solver.prompt(problem) for problem, _ in group])
    # Each request has its own random key, made of what it is for: results do not depend on the batch or on what came before.
    keys = [key64(args.seed, turn, problem.id, n) for problem, n in group]
    requests = [Request(prompt, key) for prompt, key in zip(prompts, keys, strict=True)]
    completions = engine.sample(POLICY, requests, Decoding(task.max_tokens, stop=solver.stop))
    version = engine.version(POLICY)
    solutions = Rollouts(
        make_rollout(f"{turn}/{problem.id}/{n}", problem, prompt, completion, solver, version)
        for (problem, n), prompt, completion in zip(group, prompts, completions, strict=True)
    )
    answers = [(s.problem, s.solution.answer, s.solution.steps) for s in solutions]
    for solution, grade in zip(solutions, task.grade_all(answers), strict=True):
        solution.grade = grade
    return solutions


def make_rollout(
    id: str, problem: Problem, prompt: np.ndarray, completion: Completion, solver: StepSolver, version: int
) -> Rollout:
    """Make a rollout: the ids of the prompt, then those that were sampled. Text is never encoded again: ids could differ."""
    start, end = len(prompt), len(prompt) + len(completion.ids)
    # Log-probabilities at sampling time: the denominator of PPO's importance ratio.
    logprobs: Floats = np.concatenate([np.zeros(start), completion.logprobs])
    # Who wrote which ids. Only what the policy sampled itself is trained.
    segments = (Segment("prompt", 0, start), Segment("generator", start, end, POLICY, version, trained=True))
    ids = np.concatenate([prompt, completion.ids])
    parsed = solver.parse(completion.text)
    return Rollout(id, "generator", problem, ids, segments, logprobs, completion.text, parsed, finish=completion.finish)


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=32, help="problems in a turn")
    parser.add_argument("--rollouts", type=int, default=8, help="solutions of each problem: the group")
    parser.add_argument("--model", default="embedded", help="the model in the package, a folder, or a name on the hub")
    parser.add_argument("--lr", type=float, help="learning rate; by default 1e-4 for the embedded model, 1e-6 for others")
    parser.add_argument("--task", default="chain", help="the name of a task: `milonga list tasks`")
    parser.add_argument("--path", help="the file with the problems, for the task jsonl: question and answer on each line")
    return parser.parse_args(given)


if __name__ == "__main__":
    train(parse_arguments())
