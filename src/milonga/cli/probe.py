"""The body of `milonga probe`: probe the models of a plan, and print what was found. Model output is always escaped."""

from __future__ import annotations

from contextlib import closing

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from milonga.api import settle_threads
from milonga.cli.show import print_text
from milonga.errors import UserError
from milonga.pair import make_run_context, restrict_to_agents
from milonga.probing import Probe, can_probe, probe
from milonga.resolve import Plan
from milonga.runfolder.console import Ticker, print_to_stderr
from milonga.text import escape_invisible


def run_probe(plan: Plan, problems: int, rollouts: int) -> Probe:
    """Probe a plan; only the weights of the agents that solve and judge are loaded."""
    if not can_probe(plan):
        raise UserError(f"recipe '{plan.config.recipe}' has no agent that solves problems by steps: there is nothing to probe")
    agents = [agent for agent in (plan.recipe.solving, plan.recipe.judging) if agent in plan.roles]
    run_context = make_run_context(restrict_to_agents(settle_threads(plan), agents), None)
    run_context.engine.watch = Ticker(print_to_stderr)
    with closing(run_context.engine):
        plan.task.make_ready()
        for role in plan.roles.values():
            role.make_ready()
        return probe(plan, run_context, problems, rollouts)


def print_probe(found: Probe, console: Console) -> None:
    """Print the figures as a table, the advice in sentences, and examples of what could not be read."""
    title = f"{found.recipe} on {found.task}: {found.problems} train problems, {found.rollouts} solutions of each"
    names = [Column(escape(figures.agent), justify="right") for figures in found.agents]
    table = Table("", *names, title=escape(title), title_justify="left")
    for label, *cells in found.list_rows():
        table.add_row(label, *cells)
    console.print(table)
    console.print(found.describe_cost(), highlight=False)
    for advice in found.advice:
        console.print(f"- {advice}", markup=False, highlight=False, soft_wrap=True)
    if not found.advice:
        console.print("Nothing to change.")
    for example in found.examples:
        console.rule(Text(escape_invisible(f"unreadable, by the {example.agent}: {example.why}")), align="left")
        print_text(console, example.text)
