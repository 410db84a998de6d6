"""The charts of one run, or of several runs overlaid: which metrics share a chart, and their titles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from milonga.charts import HEIGHT, Bars, Series, bar_chart, flow_chart, line_chart, path_chart
from milonga.report.blocks import Figure
from milonga.runfolder.flow import Flow
from milonga.runfolder.record import Row, to_number
from milonga.text import format_number

TITLES = {
    "eval/generator/accuracy": "generator: held-out accuracy",
    "eval/generator/sound_accuracy": "generator: accuracy with every step right",
    "eval/generator/step_accuracy": "share of steps that are right",
    "eval/verifier/step_positive_rate": "share of steps that the verifier calls right",
    "eval/verifier/balanced_accuracy": "verifier: balanced accuracy",
    "eval/verifier/f1": "verifier: F1 on first errors",
    "eval/verifier/auroc": "verifier: area under ROC",
    "eval/hacking_gap": "hacking gap",
    "eval/step_hacking_gap": "step hacking gap",
    "rollouts/generator/accuracy": "generator: accuracy while training",
    "eval/generator/greedy_accuracy": "generator: greedy held-out accuracy",
    "eval/generator/success": "generator: share of dialogues with a right answer",
    "eval/generator/gain": "generator: gain of the second turn",
    "eval/team/gain": "team: gain of the last turn over the first",
    "eval/team/over_vote": "team: accuracy above a vote of as many tokens",
    "eval/search/accuracy": "generator: accuracy of search",
    "eval/verifier/pair_accuracy": "verifier: accuracy on pairs",
    "eval/verifier/best_of_k": "verifier: accuracy of the best of k",
    "eval/verifier/best_of_k_sound": "verifier: share of problems whose best of k is sound",
    "eval/verifier/defect_precision": "verifier: precision of reported defects",
    "eval/judge/pair_accuracy": "judge: accuracy on pairs",
    "eval/held_out_accuracy": "verifier: recall of corruptions of a new kind",
    "eval/proposer/learnable": "proposer: share of valid tasks that are solved sometimes",
    "eval/tester/mu": "tester: reward for telling right from wrong programs",
    "eval/grm/hacking_gap": "gap between what the judge pays and what is right",
}
"""Metrics in words: whose it is, if it is one agent's, and a noun phrase, which sentences and charts use alike."""
DIFFERENCES = ("gap", "gain", "over_vote", "mu")
"""How the names of metrics end that are differences of two shares."""
LEAST_REACH = 0.1
"""Least width, to both sides of the curves, in which the bands of shares are shown."""
SIDE_BY_SIDE = (
    "eval/generator/accuracy",
    "eval/generator/sound_accuracy",
    "eval/verifier/f1",
    "eval/verifier/balanced_accuracy",
    "eval/hacking_gap",
    "rollouts/generator/accuracy",
)
"""Metrics in which several runs are compared, one chart each."""
GENERATOR, F1 = "eval/generator/accuracy", "eval/verifier/f1"
WORK = ("sample", "verify", "score", "learn", "publish", "idle")
"""Kinds of work in the order of a turn; any other kinds come after them."""


class Measured(Protocol):
    """Where curves come from: a run that was read as a whole, or one that is followed while it goes on."""

    def get_curve(self, metric: str) -> tuple[Sequence[float], Sequence[float]]: ...

    def metrics(self, prefix: str) -> list[str]: ...


@dataclass(frozen=True)
class Panel:
    """A chart of one run: metrics with the names of their curves."""

    title: str
    metrics: Mapping[str, str]
    reach: tuple[float, float] | None = (0.0, 1.0)
    """What the axis shows at least; None: as far as the curves go. Of a gap it shows zero, for its sign is what matters."""
    every: Mapping[str, str] = field(default_factory=dict)
    """If set, draw all metrics of a turn that end with one of these suffixes, instead of `metrics`: suffix -> the name of the
    curve, with the agent or the policy in the place of {}."""


PANELS = (
    Panel(
        "Generator on held-out problems",
        {
            "eval/generator/accuracy": "accuracy",
            "eval/generator/sound_accuracy": "every step right too",
            "eval/generator/majority": "majority of its samples",
            "eval/verifier/best_of_k": "best by the verifier",
            "eval/verifier/choice/verifier": "best by its soft verdict",
        },
    ),
    Panel(
        "Verifier",
        {
            "eval/verifier/f1": "F1 on first errors",
            "eval/verifier/balanced_accuracy": "balanced accuracy",
            "eval/verifier/auroc": "area under ROC",
            "eval/verifier/soft_auroc": "area under ROC, soft verdict",
            "eval/verifier/trivial/error_modal": "F1 that needs no steps",
        },
    ),
    Panel("Hacking gap", {"eval/hacking_gap": "solutions", "eval/step_hacking_gap": "steps"}, (0.0, 0.0)),
    Panel(
        "While training",
        {
            "rollouts/generator/accuracy": "generator: accuracy",
            "rollouts/verifier/balanced_accuracy": "verifier: balanced accuracy",
        },
    ),
    Panel(
        "Outputs that are lost",
        {},
        (0.0, 0.1),
        {"/invalid_rate": "{}: unreadable", "/truncated_rate": "{}: cut at the limit"},
    ),
    Panel("Entropy of a token", {}, None, {"/entropy": "{}"}),
    Panel("Norm of the gradient", {}, None, {"/grad_norm": "{}"}),
)
OF_A_TURN = ("learn/", "rollouts/")
"""Prefixes of the metrics of a turn, which have a policy or an agent in the middle."""
BANDS = {F1: ("eval/verifier/f1_low", "eval/verifier/f1_high")}
Y_LABELS = {"Hacking gap": "share called right − share that is right"}


def build_run_figures(run: Measured, name: str) -> list[Figure | None]:
    """Build the figures of a run; None stands for one that has no data."""
    found = [build_panel_figure(run, panel) for panel in PANELS]
    return [*found[:2], build_pair_figure([run], [name]), *found[2:]]


def build_panel_figure(run: Measured, panel: Panel) -> Figure | None:
    metrics = _find_metrics_of_a_turn(run, panel.every) if panel.every else panel.metrics
    series = [one for metric, name in metrics.items() if (one := make_series(run, metric, name)).x]
    if not series:
        return None
    svg = line_chart(panel.title, series, x_label="turn", y_label=Y_LABELS.get(panel.title, ""), y_range=panel.reach)
    return Figure(svg, panel.title, [describe_series(one) for one in series])


def _find_metrics_of_a_turn(run: Measured, every: Mapping[str, str]) -> dict[str, str]:
    """Find the metrics with one of these suffixes, with the names of their curves."""
    known = [metric for prefix in OF_A_TURN for metric in sorted(run.metrics(prefix))]
    return {
        metric: name.format(metric.split("/")[1])
        for metric in known
        for suffix, name in every.items()
        if metric.endswith(suffix) and metric.count("/") == 2
    }


def make_series(run: Measured, metric: str, name: str) -> Series:
    """Make the series of a metric over the turns in which it was measured, with its interval if the run has one."""
    turns, values = run.get_curve(metric)
    edges = [dict(zip(*run.get_curve(edge), strict=True)) for edge in BANDS.get(metric, ())]
    low, high = ([edge.get(turn) for turn in turns] for edge in edges) if all(edges) and edges else ((), ())
    return Series(name, turns, values, low, high)


def describe_series(one: Series) -> str:
    return f"{one.name} {format_number(one.y[0])} → {format_number(one.y[-1])}"


def build_pair_figure(runs: Sequence[Measured], names: Sequence[str]) -> Figure | None:
    """Build the path chart of training: generator accuracy against verifier F1, one point per evaluation."""
    series = []
    for name, run in zip(names, runs, strict=True):
        upward = dict(zip(*run.get_curve(F1), strict=True))
        known = [(x, upward[turn]) for turn, x in zip(*run.get_curve(GENERATOR), strict=True) if turn in upward]
        series.append(Series(name, [x for x, _ in known], [y for _, y in known]))
    if not any(one.x for one in series):
        return None
    title = "The way of the pair"
    svg = draw_pair_chart(title, series)
    said = [f"{one.name} from {_format_pair(one, 0)} to {_format_pair(one, -1)}" for one in series if one.x]
    return Figure(svg, f"{title} (generator accuracy, verifier F1)", said)


def _format_pair(one: Series, at: int) -> str:
    return f"({format_number(one.x[at])}, {format_number(one.y[at])})"


def get_title(metric: str) -> str:
    """Say a metric in words, where it has any."""
    return TITLES.get(metric, metric)


def is_difference(metric: str) -> bool:
    return metric.endswith(DIFFERENCES)


def clip_to_range(metric: str, value: float) -> float:
    """Clip a bound of an interval to what the metric can be, however few seeds there are: a share lies between 0 and 1, a
    difference of shares between -1 and 1."""
    if metric not in TITLES:
        return value
    return min(1.0, max(-1.0 if is_difference(metric) else 0.0, value))


def draw_pair_chart(title: str, series: Sequence[Series]) -> str:
    """Draw the path chart. Both axes always span 0 to 1, so that two reports can be compared."""
    x_label, y_label = TITLES[GENERATOR], TITLES[F1]
    unit = (0.0, 1.0)
    return path_chart(title, series, x_label=x_label, y_label=y_label, x_range=unit, y_range=unit, height=HEIGHT)


def build_chosen_figure(run: Measured, metric: str) -> Figure | None:
    """Build the figure of one metric of one run, whichever it is."""
    one = make_series(run, metric, metric)
    svg = line_chart(metric, [one], x_label="turn", zero=is_difference(metric), bands="95 % interval over the items")
    return Figure(svg, metric, [describe_series(one)]) if one.x else None


def build_metric_figures(runs: Sequence[Measured], names: Sequence[str]) -> list[Figure]:
    """Build one figure per metric, with the curves of all runs."""
    out = []
    for metric in SIDE_BY_SIDE:
        curves = [(name, run.get_curve(metric)) for name, run in zip(names, runs, strict=True)]
        series = [Series(name, turns, values) for name, (turns, values) in curves]
        if any(one.x for one in series):
            shares = (0.0, 0.0) if is_difference(metric) else (0.0, 1.0)
            svg = line_chart(TITLES[metric], series, x_label="turn", y_range=shares)
            out.append(Figure(svg, TITLES[metric], [describe_series(one) for one in series if one.x]))
    return out


def build_flow_figure(flow: Flow) -> Figure | None:
    if not flow:
        return None
    title = "Reward flow: shares of each policy's credit"
    said = [f"{policy} had {share:.1%} of its credit from {source}" for (source, policy), share in flow.items()]
    return Figure(flow_chart(title, flow), title, said)


def _mean_turn_seconds(rows: Iterable[Row], timing: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Mean seconds of each kind of work in a turn, keyed by the agent that learns; evaluations are left out."""
    learners = {row["turn"]: str(row["learner"]) for row in rows if row.get("learner")}
    turns: dict[str, list[Mapping[str, float]]] = {}
    for row in timing:
        if row["turn"] in learners:
            seconds = {key.removesuffix("_s"): value for key, raw in row.items() if (value := to_number(raw)) is not None}
            turns.setdefault(learners[row["turn"]], []).append(seconds)
    out = {}
    for learner, spent in turns.items():
        kinds = dict.fromkeys([*WORK, *(kind for row in spent for kind in row)])
        means = {kind: sum(row.get(kind, 0.0) for row in spent) / len(spent) for kind in kinds}
        out[f"{learner} learns"] = {k: v for k, v in means.items() if k not in ("turn", "eval", "overlap") and v > 0}
    return out


def build_time_figure(rows: Iterable[Row], timing: Iterable[Row]) -> Figure | None:
    found = _mean_turn_seconds(rows, timing)
    if not found:
        return None
    title = "Where the seconds of a turn go"
    kinds = list(dict.fromkeys(kind for seconds in found.values() for kind in seconds))
    bars = [Bars(kind, [seconds.get(kind) for seconds in found.values()]) for kind in kinds]
    thick = min(44.0, 120.0 / len(found))  # few bars fill a panel as other charts do
    svg = bar_chart(title, list(found), bars, x_label="seconds, mean over turns", stacked=True, thick=thick)
    said = [f"{name}: " + ", ".join(f"{kind} {value:.2f} s" for kind, value in parts.items()) for name, parts in found.items()]
    return Figure(svg, title, said)
