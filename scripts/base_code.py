"""What the embedded base `code` is taught, and how well it has learned it.

Every role of the task `code` and of the recipes around programs, by a noisy teacher, on functions of one to three words of the
train split. The right answer is the mode of what it shows, and sampling is poor.

    python scripts/base_code.py --device cpu
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass

from milonga.randomness import keyed_rng
from milonga.roles import StepSolver, StepVerifier
from milonga.roles.demonstrate import Example, make_solver_example, make_verifier_example
from milonga.sandbox.values import InvalidValue, parse_literal, to_canonical
from milonga.systems.absolute_zero.roles import Abducer, Deducer, Inducer, InputProposer, ProgramProposer, Question
from milonga.systems.cure.roles import Tester, parse_arguments
from milonga.tasks.code import Code, CodeOptions, restore_row
from milonga.tasks.code_words import call_program, draw_arguments, infer_signature, render_arguments, render_value
from milonga.types import Problem, Prompt, Split

SLIP, FLIP, WRONG, LAZY = 0.2, 0.15, 0.3, 0.5
"""How often a step of the coder is wrong, a verdict turned round, a result of the others wrong, a test trivial."""
TASK, SMALL = (Code(CodeOptions(min_level=1, level=level, seed=1)) for level in (3, 2))
"""What is to be guessed from its values alone is small."""
SOLVER, VERIFIER, TESTER = StepSolver("terse"), StepVerifier("terse"), Tester("terse", WRONG, LAZY)
DEDUCER, ABDUCER, INDUCER = Deducer("terse"), Abducer("terse"), Inducer("terse")
PROPOSER, PROBER, QUESTION = ProgramProposer("terse"), InputProposer("terse"), Question(terse=True)


@dataclass(frozen=True)
class Shown:
    """What a teacher shows, and how to tell whether another text would have been right."""

    prompt: Prompt
    completion: str
    right: Callable[[str], bool]


def coder(split: Split, index: int, rng: random.Random) -> Shown:
    problem = TASK.problem(split, index)
    example = make_solver_example(TASK, problem, SOLVER, SLIP, rng)
    return Shown(example.prompt, example.completion, lambda text: graded(TASK, problem, text))


def judge(split: Split, index: int, rng: random.Random) -> Shown:
    """Right is a final verdict that agrees with the hidden tests."""
    problem = TASK.problem(split, index)
    example = make_verifier_example(TASK, problem, (SOLVER, VERIFIER), FLIP, rng)
    solution = "".join(part.text for part in example.prompt).split("\n", 1)[1].removesuffix("\n!")
    correct = graded(TASK, problem, solution)
    return Shown(example.prompt, example.completion, lambda text: text.endswith("=+" if correct else "=-"))


def tester(split: Split, index: int, rng: random.Random) -> Shown:
    """Half of the time a public example is told. Right is a test that the function itself passes."""
    problem = TASK.problem(split, index)
    _, text = TESTER.demonstrate(TASK, problem, rng)
    told = Problem("", problem.text + f"\n{problem.data['public']}" * (rng.random() < 0.5), "")
    return Shown(TESTER.prompt(told), text, lambda text: valid_test(problem, text))


def deducer(split: Split, index: int, rng: random.Random) -> Shown:
    problem, arguments, values = traced(TASK, split, index, rng)
    text = SOLVER.write(values, values[-1])
    if rng.random() < WRONG:
        wrong = TESTER.demonstrate(TASK, problem, rng)[1].split("#")[1]
        text = SOLVER.write([*values[:-1], wrong], wrong)
    prompt = DEDUCER.prompt(Problem("", QUESTION.render_deduction(problem.answer, render_arguments(arguments)), ""))
    return Shown(prompt, text, lambda text: literally(answer_of(text), values[-1]))


def abducer(split: Split, index: int, rng: random.Random) -> Shown:
    """The teacher guesses an input and works it out; a wrong one gives something else."""
    problem, arguments, values = traced(TASK, split, index, rng)
    prompt = ABDUCER.prompt(Problem("", QUESTION.render_abduction(problem.answer, values[-1]), ""))
    output = values[-1]
    if rng.random() < WRONG:
        _, arguments, values = traced(TASK, split, index, rng)
    text = SOLVER.write([render_arguments(arguments), *values], render_arguments(arguments))
    return Shown(prompt, text, lambda text: gives(problem.answer, answer_of(text), output))


def inducer(split: Split, index: int, rng: random.Random) -> Shown:
    problem = SMALL.problem(split, index)
    pairs = [
        (render_arguments(call), render_value(out))
        for call, out in zip(problem.data["inputs"], problem.data["outputs"], strict=True)
    ]
    example = make_solver_example(SMALL, problem, SOLVER, SLIP, rng)
    prompt = INDUCER.prompt(Problem("", QUESTION.render_induction(pairs[:4]), ""))
    return Shown(prompt, example.completion, lambda text: graded(SMALL, problem, text))


def proposer(split: Split, index: int, rng: random.Random) -> Shown:
    """Up to three earlier programs, and another. Right is one that runs on its input and is none of them."""
    drawn = [traced(TASK, split, 8 * index + k, rng) for k in range(rng.randint(2, 4))]
    texts = [(problem.answer, render_arguments(arguments)) for problem, arguments, _ in drawn]
    program, given = texts.pop()
    if rng.random() < WRONG / 2:
        at = rng.randrange(len(program))
        program = program[:at] + program[at + 1 :]
    prompt = PROPOSER.prompt(Problem("", QUESTION.render_references(texts), ""))
    return Shown(prompt, PROPOSER.write(program, given), lambda text: runs(text, [old for old, _ in texts]))


def prober(split: Split, index: int, rng: random.Random) -> Shown:
    """Right are six inputs on all of which the program runs."""
    problem = TASK.problem(split, index)
    calls = [render_arguments(draw_arguments(problem.data["signature"], rng)) for _ in range(PROBER.count)]
    prompt = PROBER.prompt(Problem("", problem.answer, ""))
    return Shown(prompt, PROBER.write(calls), lambda text: probes(problem.answer, text))


ROLES: dict[str, tuple[Callable[[Split, int, random.Random], Shown], float]] = {
    # teacher, share of the data
    "coder": (coder, 0.28),
    "judge": (judge, 0.18),
    "tester": (tester, 0.22),
    "deducer": (deducer, 0.11),
    "abducer": (abducer, 0.06),
    "inducer": (inducer, 0.07),
    "proposer": (proposer, 0.05),
    "prober": (prober, 0.03),
}


def row(rng: random.Random, step: int, number: int) -> Example:
    """One example, of a role that is drawn by its share."""
    teachers = [teacher for teacher, _ in ROLES.values()]
    found = rng.choices(teachers, [share for _, share in ROLES.values()])[0]("train", number, rng)
    return Example(found.prompt, found.completion)


# Whether a text is right.


def traced(task: Code, split: Split, index: int, rng: random.Random) -> tuple[Problem, tuple[object, ...], list[str]]:
    """A function, arguments that it takes, and what comes out after each word."""
    problem = task.problem(split, index)
    while True:
        arguments = draw_arguments(problem.data["signature"], rng)
        values = restore_row(problem).evaluate_prefixes(arguments)
        if values is not None:
            return problem, arguments, [render_value(value) for value in values]


def answer_of(text: str) -> str:
    return SOLVER.parse(text).value.answer or ""


def graded(task: Code, problem: Problem, text: str) -> bool:
    return task.grade(problem, answer_of(text), ()).correct is True


def valid_test(problem: Problem, text: str) -> bool:
    test = TESTER.parse(text).value
    return (
        test.arguments is not None and call_program(problem.answer, problem.data["signature"], test.arguments) == test.expected
    )


def literally(text: str, wanted: str) -> bool:
    try:
        return to_canonical(parse_literal(text)) == to_canonical(parse_literal(wanted))
    except InvalidValue:
        return False


def gives(program: str, given: str, output: str | None = None) -> bool:
    """Whether a program runs on an input, and gives this output."""
    try:
        arguments = parse_arguments(given)
    except InvalidValue:
        return False
    value = call_program(program, infer_signature(arguments), arguments)
    return value is not None and (output is None or render_value(value) == output)


def runs(text: str, old: list[str]) -> bool:
    proposal = PROPOSER.parse(text).value
    return gives(proposal.program, proposal.input) and proposal.program not in old


def probes(program: str, text: str) -> bool:
    inputs = PROBER.parse(text).value.inputs
    return len(inputs) == PROBER.count and all(gives(program, given) for given in inputs)


def main() -> None:
    """The share of right outputs of the embedded model on held-out functions, sampled at temperature 1 and greedily."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded/code")
    parser.add_argument("--count", type=int, default=300, help="prompts for each role")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    from milonga.config import PolicySection
    from milonga.engine import Decoding, Request
    from milonga.engine.local import LocalEngine

    engine = LocalEngine({"p": PolicySection(model=args.model)}, args.device, 512)
    for role, (teacher, _) in ROLES.items():
        items = [teacher("dev", n, keyed_rng("measure", role, n)) for n in range(args.count)]
        contexts = engine.encode_all("p", [item.prompt for item in items])
        requests = [Request(context, n) for n, context in enumerate(contexts)]
        shares = {}
        for name, greedy in (("sampled", False), ("greedy", True)):
            outputs = engine.sample("p", requests, Decoding(200, 1.0, (), greedy), "live")
            shares[name] = sum(item.right(out.text) for item, out in zip(items, outputs, strict=True)) / len(items)
        taught = sum(item.right(item.completion) for item in items) / len(items)
        print(f"{role:9s} sampled {shares['sampled']:.2f}  greedy {shares['greedy']:.2f}  its teacher {taught:.2f}", flush=True)


if __name__ == "__main__":
    main()
