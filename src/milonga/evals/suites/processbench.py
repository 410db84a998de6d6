"""ProcessBench: does the verifier find the first wrong step, as people labelled it, in other models' solutions?

(arXiv 2412.06559)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from milonga.charts import Bars, bar_chart
from milonga.context import Context
from milonga.errors import ConfigError, DataError
from milonga.evals.bench import make_bench, read_processbench
from milonga.evals.evaluate import TOO_LONG, add_prefix, fill_unjudged, judge_metrics
from milonga.evals.metrics import (
    bootstrap_interval,
    detection_f1,
    find_best_threshold,
    find_first_below,
    find_first_wrong,
    majority_vote,
    mean,
    process_f1,
    step_rates,
    trivial_f1,
)
from milonga.evals.suites.base import SUITES, Finding, Row, Subject, Suite, SuiteOptions, ensure_list, with_interval
from milonga.evals.suites.critic import Critic
from milonga.roles import StepSolver
from milonga.tasks import Task, make_task, normalise_text
from milonga.types import Rollout, Rollouts, Verification

TUNED_ON = "gsm8k"
"""The one subset on which the protocol tunes the threshold of a scalar verifier."""
AVERAGE = "average"
LENGTHS, MINIATURE, DEV = (3, 5, 8, 12), 500, 256
"""Of the miniature: operations of each subset, and items. Solutions of the task's dev set that a threshold is tuned on."""
TRIVIAL = (
    *("trivial/no_knowledge", "trivial/answer_modal", "trivial/error_modal", "trivial/answer_last"),
    *("trivial/all_right", "trivial/first_wrong"),
)


class ProcessBenchOptions(SuiteOptions):
    file: Annotated[list[Path], BeforeValidator(ensure_list)] = Field(default_factory=list)
    """Files of ProcessBench, or folders that hold them; each is a subset. Without any, a miniature of it."""
    limit: int | None = Field(None, ge=1)
    """How many items of each file, taken evenly over it; of the miniature, 500 by default."""
    checks: int = Field(8, ge=1)
    """Sampled verifications of each item, for the vote."""
    style: Literal["auto", "own", "paragraphs"] = "auto"
    """own: as the verifier was trained; paragraphs: as the paper asks a critic; auto: paragraphs for a model from no run."""
    tokens: int | None = Field(None, ge=1)
    """Most tokens of a verification; by default as in the run, and 2,048 for a model from no run."""


@dataclass(frozen=True)
class Mode:
    """A decoding mode: its name, and each item's predictions (several if each counts)."""

    name: str
    predictions: Mapping[str, Sequence[int | None]]
    checks: Rollouts
    """The verifications from which the predictions were parsed."""
    tuned_here: bool = False
    """Whether a threshold was chosen on these very items."""


@SUITES.register("processbench")
class ProcessBench(Suite):
    """The verifier on ProcessBench: F1 of first errors beside trivial baselines; votes, or tuned thresholds."""

    name = "processbench"
    needs = ("judge",)
    bare = True
    percent = True
    Options = ProcessBenchOptions
    columns = ("subset", "decoding", "f1", "error_accuracy", "right_accuracy", "hidden_f1")
    options: ProcessBenchOptions

    @classmethod
    def select_rows(cls, rows: Sequence[Row]) -> Sequence[Row]:
        """Add the baselines of each subset as rows below its own."""
        out: list[Row] = []
        for subset in dict.fromkeys(row["subset"] for row in rows):
            own = [row for row in rows if row["subset"] == subset]
            trivial = [{"subset": subset, "decoding": _format_baseline(key), "f1": own[0][key]} for key in TRIVIAL]
            out += own + trivial
        return out

    def check(self) -> None:
        for path in list_subset_files(self.options.file):
            read_processbench(path, None)

    def measure(self, subject: Subject) -> Finding:
        subject = self.configure_judge(subject)
        role = subject.run_context.roles[subject.judge]
        solver = None if isinstance(role, Critic) else StepSolver(role.dialect)
        benches = self.read(subject.run_context.task, solver)
        modes = self.run_generative(subject, benches) if subject.is_generative else self.run_thresholds(subject, benches)
        facts: Row = {"items": sum(map(len, benches.values())), "style": role.name}
        facts["checks"] = self.options.checks if subject.is_generative else 1
        facts["tokens"] = subject.run_context.get_max_tokens(subject.judge) if subject.is_generative else None
        facts["seen_in_training"] = {name: count_overlap(subject.run_context.task, bench) for name, bench in benches.items()}
        rows = [row for name, bench in benches.items() for row in (measure_subset(name, bench, mode) for mode in modes[name])]
        return Finding(facts, rows + average_rows(rows, len(benches)))

    def read(self, task: Task, solver: StepSolver | None) -> dict[str, Rollouts]:
        """Load the subsets, by name."""
        if not self.options.file:
            return make_miniature(task, solver, self.options.limit or MINIATURE)
        files = list_subset_files(self.options.file)
        return {path.stem: Rollouts(read_processbench(path, solver, self.options.limit)) for path in files}

    def chart(self, rows: Sequence[Row]) -> str:
        edges = ([row.get(f"f1{end}") for row in rows] for end in ("", "_low", "_high"))
        baselines = [Bars(_format_baseline(key), [r[key] for r in rows]) for key in TRIVIAL[:3]]
        names = [f"{row['subset']}, {row['decoding']}" for row in rows]
        return bar_chart(
            "ProcessBench: F1, beside baselines", names, [Bars("verifier", *edges), *baselines], value_range=(0, 1)
        )

    def configure_judge(self, subject: Subject) -> Subject:
        """Return the subject with the judge's role and token limit as the options say."""
        run_context, options = subject.run_context, self.options
        subject.refuse_options(options, "checks", "style", "tokens")
        role = run_context.roles[subject.judge]
        untrained = subject.bare and role.dialect != "terse"
        if options.style == "paragraphs" or (options.style == "auto" and untrained):
            run_context = replace(run_context, roles={**run_context.roles, subject.judge: Critic(role.dialect)})
        each = run_context.get_max_tokens(subject.judge) // role.length_factor()
        if options.tokens is not None:
            each = -(-options.tokens // role.length_factor())
        elif not options.file:
            each = max(each, make_task({"name": "chain", "ops": max(LENGTHS)}).max_tokens)
        run_context = replace(run_context, sampling=run_context.sampling.model_copy(update={"max_tokens": each}))
        return replace(subject, run_context=run_context)

    def run_generative(self, subject: Subject, benches: Mapping[str, Rollouts]) -> dict[str, list[Mode]]:
        """Judge in three modes: greedy, sampled, and by vote. Samples are untruncated; the paper votes at top-p 0.9."""
        out = {}
        for name, bench in benches.items():
            ctx = Context(subject.run_context, f"processbench/{name}", "")
            greedy = fill_unjudged(ctx.judge(subject.judge, bench, greedy=True), bench, 1)
            sampled = fill_unjudged(ctx.judge(subject.judge, bench, self.options.checks), bench, self.options.checks)
            said = _group_predictions(sampled, lambda value: find_first_wrong(value.steps))
            voted = {item: [majority_vote(predictions)] for item, predictions in said.items()}
            out[name] = [
                Mode("greedy", _group_predictions(greedy, lambda value: find_first_wrong(value.steps)), greedy),
                Mode("sampled", said, sampled),
                Mode(f"vote of {self.options.checks}", voted, sampled),
            ]
        return out

    def run_thresholds(self, subject: Subject, benches: Mapping[str, Rollouts]) -> dict[str, list[Mode]]:
        """Judge at thresholds 0.5, tuned on GSM8K (as in the protocol), and tuned on the task's own dev set."""
        ctx = Context(subject.run_context, "processbench", "")
        read = {name: fill_unjudged(ctx.judge(subject.judge, bench), bench, 1) for name, bench in benches.items()}
        tuning = TUNED_ON if TUNED_ON in read else next(iter(read))
        modes = {name: [_make_threshold_mode(0.5, "", checks)] for name, checks in read.items()}
        for source, seen in ((tuning, read[tuning]), ("the task's dev set", self.judge_dev_set(subject, ctx))):
            if (tau := _tune_threshold(seen)) is not None:
                for name, checks in read.items():
                    modes[name].append(_make_threshold_mode(tau, f" from {source}", checks, checks is seen))
        return modes

    def judge_dev_set(self, subject: Subject, ctx: Context) -> Rollouts:
        """Judge the task's own solutions of its dev problems; none if the task cannot write them, or for a model from
        no run."""
        task = subject.run_context.task
        count = 0 if subject.bare or task.size("dev") == 0 else DEV
        bench = make_bench(task, StepSolver(subject.run_context.roles[subject.judge].dialect), count, "dev")
        return ctx.judge(subject.judge, Rollouts(bench)) if bench else Rollouts([])


def _format_baseline(key: str) -> str:
    return key.replace("trivial/", "trivial: ").replace("_", " ")


def make_miniature(task: Task, solver: StepSolver | None, count: int) -> dict[str, Rollouts]:
    """Make a miniature: chain arithmetic of four lengths with known first errors. Half of the solutions have
    one, a fifth of these a right answer all the same. For verifiers of that task, whose other options stay as they are."""
    if task.name != "chain":
        raise ConfigError(f"task '{task.name}' needs 'file': ProcessBench files; only for task 'chain' is there a miniature")
    options = task.options.model_dump() | {"name": task.name, "min_ops": None}
    solver = solver or StepSolver("plain")
    return {f"chain-{k}": Rollouts(make_bench(make_task(options | {"ops": k}), solver, count, "test")) for k in LENGTHS}


def list_subset_files(given: Sequence[Path]) -> list[Path]:
    """List the given files and the files in given folders; each subset once."""
    files = [file for path in given for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if given and not files:
        raise DataError(f"folder '{given[0]}' holds no ProcessBench file: NAME.json")
    names = [file.stem for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two ProcessBench files are called '{twice}': each subset needs a name of its own")
    return files


def _group_predictions(checks: Rollouts, predict: Callable[[Verification], int | None]) -> dict[str, list[int | None]]:
    out: dict[str, list[int | None]] = {}
    for check in checks:
        out.setdefault(check.target.id, []).append(predict(check.verification))
    return out


def _make_threshold_mode(tau: float, source: str, checks: Rollouts, tuned_here: bool = False) -> Mode:
    """Make the mode that predicts the first step that scores below tau."""
    said = _group_predictions(checks, lambda value: find_first_below(value.step_scores, tau))
    return Mode(f"threshold {tau:.4g}{source}", said, checks, tuned_here)


def _tune_threshold(checks: Rollouts) -> float | None:
    """Return the threshold of the largest F1 on these checks."""
    return find_best_threshold([c.verification.step_scores for c in checks], [_first_error_label(c.target) for c in checks])


def _first_error_label(item: Rollout) -> int:
    label = None if item.grade is None else item.grade.first_error
    assert label is not None, "every item has a label"
    return label


def measure_subset(name: str, bench: Rollouts, mode: Mode) -> Row:
    """Measure one subset in one mode by the protocol, with baselines and diagnostics."""
    pairs = [(item, prediction) for item in bench for prediction in mode.predictions[item.id]]
    predictions, labels = [p for _, p in pairs], [_first_error_label(item) for item, _ in pairs]
    found = process_f1(predictions, labels)
    # Errors behind a right answer are what a judge of answers cannot see; solutions without an error stay as they are.
    seen = [(p, label) for (item, p), label in zip(pairs, labels, strict=True) if label == -1 or item.correct == 1.0]
    shift = [p - label for p, label in zip(predictions, labels, strict=True) if label != -1 and p is not None and p != -1]
    own = [_first_error_label(item) for item in bench]
    final = judge_metrics(mode.checks)
    row: Row = {"subset": name, "decoding": mode.name, "items": len(bench), "errors": sum(label != -1 for label in own)}
    row |= with_interval("f1", found["f1"], bootstrap_interval(predictions, labels, [item.id for item, _ in pairs]))
    row |= {key: found[key] for key in ("error_accuracy", "right_accuracy")}
    row |= {"detection_f1": detection_f1(predictions, labels), "index_shift": mean([float(s) for s in shift])}
    row["hidden_errors"] = sum(label != -1 and item.correct == 1.0 for item, label in zip(bench, own, strict=True))
    row["hidden_f1"] = process_f1([p for p, _ in seen], [label for _, label in seen])["f1"]
    row |= step_rates(
        [(_expand_prediction(p, item), item.grade.steps or ()) for item, p in pairs if item.grade and p is not None]
    )
    row["unparsed_rate"] = mean([p is None for p in predictions])
    row["truncated_rate"] = mean([c.finish == "length" for c in mode.checks])
    row["too_long"] = len({c.target.id for c in mode.checks if c.parsed.invalid == TOO_LONG})
    row |= {f"final/{key}": final[key] for key in ("accuracy_on_right", "accuracy_on_wrong")}
    row["tuned_here"] = mode.tuned_here
    answers, counts = [item.correct == 1.0 for item in bench], [len(item.solution.steps) for item in bench]
    return row | add_prefix("trivial", dict(trivial_f1(own, answers, counts)))


def _expand_prediction(first_wrong: int, item: Rollout) -> list[bool]:
    """The step verdicts that an index stands for: right before it, and nothing known after it."""
    return [True] * len(item.solution.steps) if first_wrong == -1 else [True] * first_wrong + [False]


def average_rows(rows: Sequence[Row], subsets: int) -> list[Row]:
    """Average the subsets' F1, unweighted, in each mode, and of every baseline; nothing where there is one subset."""
    if subsets < 2:
        return []
    out: list[Row] = []
    for mode in dict.fromkeys(row["decoding"] for row in rows):
        same = [row for row in rows if row["decoding"] == mode]
        keys = [key for key in same[0] if key in ("f1", "hidden_f1") or key.startswith("trivial/")]
        values = {key: [row[key] for row in same] for key in keys}
        means = {key: None if None in column else mean(column) for key, column in values.items()}
        out.append({"subset": AVERAGE, "decoding": mode, "items": sum(row["items"] for row in same)} | means)
    return out


def count_overlap(task: Task, bench: Rollouts) -> int | None:
    """Count the problems that are in the task's training set, by normalised text; None if that set is infinite."""
    size = task.size("train")
    if size is None:
        return None
    known = {normalise_text(task.problem("train", i).text) for i in range(size)}
    return sum(normalise_text(item.problem.text) in known for item in bench)
