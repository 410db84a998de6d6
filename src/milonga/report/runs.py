"""The chapter of a report about a run: its settings and hardware, curves, transcripts, and how to reproduce it."""

from __future__ import annotations

import shlex

from pydantic import ValidationError

from milonga.config import Config, PolicySection, to_toml
from milonga.errors import UserError
from milonga.health import examine
from milonga.probing import Probe
from milonga.report.blocks import (
    Block,
    Chapter,
    Code,
    Facts,
    Figures,
    Folded,
    Points,
    Section,
    Sheet,
    Talk,
    Talks,
    Text,
    Verdict,
)
from milonga.report.curves import build_flow_figure, build_run_figures, build_time_figure
from milonga.report.verdicts import describe_run
from milonga.runfolder.flow import compute_credit
from milonga.runfolder.matrix import FIGURES, read_matrix
from milonga.runfolder.record import HEADLINE, Record, to_number
from milonga.runfolder.seals import format_turns, list_lost_turns
from milonga.runfolder.transcripts import read_transcripts, select_transcripts
from milonga.systems.index import RECIPES, find_paper
from milonga.text import format_amount, format_duration, format_number

TALKS = 2
"""Number of transcripts of each kind."""
VERIFIER = (
    ("F1 on first errors (sampled)", "f1"),
    ("F1, greedy", "greedy_f1"),
    ("F1, majority of its verifications", "vote_f1"),
    ("finds the first error where there is one", "error_accuracy"),
    ("clears solutions without one", "right_accuracy"),
    ("finds it where the answer is right", "hidden_error_accuracy"),
    ("right solutions called right", "accuracy_on_right"),
    ("wrong solutions called wrong", "accuracy_on_wrong"),
    ("balanced accuracy", "balanced_accuracy"),
    ("share called right", "positive_rate"),
    ("share that is right", "share_right"),
    ("area under ROC", "auroc"),
    ("area under ROC, soft verdict", "soft_auroc"),
    ("calibration error, soft verdict", "soft_calibration_error"),
    ("Brier score, soft verdict", "soft_brier"),
    ("right steps called wrong (false alarms)", "step_false_alarm_rate"),
    ("wrong steps called wrong (detected)", "step_detection_rate"),
    ("the same for labelled solutions: false alarms", "bench_step_false_alarm_rate"),
    ("the same for labelled solutions: detected", "bench_step_detection_rate"),
    ("best of N by the soft verdict", "choice/verifier"),
    ("any of N", "choice/mean"),
    ("majority of N", "choice/majority"),
    ("a right one among N (pass@N)", "choice/pass"),
    ("calibration error of repeated verdicts", "calibration_error"),
    ("contradictions", "contradiction_rate"),
    ("unreadable", "invalid_rate"),
    ("trivial F1: knows nothing", "trivial/no_knowledge"),
    ("trivial F1: knows whether there is an error", "trivial/error_modal"),
    ("trivial F1: knows whether the answer is right", "trivial/answer_modal"),
    ("trivial F1: always all right, or always the first step", "trivial/all_right"),
)

GROUPS = {
    "every metric of the evaluations": ("eval/",),
    "every metric of the turns": ("rollouts/", "learn/", "credit/", "compute/", "flow/"),
}


def build_run_chapter(record: Record) -> Chapter:
    config = record.config
    turn = record.last["turn"]
    state = f"finished after {turn} turns" if record.summary is not None else f"not finished: turn {turn}"
    lead = f"{config.recipe} on {config.task['name']}, seed {config.seed}, {state}. Folder: {record.folder}"
    sections = [
        Section("In short", [Verdict(describe_run(record)), *_build_remark_blocks(record)]),
        Section("Curves", [Figures([one for one in build_run_figures(record, record.name) if one is not None])]),
        Section("From start to end", [_build_headline(record)]),
        *_build_verifier_section(record),
        *_build_matrix_section(record),
        *_build_turn_section(record),
        *_build_transcript_section(record),
        *_build_probe_section(record),
        Section("What was run", [Facts(_list_facts(record))]),
        Section(
            "All measurements", [Folded(name, _build_metrics_sheet(record, *prefixes)) for name, prefixes in GROUPS.items()]
        ),
        Section("How to reproduce it", build_reproduction(record)),
    ]
    return Chapter(f"{config.recipe} on {config.task['name']}: {record.name}", lead, sections)


def _build_headline(record: Record) -> Sheet:
    rows = [
        (label, *_format_change(record, f"eval/{metric}"))
        for label, metric in HEADLINE
        if record.get_curve(f"eval/{metric}")[0]
    ]
    return Sheet("", (f"on {record.config.eval.split}", "start", "end", "change"), rows)


def _format_change(record: Record, metric: str) -> tuple[str, str, str]:
    """Format the first and last value of a metric, and the change if there are two."""
    values = record.get_curve(metric)[1]
    if not values:
        return "—", "—", ""
    return format_number(values[0]), format_number(values[-1]), f"{values[-1] - values[0]:+.3f}" if len(values) > 1 else ""


def _build_remark_blocks(record: Record) -> list[Block]:
    found = _find_remarks(record)
    return [Points(found)] if found else []


def _find_remarks(record: Record) -> list[str]:
    """List what is wrong with the run, as the terminal and the board say it too, and which of its metrics are lost."""
    out = [f"{one.badge}: {one}" + ("" if one.help.startswith("--set ") else ".") for one in examine(record)]  # to be copied
    if lost := list_lost_turns(record.rows):
        out.append(f"The metrics of turns {format_turns(lost)} are lost: the run went on without them.")
    return out


def _build_probe_section(record: Record) -> list[Section]:
    """Build the section with what a probe found before the run, if there was one."""
    found = Probe.read(record.folder)
    if found is None:
        return []
    head = (f"{found.problems} train problems × {found.rollouts}", *(figures.agent for figures in found.agents))
    said = [*map(str, found.advice), found.describe_cost()]
    return [Section("The probe before the run", [Sheet("", head, found.list_rows()), Points(said)])]


def _list_facts(record: Record) -> list[tuple[str, str]]:
    config = record.config
    seconds = sum(to_number(row.get(key)) or 0.0 for row in record.timing for key in ("turn_s", "eval_s"))
    used = {what: record.get_curve(f"compute/{what}")[1] for what in ("tokens", "flops")}
    rows = [
        *_list_recipe_facts(config),
        ("task", ", ".join([str(config.task["name"]), *(f"{k}={v}" for k, v in config.task.items() if k != "name")])),
        *((f"policy {name}", _describe_policy(section)) for name, section in config.policies.items()),
        ("binding", config.binding),
        ("turns", _describe_turns(record)),
        (
            "a turn",
            f"{config.batch.problems} problems, {config.batch.rollouts} rollouts, temperature {config.sampling.temperature}",
        ),
        ("options", ", ".join(f"{key}={value}" for key, value in config.options.items()) or "none"),
        ("rewards", ", ".join(reward.describe() for reward in config.rewards)),
        ("evaluation", _describe_evaluation(config)),
        ("seed", str(config.seed)),
        ("control", "rewards shuffled among the rows" if config.control == "shuffled" else ""),
        ("time", f"{format_duration(seconds)}, evaluations included" if seconds else ""),
        ("tokens", format_amount(used["tokens"][-1]) if used["tokens"] else ""),
        ("FLOPs", format_amount(used["flops"][-1]) if used["flops"] else ""),
        *_list_machine_facts(record),
    ]
    return [(name, what) for name, what in rows if what]


def _list_recipe_facts(config: Config) -> list[tuple[str, str]]:
    """List the recipe with its paper and agents. A recipe of the user's own is not loaded here: only its name is listed."""
    try:
        recipe = RECIPES.get(config.recipe)
    except UserError:
        return [("recipe", config.recipe)]
    what = (recipe.__doc__ or "").strip().partition("\n")[0]
    facts = [("recipe", f"{config.recipe}: {what}"), ("paper", find_paper(config.recipe))]
    try:
        agents = recipe.select_agents(recipe.Options.model_validate(config.options))
    except ValidationError:  # of a folder of somebody else, or of another version
        return facts
    return [*facts, ("agents", ", ".join(f"{agent} ({role.name})" for agent, role in agents.items()))]


def _describe_policy(section: PolicySection) -> str:
    if section.endpoint is not None:
        known = "" if section.endpoint.parameters else ", its FLOPs unknown"
        return f"{section.model}, frozen, behind an endpoint, its tokens counted by the server{known}"
    parts = [section.model, section.kind, f"learning rate {section.learning_rate:g}"]
    if section.objective:
        parts.append("objective " + ", ".join(str(value) for value in section.objective.values()))
    if section.lora:
        parts.append(f"LoRA of rank {section.lora.rank}")
    return ", ".join(parts)


def _describe_turns(record: Record) -> str:
    asked = ", ".join(f"{format_amount(value)} {what}" for what, value in record.config.budget.items())
    learned: dict[str, int] = {}
    for row in record.rows:
        if row.get("learner"):
            learned[str(row["learner"])] = learned.get(str(row["learner"]), 0) + 1
    who = ", ".join(f"{count} of the {agent}" for agent, count in learned.items())
    return f"{record.last['turn']}" + (f": {who}" if who else "") + (f"; budget {asked}" if asked else "")


def _describe_evaluation(config: Config) -> str:
    what = config.eval
    if not what.problems:
        return "none: nothing is measured on held-out problems"
    when = f"every {what.every} turns of the lead agent" if what.every else "at the start and at the end"
    bench = f", {what.bench} solutions with known errors for the verifier" if what.bench else ""
    return f"{when} on {what.problems} {what.split} problems × {what.samples} samples{bench}"


def _list_machine_facts(record: Record) -> list[tuple[str, str]]:
    if not record.machine:
        return []
    last = record.machine[-1]
    gpus = ", ".join(str(name) for name in last.get("gpus") or [])
    memory = f", {last['memory_gib']} GiB memory" if last.get("memory_gib") else ""
    versions = last.get("versions") or {}
    again = [row for row in record.machine[1:] if row["turn"] > 0]
    return [
        (
            "hardware",
            f"{last.get('processor') or last.get('system')}, {last.get('cores')} cores{memory}" + (f"; {gpus}" if gpus else ""),
        ),
        ("device", record.config.device),
        ("versions", ", ".join([f"python {last.get('python')}", *(f"{name} {version}" for name, version in versions.items())])),
        ("started", str(record.machine[0].get("started"))),
        ("resumed", ", ".join(f"at turn {row['turn']} ({row.get('started')})" for row in again)),
    ]


def _build_verifier_section(record: Record) -> list[Section]:
    rows = [
        (label, *_format_change(record, f"eval/verifier/{name}"))
        for label, name in VERIFIER
        if record.get_curve(f"eval/verifier/{name}")[0]
    ]
    if not rows:
        return []
    low, high = (record.get_curve(f"eval/verifier/f1_{side}")[1] for side in ("low", "high"))
    note = (
        f"95 % bootstrap interval of the last F1 over the items: {format_number(low[-1])} to {format_number(high[-1])}."
        if low and high
        else ""
    )
    blocks: list[Block] = [Sheet("", ("verifier", "start", "end", "change"), rows)]
    return [Section("The verifier", [*blocks, Text(note)] if note else blocks)]


def _build_matrix_section(record: Record) -> list[Section]:
    """Build the section with verifiers and generators of all checkpoints against each other, if they were measured."""
    found = read_matrix(record.folder)
    if found is None:
        return []
    sheets = [Sheet(title, found.list_head(), found.list_rows(figure)) for figure, title in FIGURES.items()]
    return [Section("Verifiers on generators of other turns", [Text(found.describe()), *sheets])]


def _build_turn_section(record: Record) -> list[Section]:
    """Build the section with the reward flow and the time spent in a turn."""
    figures = (build_flow_figure(compute_credit(record.rows)), build_time_figure(record.rows, record.timing))
    found = [figure for figure in figures if figure is not None]
    return [Section("Inside a turn", [Figures(found)])] if found else []


def _build_transcript_section(record: Record) -> list[Section]:
    transcripts = read_transcripts(record.folder, record.config)
    chosen = select_transcripts(transcripts, TALKS)
    if not chosen:
        return []
    said = f"From the {len(transcripts)} solutions of turn {transcripts[0].turn}, the last whose rollouts were kept."
    return [Section("Transcripts worth reading", [Text(said), Talks([Talk(why, one) for why, one in chosen])])]


def _build_metrics_sheet(record: Record, *prefixes: str) -> Sheet:
    rows = [(name, *_format_change(record, name)) for name in sorted(record.metrics(*prefixes))]
    return Sheet("", ("metric", "first", "last", "change"), rows)


def build_reproduction(record: Record) -> list[Block]:
    """Build the blocks with the command that was typed, if known, and a command that needs only the config."""
    commands = [str(row["command"]) for row in record.machine if row.get("command")]
    config = shlex.quote(str(record.folder / "config.toml"))
    anew = f"milonga run {shlex.quote(record.config.recipe)} --config {config} --out NEW"
    blocks: list[Block] = [Text("As it was typed:"), Code("\n".join(dict.fromkeys(commands)))] if commands else []
    blocks += [Text("From the resolved config alone, on a CPU with the same versions to the same bits:"), Code(anew)]
    return [*blocks, Folded("config.toml", Code(to_toml(record.config.model_dump(mode="json"))))]
