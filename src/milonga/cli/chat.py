"""The body of `milonga chat`: read a question, print the solution, then the verdict on each of its steps."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator

from rich.console import Console

from milonga.cli.show import print_text
from milonga.errors import UserError
from milonga.pair import Pair, Verdict
from milonga.tasks.foreign import make_foreign_problem
from milonga.types import Rollout
from milonga.using.answers import Cuts, answer_problems

TOO_LONG = "the question is longer than the model's context: ask a shorter one"


def chat(pair: Pair, console: Console, best_of: int, checks: int) -> None:
    """Answer questions until they end. An error is printed, and the next question is read."""
    with contextlib.suppress(KeyboardInterrupt):
        for number, question in enumerate(_read_questions(), 1):
            try:
                _answer_question(pair, question, f"chat/{number}", console, best_of, checks)
            except UserError as error:
                print_text(console, (str(error), "red"))
    console.print()


def _read_questions() -> Iterator[str]:
    """Yield lines from stdin, with a prompt on a terminal; blank lines are skipped."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    ask = "? " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(ask)
        except EOFError:
            return
        if line.strip():
            yield line.strip()


def _answer_question(pair: Pair, question: str, id: str, console: Console, best_of: int, checks: int) -> None:
    """Answer one question. A single solution is printed before it is verified; the best of several is known only afterwards."""
    problem = make_foreign_problem(id, question)
    if best_of > 1:
        best = answer_problems(pair, [problem], best_of, "verifier" if pair.judges else "vote", checks)[0].best
        if best is None:
            raise UserError(TOO_LONG)
        solution, verdict = best.solution, best.verdict
        show_solution(solution, console)
    else:
        found = pair.solve([problem], greedy=True)
        if not found:
            raise UserError(TOO_LONG)
        solution = found[0]
        show_solution(solution, console)
        verdict = pair.verify([solution], checks)[0] if pair.judges else None
    if cut := Cuts().add([solution]).describe(pair.run_context.get_max_tokens("generator")):
        print_text(console, "  ", (cut, "yellow"))
    if verdict is not None:
        show_verdict(verdict, console)


def show_solution(solution: Rollout, console: Console) -> None:
    value = solution.solution
    for number, step in enumerate(value.steps, 1):
        print_text(console, f"  {number}. {step}")
    if value.answer is None:
        print_text(console, "  ", ("no answer", "yellow"), f" ({solution.parsed.invalid}), as it was written:")
        print_text(console, f"  {solution.text}")
    else:
        print_text(console, "  ", (value.answer, "bold"))


def show_verdict(verdict: Verdict, console: Console) -> None:
    """Print a mark for each step, as most of the checks judge it, and the verdict on the whole, each with the probability that
    it is right."""
    marks = zip(verdict.step_verdicts or (), verdict.steps or (), strict=True)
    said = "  ".join(
        f"{number}. {'[green]✓[/green]' if right else '[red]✗[/red]'} {likely:.2f}"
        for number, (right, likely) in enumerate(marks, 1)
    )
    console.print(f"  verifier: {said or 'no verdict on the steps'}", highlight=False, soft_wrap=True)
    if verdict.probability is None:
        console.print("  nothing readable about the whole", highlight=False)
    else:
        word = "[green]right[/green]" if verdict.final else "[red]wrong[/red]"
        console.print(f"  the whole: {word} ({verdict.probability:.2f})", highlight=False)
