"""The training loop around a recipe: schedule, turns, evaluation, metrics, checkpoints, resume.

One turn: task.draw_problems -> recipe.rollout -> recipe.credit -> engine.learn -> engine.publish -> the run folder.
With `staleness`, rollouts of later turns are sampled meanwhile; which weights sample them does not depend on timing.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from milonga.context import Context, RunContext
from milonga.credit.shuffle import shuffle_targets
from milonga.credit.staleness import mean_staleness
from milonga.engine import Engine, LearnReport
from milonga.errors import RunFolderError, StalledError
from milonga.evals import Evaluator, judge_metrics, make_bench, output_metrics, solver_metrics
from milonga.health import LATEST, RECENT, Finding, find_health
from milonga.interrupts import delay_interrupts
from milonga.objectives.rates import decay_factor
from milonga.patterns.bootstrap import BOOTSTRAP, credit_bootstrap, sample_bootstrap
from milonga.preferences import Preferences
from milonga.prefetch import Prefetcher, isolate_recipe
from milonga.probing import choose_problems, count_signals, find_stall, recall_problems
from milonga.reading import check_shape
from milonga.resolve import Plan
from milonga.runfolder.changes import list_keys
from milonga.runfolder.checkpoints import check_free_space
from milonga.runfolder.console import LiveView
from milonga.runfolder.files import free_bytes, replace_folder, to_json, write_atomically
from milonga.runfolder.flow import REWARDS
from milonga.runfolder.folder import RunFolder
from milonga.runfolder.note import make_note
from milonga.runfolder.origin import Origin
from milonga.runfolder.record import HEADLINE, Row
from milonga.runfolder.seals import list_lost_turns, seal_files
from milonga.runfolder.trackers import Tracker, open_trackers, select_numbers
from milonga.schedule import Action, Cursor, Phase
from milonga.timeline import Timeline
from milonga.types import Floats, Rollouts, TrainBatch, Verification


@dataclass
class Place:
    """Where a run stands; saved with the weights."""

    turn: int = 0
    lead_turns: int = 0
    phase: int = 0
    done: int = 0
    """Turns done in the phase."""

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.phase, self.done)

    def next_place(self, cursor: Cursor, led: bool) -> Place:
        """The place after one more turn, at `cursor`; `led` says whether the lead agent learned in it."""
        return Place(self.turn + 1, self.lead_turns + led, cursor.phase, cursor.done + 1)


@dataclass(frozen=True)
class Saved:
    """The state of a run in its checkpoints."""

    place: Place
    problems: dict[str, int]
    recipe: dict[str, Any]


def make_evaluator(plan: Plan, run_context: RunContext) -> Evaluator:
    """Make the evaluator of a plan's policies."""
    recipe, section = plan.recipe, plan.config.eval
    size = section.bench if section.problems else 0
    bench = make_bench(plan.task, plan.roles.get(recipe.solving), size, section.split)
    return Evaluator(run_context, section, tuple(bench), recipe.measure, recipe.solving, recipe.judging)


class Loop:
    """A run in progress."""

    def __init__(self, plan: Plan, engine: Engine, folder: RunFolder, view: LiveView) -> None:
        self.plan, self.engine, self.folder, self.view = plan, engine, folder, view
        self.config, self.recipe = plan.config, plan.recipe
        self.schedule = plan.schedule
        self.run_context = plan.make_run_context(engine)
        self.evaluate = make_evaluator(plan, self.run_context)
        self.place = Place()
        self.problem_cursors: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []
        self.preferences = Preferences()
        self.trackers: list[Tracker] = []
        self.settings = plan.config.model_dump(mode="json")
        self.timing: deque[Row] = deque(maxlen=RECENT)
        self.machine: Row | None = None
        """What this process runs on."""
        self.prefetcher = Prefetcher(isolate_recipe(plan.recipe), engine, self.config.staleness)

    def prepare(self) -> None:
        """Check what can fail before anything is sampled (disk space, graders), and show the task's description."""
        self.check_disk()
        self.plan.task.make_ready()
        for role in self.plan.roles.values():
            role.make_ready()
        for key, value in self.plan.task.describe().items():
            if not isinstance(value, Mapping):
                self.view.say(f"{self.plan.task.name}: {key.replace('_', ' ')} {value}")
            elif parts := [f"{name.replace('_', ' and ')} {count}" for name, count in value.items() if count]:
                self.view.say(f"{self.plan.task.name}: {key.replace('_', ' ')}: {', '.join(parts)}")
        if turns := self.plan.describe_turns() if self.place.turn else self.plan.explain_turns():
            self.view.say(turns)

    def open_trackers(self) -> None:
        """Open the trackers; they may fail, too, before anything is written."""
        self.trackers = open_trackers(
            self.config.keep.trackers,
            self.folder.path,
            self.config.keep.project,
            self.settings,
            self.place.turn,
        )

    def run(self) -> dict[str, Any]:
        """Run all turns, from the start or from where `restore` put it; return the report. Ctrl-C, or SIGTERM, ends it after a
        turn."""
        try:
            with delay_interrupts(self.view.say) as stop:
                if self.place.turn == 0 and not self.rows:
                    choose_problems(self.plan, self.run_context, self.folder.path, self.view.say)
                    self.record_start()
                while not self.is_finished():
                    # Rollouts in flight are not in a checkpoint: with asynchronous ones, the next barrier is the safe point.
                    if stop.is_asked and self.prefetcher.is_empty:
                        self.ensure_checkpoint()
                        stop.raise_if_asked()
                    self.stop_if_stalled()
                    self.run_turn()
                return self.finish_run()
        finally:
            for tracker in self.trackers:
                tracker.close()
            self.prefetcher.close()

    def check_disk(self) -> None:
        size = self.engine.checkpoint_bytes()
        self.view.say(f"a checkpoint is {size / 2**20:,.1f} MiB; {self.config.keep.checkpoints} are kept")
        needed = size * (self.config.keep.checkpoints + 1) - self.folder.checkpoints.size()
        check_free_space(self.folder.path, needed, free_bytes(self.folder.path))

    def record_start(self) -> None:
        """Evaluate the initial policies as the baseline of all changes, and save the first checkpoint."""
        began, section = time.monotonic(), self.config.eval
        if section.problems:
            self.view.say(f"measuring the start: {section.problems} x {section.samples + section.greedy} solutions")
        row = {"turn": 0, "learner": None, **self.evaluate()}
        self.rows.append(row)
        self.record(row, {"turn": 0, "eval_s": time.monotonic() - began})
        self.checkpoint()

    def progress(self, place: Place) -> float:
        """Share of a run that is done at a place: of the lead agent's turns; or, if the budget is compute, of what the turns
        before its first one left of it. What decays over a run begins to do so with that turn in both cases: else arms at equal
        compute would differ in it by the length of their warm-up."""
        budget = self.config.budget
        if not budget or place.lead_turns == 0:
            return min(1.0, place.lead_turns / self.config.turns)
        before = list(takewhile(lambda row: not row.get("lead_turn"), self.rows))
        warm_up = max(before[-1].get(f"compute/{what}", 0.0) / amount for what, amount in budget.items()) if before else 0.0
        return min(1.0, max(0.0, self.used_share() - warm_up) / max(1.0 - warm_up, 1e-9))

    def used_share(self) -> float:
        """Share of the budget of compute that is used so far, by the measure of which most is used."""
        return max(self.engine.ledger.total(what) / amount for what, amount in self.config.budget.items())

    def is_finished(self) -> bool:
        used = self.used_share() if self.config.budget else self.progress(self.place)
        return used >= 1.0 or self.schedule.get_phase(self.next_cursor().phase) is None

    def stop_if_stalled(self) -> None:
        """Stop with a checkpoint if the last turn's row says that the run has stalled."""
        reason = self.rows[-1].get("stalled")
        if reason and self.config.stop_without_signal:
            self.ensure_checkpoint()
            going_on = f"to go on all the same: milonga resume {shlex.quote(str(self.folder.path))} --force"
            raise StalledError(f"stopped at turn {self.place.turn}, with a checkpoint: {reason}; {going_on}")

    def next_cursor(self) -> Cursor:
        return self.schedule.advance(self.place.cursor, self.rows)

    def run_turn(self) -> None:
        cursor = self.next_cursor()
        phase = self.schedule.get_phase(cursor.phase)
        assert phase is not None
        self.enter_phase(phase, cursor)
        ctx, rollouts = self.rollout(cursor) if self.config.staleness == 0 else self.take_prefetched(cursor)
        self.problem_cursors[phase.learner] = ctx.start + ctx.drawn
        row, advantages = self.learn(ctx, rollouts)
        with ctx.timeline.measure("publish"):
            self.prefetcher.submit_next()
        timing = ctx.timeline.to_row()
        self.place = self.place.next_place(cursor, self.counts(phase))
        row = {"turn": self.place.turn, "learner": phase.learner, "lead_turn": self.place.lead_turns, **row}
        self.rows.append(row)  # before asking whether this was the last turn: conditions look at it
        if stall := find_stall(self.rows, self.recipe.lead, self.config.stop_without_signal):
            row["stalled"] = stall
        if self.should_evaluate(phase, self.place) or self.is_finished():
            began = time.monotonic()
            row |= self.evaluate()
            timing["eval_s"] = time.monotonic() - began
        if self.config.keep.rollouts_every and self.place.turn % self.config.keep.rollouts_every == 0:
            self.folder.save_rollouts(self.place.turn, rollouts, advantages)
        if pairs := self.preferences.take_unsaved():
            self.folder.preferences.append(*pairs)
        self.record(row, {"turn": self.place.turn, **timing})
        if self.place.turn % self.config.keep.checkpoint_every == 0:
            self.checkpoint()

    def make_context(self, place: Place, cursor: Cursor) -> Context:
        """Make the sampling context of the turn after this place."""
        phase = self.schedule.get_phase(cursor.phase)
        assert phase is not None
        return Context(
            self.run_context,
            place.turn + 1,
            phase.learner,
            phase.name,
            self.schedule.count_rounds(cursor.phase),
            start=self.problem_cursors.get(phase.learner, 0),
            progress=self.progress(place),
            preferences=self.preferences,
        )

    def rollout(self, cursor: Cursor) -> tuple[Context, Rollouts]:
        ctx = self.make_context(self.place, cursor)
        return ctx, sample_bootstrap(ctx, self.recipe) if ctx.phase == BOOTSTRAP else self.recipe.rollout(ctx)

    def credit(self, ctx: Context, rollouts: Rollouts) -> Iterable[TrainBatch]:
        if ctx.phase == BOOTSTRAP:
            return credit_bootstrap(ctx, self.recipe, rollouts)
        return self.recipe.credit(ctx, rollouts)

    def take_prefetched(self, cursor: Cursor) -> tuple[Context, Rollouts]:
        """Return the next turn of asynchronous rollouts, with a context for credit in which nothing can be sampled."""
        timeline = Timeline()
        if self.prefetcher.is_empty:
            self.prefetcher.begin(self.make_context(*turn) for turn in self.list_prefetchable_turns(cursor))
        found = self.prefetcher.take_next()
        timeline.hidden, timeline.seconds = found.hidden_seconds(timeline.began), dict(found.ctx.timeline.seconds)
        self.engine.ledger.add(found.ctx.engine.ledger)
        ctx = replace(found.ctx, run=self.run_context, preferences=self.preferences, timeline=timeline, busy=True)
        return ctx, found.rollouts

    def list_prefetchable_turns(self, cursor: Cursor) -> Iterator[tuple[Place, Cursor]]:
        """Iterate over the turns from here to the next barrier of asynchronous rollouts. Nothing is sampled beyond a barrier
        before it is reached. Barriers are: a checkpoint, so that a resumed run equals an uninterrupted one; an evaluation,
        which needs the samplers; another learner, or weights that a phase sets; a condition that may end the phase; the end."""
        place = self.place
        while True:
            yield place, cursor
            phase = self.schedule.get_phase(cursor.phase)
            assert phase is not None
            place = place.next_place(cursor, self.counts(phase))
            if phase.until is not None:
                return
            cursor = self.schedule.advance(place.cursor, ())
            then = self.schedule.get_phase(cursor.phase)
            if then is None or place.lead_turns >= self.config.turns:
                return
            if place.turn % self.config.keep.checkpoint_every == 0 or self.should_evaluate(phase, place):
                return
            if (then.learner, then.name) != (phase.learner, phase.name) or (then.enter and cursor.done == 0):
                return

    def counts(self, phase: Phase) -> bool:
        """Whether a turn of this phase is one of those that a run has so many of: a turn of the lead agent."""
        return phase.learner == self.recipe.lead and phase.counts

    def should_evaluate(self, phase: Phase, place: Place) -> bool:
        """Whether to evaluate after this turn: every few turns of the lead agent, so that arms are measured at the same points.
        Before its first turn, and in phases that wait for a metric, every few turns of any learner."""
        if not self.config.eval.every:
            return False
        if place.lead_turns == 0 or (phase.until is not None and phase.learner != self.recipe.lead):
            return place.turn % self.config.eval.every == 0
        return phase.learner == self.recipe.lead and place.lead_turns % self.config.eval.every == 0

    def enter_phase(self, phase: Phase, cursor: Cursor) -> None:
        if cursor.done == 0:
            for action in phase.enter:
                self.apply_action(action)

    def apply_action(self, action: Action) -> None:
        """Apply an action to a policy. A model behind an endpoint never moves: it has no versions to keep or to go back to."""
        if not self.engine.has_weights(action.policy):
            return
        if action.kind == "snapshot":
            self.engine.snapshot(action.policy, action.source)
        elif action.kind == "copy":
            self.engine.copy(action.policy, action.source)
        else:
            self.engine.copy(action.policy, action.policy, action.source or "ref")

    def learn(self, ctx: Context, rollouts: Rollouts) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Assign credit, learn and publish; return this turn's metrics, and the advantages by rollout id."""
        row: dict[str, Any] = {}
        advantages: dict[str, Floats] = {}
        learned: dict[str, list[_Learned]] = {}
        signals = total = 0
        for train_batch in self.credit(ctx, rollouts):
            if self.config.rewards and self.is_paid_outcomes(train_batch):
                train_batch = replace(train_batch, sources=_name_rewards(train_batch.sources))
            if self.config.control == "shuffled":
                train_batch = shuffle_targets(train_batch, self.config.seed, self.place.turn)
            signals += count_signals(train_batch)
            total += len(train_batch.rollouts)
            behind = mean_staleness(train_batch, self.engine.version(train_batch.policy)) if self.config.staleness else None
            section = self.plan.policies[train_batch.policy]
            taught = replace(
                train_batch,
                lr_scale=decay_factor(section.schedule, ctx.progress, section.lr_end),
                stale_cap=self.config.staleness_cap if behind else None,
            )
            with ctx.timeline.measure("learn"):
                report = self.engine.learn(taught)
            with ctx.timeline.measure("publish"):
                version = self.engine.publish(train_batch.policy)
            if train_batch.advantages is not None:
                advantages |= {t.id: array for t, array in zip(train_batch.rollouts, train_batch.advantages, strict=True)}
            figures = _format_report(report, behind) | {"version": version}
            learned.setdefault(train_batch.policy, []).append(_Learned(train_batch, figures))
            if report.skipped:
                self.view.say(f"turn {ctx.turn}: {report.skipped}")
        for policy, batches in learned.items():
            row |= _merge_learned(policy, batches)
        if total:
            row["signal"] = signals / total
        row |= _rollout_metrics(rollouts)
        row["dropped"] = sum(ctx.dropped.values())
        if ctx.dropped:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(ctx.dropped.items()))
            self.view.say(f"turn {ctx.turn}: left out: {reasons}")
        for what in ("tokens", "flops"):
            row[f"compute/{what}"] = self.engine.ledger.total(what)
        return row, advantages

    def is_paid_outcomes(self, train_batch: TrainBatch) -> bool:
        """Whether a batch is paid what its rollouts, or what came of them, earned. Judges are paid by what is true, and who
        imitates is not paid."""
        agents = {rollout.agent for rollout in train_batch.rollouts}
        return train_batch.advantages is not None and not any(self.plan.roles[agent].judges for agent in agents)

    def record(self, row: dict[str, Any], timing: Mapping[str, Any]) -> None:
        self.folder.metrics.append(row)
        self.folder.timing.append(dict(timing))
        for tracker in self.trackers:
            tracker.log(row["turn"], select_numbers(row))
        self.timing.append(timing)
        self.view.add(row, self.find_health())

    def find_health(self) -> list[Finding]:
        """Find what is wrong with the run: by its start and its last turns, of which any agent's are among these."""
        rows = self.rows if len(self.rows) <= LATEST else [self.rows[0], *self.rows[-LATEST:]]
        return find_health(rows, self.settings, list(self.timing), self.machine)

    def checkpoint(self) -> None:
        state = {"place": asdict(self.place), "problems": self.problem_cursors, "recipe": self.recipe.state}
        state |= {"config": list_keys(self.config, free=False), "files": seal_files(self.folder.path)}
        self.folder.checkpoints.save(self.place.turn, state, self.engine.save)

    def restore(self, origin: Origin) -> None:
        """Restore a checkpoint; rows after it are cut from the run folder, since those turns run again."""
        try:
            saved = check_shape(Saved, origin.state)
        except ValueError as error:
            raise RunFolderError(f"'{origin.path}' does not hold the state of a run: {error}") from None
        self.engine.load(origin.path)
        self.place, self.problem_cursors, self.recipe.state = saved.place, saved.problems, saved.recipe
        self.folder.rewind(self.place.turn, origin.losses)
        self.rows = self.folder.metrics.rows()
        self.preferences = Preferences(self.folder.preferences.rows())
        recall_problems(self.plan.task, self.folder.path, self.view.say)
        self.view.say(f"resumed at turn {self.place.turn}")

    def ensure_checkpoint(self) -> None:
        """Save a checkpoint of this turn, unless there is one."""
        if not self.folder.checkpoints.path(self.place.turn).exists():
            self.checkpoint()

    def finish_run(self) -> dict[str, Any]:
        self.ensure_checkpoint()
        for policy in filter(self.engine.has_weights, self.plan.policies):
            target = self.folder.path / "models" / policy
            agents = [agent for agent, name in self.plan.agents.items() if name == policy]
            with replace_folder(target) as draft:
                self.engine.export(policy, draft)
                make_note(self.config, policy, agents, self.place.turn).write(draft)
        # Before the report, which says that the run is finished.
        final = {"turn": self.place.turn, "split": self.config.eval.split, "problems": self.evaluate.measure_per_problem()}
        write_atomically(self.folder.path / "final.json", to_json(final) + "\n")
        report = _summarise_run(self.config.recipe, str(self.folder.path), self.place, self.rows, self.engine)
        # Of the metrics alone: a run on another machine is the same run.
        report["health"] = [one.to_json() for one in find_health(self.rows, self.settings)]
        if lost := list_lost_turns(self.rows):
            report["lost_turns"] = lost
        write_atomically(self.folder.path / "report.json", to_json(report) + "\n")
        return report


def _format_report(report: LearnReport, behind: float | None) -> dict[str, Any]:
    """Metrics of an update from rollouts that are `behind` versions old on average; None in a run without staleness."""
    numbers = asdict(report)
    numbers["skipped"] = int(report.skipped is not None)
    if behind is None:
        return {key: value for key, value in numbers.items() if not key.startswith("stale_")}
    return {"staleness": behind} | numbers


@dataclass(frozen=True)
class _Learned:
    """A train batch that a policy has learned from, and the figures of the update."""

    batch: TrainBatch
    figures: Mapping[str, Any]

    @property
    def weight(self) -> int:
        """The weight of its figures among those of the turn's other batches of the policy: its rows."""
        return max(1, len(self.batch.rollouts))


def _name_rewards(sources: Mapping[str, float]) -> dict[str, float]:
    """Name the sources of credit of whom the user's own reward functions pay: these, where it would be right answers."""
    return {REWARDS if source == "answers" else source: share for source, share in sources.items()}


ADDED, LAST, HIGHEST = ("tokens", "steps", "skipped"), ("lr", "version"), ("peak_gib",)
"""Figures of several updates in one turn that are no means over their rows."""


def _merge_learned(policy: str, batches: Sequence[_Learned]) -> dict[str, Any]:
    """Merge the metrics of all updates of a policy in a turn. Counts are added, the rate and the version are the last; other
    figures, notes and shares of credit are means by rows. A source that gave a batch nothing has the share 0 in it."""
    weights = [each.weight for each in batches]
    sources = dict.fromkeys(source for each in batches for source in each.batch.sources)
    out: dict[str, Any] = {}
    for prefix, parts in (("learn", [each.figures for each in batches]), ("credit", [each.batch.notes for each in batches])):
        for key in dict.fromkeys(key for part in parts for key in part):
            found = [(part[key], weight) for part, weight in zip(parts, weights, strict=True) if part.get(key) is not None]
            out[f"{prefix}/{policy}/{key}"] = _merge_values(key if prefix == "learn" else "", found)
    for source in sources:
        shares = [(each.batch.sources.get(source, 0.0), each.weight) for each in batches]
        out[f"flow/{source}>{policy}"] = _merge_values("", shares)
    return out


def _merge_values(name: str, found: Sequence[tuple[Any, int]]) -> Any:
    """Merge the values of one figure, each with its weight; None if there are none. One alone stays as it is."""
    values = [value for value, _ in found]
    if len(values) < 2 or name in LAST:
        return values[-1] if values else None
    if name in ADDED:
        return sum(values)
    if name in HIGHEST:
        return max(values)
    return sum(value * weight for value, weight in found) / sum(weight for _, weight in found)


def _rollout_metrics(rollouts: Rollouts) -> dict[str, Any]:
    """Metrics of the turn's own rollouts, by agent: they need no extra sampling."""
    out: dict[str, Any] = {}
    for agent in dict.fromkeys(rollout.agent for rollout in rollouts):
        own = rollouts.of(agent)
        if isinstance(own[0].parsed.value, Verification):
            numbers = judge_metrics(own)
        elif own[0].grade is not None:
            numbers = solver_metrics(own)
            flat = [len(set(group)) == 1 for group in _group_known_outcomes(own).values() if len(group) > 1]
            numbers["flat_groups"] = float(np.mean(flat)) if flat else None
        else:
            numbers = output_metrics(own)
        out |= {f"rollouts/{agent}/{key}": value for key, value in numbers.items()}
    return out


def _group_known_outcomes(rollouts: Rollouts) -> dict[str, list[float]]:
    """Group the rewards by problem, but for those that are unknown."""
    groups: dict[str, list[float]] = {}
    for rollout in rollouts:
        if not np.isnan(rollout.reward):
            groups.setdefault(rollout.problem.id, []).append(rollout.reward)
    return groups


def _summarise_run(recipe: str, path: str, place: Place, rows: list[dict[str, Any]], engine: Engine) -> dict[str, Any]:
    """Summarise a run: the main metrics at its start and end, and its compute."""
    measured = [row for row in rows if any(key.startswith("eval/") for key in row)]
    first, last = rows[0], measured[-1] if measured else {}  # a start that was lost is unknown, and not the next evaluation

    # What only some recipes measure is in their summaries alone.
    own = [metric.removeprefix("verifier/") for _, metric in HEADLINE if "/start_" in metric and f"eval/{metric}" in last]

    def change(metric: str) -> dict[str, Any]:
        return {"start": first.get(f"eval/{metric}"), "end": last.get(f"eval/{metric}")}

    return {
        "recipe": recipe,
        "run": path,
        "turns": place.turn,
        "lead_turns": place.lead_turns,
        "generator": {
            name: change(f"generator/{name}")
            for name in ("accuracy", "reward", "sound_accuracy", "greedy_accuracy", "step_accuracy")
        },
        "verifier": {
            name: change(f"verifier/{name}") for name in ("f1", "balanced_accuracy", "soft_auroc", "step_accuracy", *own)
        },
        "hacking_gap": change("hacking_gap"),
        "compute": {what: engine.ledger.total(what) for what in ("tokens", "flops")},
    }
