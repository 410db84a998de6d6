"""The health of a run: what is wrong with it, and the setting that helps. Pure functions of what a run folder holds.

Console, `show`, board, reports and `--json` all show these findings. Invariant: whatever rows and settings hold (they may be
another version's, or a stranger's), nothing here fails; every key in `Finding.settings` is one that the run's config can have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from milonga.errors import UserError
from milonga.evals.metrics import mean
from milonga.objectives import make_objective
from milonga.runfolder.flow import PREFIX, REWARDS
from milonga.runfolder.record import Record, Row, to_number
from milonga.text import format_share

Badge = Literal[
    "truncated",
    "unreadable",
    "left out",
    "skipped",
    "no signal",
    "entropy gone",
    "KL away",
    "one-sided",
    "gap grows",
    "gap",
    "trivial F1",
    "guessed",
    "mismatch",
    "memory",
    "slow grader",
]
BADGES: tuple[Badge, ...] = get_args(Badge)
"""The words for what can be wrong, in the order in which it is told: what causes others comes before them."""
HANGS_ON_MACHINE: tuple[Badge, ...] = ("memory", "slow grader")
"""What another machine might not have: it is told, and never kept in results, which are the same wherever they were made."""

RECENT = 5
"""Turns of an agent that are averaged: one alone is noise, and after as many without a signal a run stops."""
LATEST = 50
"""Last rows of a run that are enough to know its health: in cycles of several agents, as many turns of each as are averaged."""
MOST = 0.9
"""Share of outputs from which on they count as all of them."""
OFTEN_CUT = 0.1
"""Share of truncated outputs from which on a higher limit is advised: a batch of ten groups then loses more than one."""
OFTEN_UNREADABLE = 0.2
"""Share of unreadable outputs from which on something is wrong with the prompt rather than with a few outputs."""
FEW_SIGNALS = 0.2
"""Share of rows, or of groups, with a signal below which most of the sampling is for nothing."""
SAME_TEXT = 0.6931
"""Entropy of a whole output, ln 2, below which two samples of a prompt are the same text more often than not: the chance that
they are is at least exp(-entropy)."""
FAR = 0.5
"""KL to the start per token from which on it is away: on average a token is e^0.5 = 1.6 times as likely as it was."""
ONE_SIDED = 0.95
"""Share of equal verdicts from which on they tell nothing."""
RARE = 0.02
"""Share of right, or of wrong, answers below which there may be no problem at all that is solved sometimes."""
CLEAR = 0.1
"""Difference of two shares of solutions below which neither a verifier is one-sided, nor a gap or a guess worth a word. With
fewer than 100 problems behind them it is more: twice the standard error of a share, at most 1 / sqrt(problems)."""
SEVERAL = 3
"""Outputs that must be bad before a share of them is, and verdicts behind a share of verdicts: fewer may be an accident of a
small batch."""
OFF_RATIO = 0.05
"""Mean difference of log-probabilities of sampler and learner from which on it matters: a quarter of the usual range of a
clipped ratio, 0.2, is then used up before anything was learned."""
FEW = 16
"""Solutions with known first errors below which an F1 on them says little."""
NEARLY_FULL = 0.9
"""Share of the GPU's memory that is held at most from which on a longer output may be one too many."""
SLOW = 0.3
"""Share of a turn in which the engine waits for prompts, parsing and grading, from which on they are worth making faster."""
TOO_KIND = "more than are: the generator may be fooling it"
TOO_STRICT = "less than are: it is too strict"
LONG = 1.0
"""Seconds of waiting in a turn below which nobody minds."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a run: a word, one sentence with the figure, and what helps."""

    badge: Badge
    text: str
    help: str = ""
    settings: tuple[str, ...] = ()
    """The config keys that `help` names."""
    severe: bool = False
    """Whether nothing, or next to nothing, is learned while it is so."""
    subject: str = ""
    """The agent, or policy, that it is about, where it is about one: of two agents each may have the same badge."""

    def __str__(self) -> str:
        return f"{self.text}: {self.help}" if self.help else self.text

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"settings": list(self.settings)}


def examine(record: Record) -> list[Finding]:
    """Find what is wrong with a run that was read as a whole."""
    machine = record.machine[-1] if record.machine else None
    return find_health(record.rows, record.config.model_dump(mode="json"), record.timing, machine)


def find_health(
    rows: Sequence[Row], settings: Mapping[str, Any], timing: Sequence[Row] = (), machine: Row | None = None
) -> list[Finding]:
    """Find what is wrong now, what is severe first. `rows` are in the order of their turns: of a long run the first and the
    `LATEST` are enough, and of more only evaluations and peaks count. `settings` is the config as plain data, `machine` the
    last row of machine.jsonl."""
    run = _Run(rows, settings)
    found = [
        *_find_silence(run),
        *_find_skipped(run),
        *_find_bad_outputs(run),
        *_find_left_out(run),
        *_find_drift(run),
        *_find_one_sided(run),
        *(_find_poor_judgement(run) if run.has_learned else ()),
        *_find_full_memory(run, machine),
        *_find_slow_grader(timing),
    ]
    if any((one.badge, one.subject) == ("one-sided", "verifier") for one in found):
        found = [one for one in found if one.badge != "gap"]  # the same, said again
    return sorted(found, key=lambda one: (not one.severe, BADGES.index(one.badge)))


@dataclass(frozen=True)
class _Run:
    """Rows and settings of a run, by questions that have an answer whatever they hold."""

    rows: Sequence[Row]
    settings: Mapping[str, Any]

    @property
    def has_learned(self) -> bool:
        """Whether anybody has had a turn yet: what only the start was like is nothing that the run did."""
        return any(row.get("learner") for row in self.rows)

    @property
    def tail(self) -> Sequence[Row]:
        """The rows that tell how turns go now: a phase that ended before them is over."""
        return self.rows[-LATEST:]

    def values(self, metric: str) -> list[float]:
        return [value for row in self.rows if (value := to_number(row.get(metric))) is not None]

    def latest(self, metric: str) -> list[float]:
        """The last values of a metric of the turns; none where its last is long ago."""
        return [value for row in self.tail if (value := to_number(row.get(metric))) is not None][-RECENT:]

    def recent(self, metric: str) -> float | None:
        """The mean of a metric's last values."""
        return mean(self.latest(metric))

    def now(self, agent: str, metric: str) -> float | None:
        """A figure of an agent's outputs: in the last turns, or in the last evaluation where no turn tells."""
        found = self.recent(f"rollouts/{agent}/{metric}")
        return found if found is not None else next(reversed(self.values(f"eval/{agent}/{metric}")), None)

    def problems(self, agent: str, metric: str) -> float:
        """About how many problems are behind such a figure; what the settings do not say is as many as usual."""
        turns = len(self.latest(f"rollouts/{agent}/{metric}"))
        return turns * (self.number("batch.problems") or 32) if turns else self.number("eval.problems") or 64

    def judged(self, agent: str) -> float:
        """About how many solutions are behind its verdicts: as the metrics count them, or as the settings say."""
        counts = [self.now(agent, f"judged_{side}") for side in ("right", "wrong")]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            return (self.number("batch.rollouts") or 8) * self.problems(agent, "positive_rate")
        return sum(known) * max(1, len(self.latest(f"rollouts/{agent}/judged_right")))

    @property
    def clear(self) -> float:
        """The difference of two shares of an evaluation's solutions from which on it is worth a word."""
        return _find_clear(self.number("eval.problems") or 64.0)

    def is_share(self, agent: str, metric: str, least: float) -> bool:
        """Whether a share of an agent's outputs is at least this, and of several outputs."""
        share, each = self.now(agent, metric), self.number("batch.rollouts") or 8
        return share is not None and share >= least and share * each * self.problems(agent, metric) >= SEVERAL

    def names(self, prefix: str, suffix: str) -> list[str]:
        """The agents, or policies, that have a metric PREFIX/NAME/SUFFIX: in any evaluation, or in the last turns."""
        rows = self.rows if prefix == "eval/" else self.tail
        keys = dict.fromkeys(key for row in rows for key in row if key.startswith(prefix) and key.endswith(suffix))
        return [name for key in keys if "/" not in (name := key.removeprefix(prefix).removesuffix(suffix))]

    def agents(self, suffix: str) -> list[str]:
        """The agents with a metric: by the names of the recipe, and before its first turn by those of the evaluation."""
        return self.names("rollouts/", suffix) or self.names("eval/", suffix)

    def get(self, key: str) -> Any:
        """The value of a dotted config key; None where there is none."""
        found: Any = self.settings
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def number(self, key: str) -> float | None:
        return to_number(self.get(key))

    def policy_of(self, agent: str) -> str | None:
        """The policy of an agent, its own or the one that all share; None where it is not known."""
        known = self.get("policies")
        names = list(known) if isinstance(known, Mapping) else []
        return agent if agent in names else names[0] if len(names) == 1 else None

    def key_of(self, agent: str, name: str) -> str | None:
        """The key of a setting of an agent's policy; None where that is not known."""
        policy = self.policy_of(agent)
        return None if policy is None else f"policies.{policy}.{name}"

    def follows_rewards(self, policy: str) -> bool:
        """Whether a policy learns by a policy gradient; one that imitates, or scores, is meant to become sure."""
        given = self.get(f"policies.{policy}.objective")
        keys = dict(given) if isinstance(given, Mapping) else {}
        try:
            return make_objective(str(keys.pop("preset", "grpo")), keys).loss.kind == "policy_gradient"
        except UserError:  # of another version, or none of ours
            return False


def _find_clear(problems: float) -> float:
    """Find the difference of two shares of solutions to so many problems that is no accident of these problems."""
    return max(CLEAR, 1 / math.sqrt(max(1.0, problems)))


def _set(key: str, value: Any) -> dict[str, Any]:
    """The parts of a finding that advise a value for a key."""
    return {"help": f"--set {key}={value}", "settings": (key,)}


def _name(words: str, *keys: str | None) -> dict[str, Any]:
    """The parts of a finding that advise in words, in which {} stands for the keys; one that is not known is left out."""
    found = tuple(key for key in keys if key is not None)
    return {"help": words.format(*(f"({key})" if key else "" for key in keys)).strip(), "settings": found}


def explains_unreadable(cut: float, unreadable: float) -> bool:
    """Whether most of what cannot be read was cut, by the shares of both: what is cut mostly cannot be read, and another prompt
    would not help."""
    return cut > unreadable / 2


def _find_silence(run: _Run) -> Iterator[Finding]:
    """Rows without an advantage or a weight teach nothing. The run itself says so when it stops for it."""
    stalled = run.rows[-1].get("stalled") if run.rows else None
    if isinstance(stalled, str):
        yield Finding("no signal", stalled, severe=True)
        return
    taught: dict[str, list[float]] = {}
    for row in run.tail:
        if isinstance(agent := row.get("learner"), str) and (value := to_number(row.get("signal"))) is not None:
            taught.setdefault(agent, []).append(value)
    shares = {agent: sum(values[-RECENT:]) / len(values[-RECENT:]) for agent, values in taught.items()}
    for agent, share in shares.items():
        if share < FEW_SIGNALS:
            few = "nothing" if share == 0 else f"only {format_share(share)}"
            text = f"{few} of what the {agent} learns from teaches it anything"
            # Beside one that learns, another may well have nothing to learn for a while.
            found = Finding("no signal", text, severe=not any(shares.values()), subject=agent)
            yield replace(found, **_advise_on_silence(run, agent))


def _advise_on_silence(run: _Run, agent: str) -> dict[str, Any]:
    accuracy, rollouts = run.now(agent, "accuracy"), run.number("batch.rollouts")
    if any((run.now(agent, metric) or 0.0) >= MOST for metric in ("truncated_rate", "invalid_rate")):
        return {}  # that is why, and it has findings of its own
    if accuracy is not None and not 1 - MOST < accuracy < MOST and not run.get("rewards"):
        side = "right" if accuracy >= MOST else "wrong"
        text = (
            f"{format_share(max(accuracy, 1 - accuracy))} of the {agent}'s answers are {side}, so few of its groups have both"
        )
        return {"text": f"{text} outcomes", **_advise_on_problems(run, agent, accuracy)}
    if rollouts is not None:
        return _set("batch.rollouts", round(2 * rollouts))
    return _name("raise --rollouts {}", "batch.rollouts")


def _advise_on_problems(run: _Run, agent: str, accuracy: float) -> dict[str, Any]:
    """Problems that are solved sometimes are only chosen where there are some: of none, the run could not begin."""
    if run.get("task.pass_rate"):
        return {}
    if RARE < accuracy < 1 - RARE:
        return _set("task.pass_rate", "[0.1,0.9]")
    if accuracy > 0.5:
        return _name("take harder problems")
    return _name("take easier problems, or a stronger model {}", run.key_of(agent, "model"))


def _find_bad_outputs(run: _Run) -> Iterator[Finding]:
    """What is cut at the limit, and what cannot be read, is paid nothing that it was meant to be."""
    for agent in run.agents("/invalid_rate"):
        cut, invalid = (run.now(agent, metric) or 0.0 for metric in ("truncated_rate", "invalid_rate"))
        said = run.is_share(agent, "truncated_rate", OFTEN_CUT)
        if said:
            limit = run.number("sampling.max_tokens")
            raised = (
                _set("sampling.max_tokens", round(2 * limit))
                if limit
                else _name("raise --max-tokens {}", "sampling.max_tokens")
            )
            text = f"{format_share(cut)} of the {agent}'s outputs are cut at the limit of their length"
            nothing = max(cut, invalid) >= MOST and explains_unreadable(cut, invalid) and not _pays_own_rewards(run, agent)
            yield Finding("truncated", text, severe=nothing, subject=agent, **raised)
        if run.is_share(agent, "invalid_rate", OFTEN_UNREADABLE) and not (said and explains_unreadable(cut, invalid)):
            text = f"{format_share(invalid)} of the {agent}'s outputs cannot be read"
            nothing = invalid >= MOST and not _pays_own_rewards(run, agent)
            yield Finding("unreadable", text, severe=nothing, subject=agent, **_advise_on_reading(run, agent))


def _pays_own_rewards(run: _Run, agent: str) -> bool:
    """Whether reward functions of the user's own pay this agent, whatever can be read."""
    names = [agent] if agent == "verifier" else [agent, run.policy_of(agent)]  # a judge may share a policy, but not its pay
    paid = agent == "generator" or any(any(run.latest(f"{PREFIX}{REWARDS}>{name}")) for name in names if name)
    return paid and bool(run.get("rewards"))


def _advise_on_reading(run: _Run, agent: str) -> dict[str, Any]:
    if _pays_own_rewards(run, agent):
        return _name("'milonga show' says why; rewards of your own are paid all the same")
    if run.get("dialect") == "tagged":
        return _set("dialect", "plain")
    return _name("'milonga show' says why; try another model or another prompt {}", run.key_of(agent, "prompt"))


def _find_drift(run: _Run) -> Iterator[Finding]:
    """Entropy, the distance to the start, and that of sampler and learner, of each policy."""
    for policy in run.names("learn/", "/entropy"):
        entropy, length = run.recent(f"learn/{policy}/entropy"), run.now(policy, "length")
        # Who is nearly always right has nothing left to explore.
        done = (run.now(policy, "accuracy") or 0.0) >= MOST
        if entropy is not None and length and 0 <= entropy * length < SAME_TEXT and not done and run.follows_rewards(policy):
            text = f"the {policy}'s entropy is {entropy:.4f} a token: most samples of a prompt are the same text"
            yield Finding("entropy gone", text, subject=policy, **_advise_on_entropy(run, policy))
        kl = run.recent(f"learn/{policy}/kl")
        if kl is not None and kl >= FAR:
            text = f"the {policy} is {kl:.2f} away from its start (KL a token)"
            yield Finding("KL away", text, subject=policy, **_lower_rate(run, policy))
        off = None if run.number("staleness") else run.recent(f"learn/{policy}/mismatch")
        if off is not None and off >= OFF_RATIO:
            text = f"the log-probabilities of the {policy}'s sampler and learner differ by {off:.3f}"
            yield Finding("mismatch", text, subject=policy, **_advise_on_mismatch(run, policy))


def _advise_on_mismatch(run: _Run, policy: str) -> dict[str, Any]:
    """Exact weights, then a sampler of our own; where both are so, no setting is known that helps."""
    if run.get(f"policies.{policy}.dtype") != "float32":
        return _set(f"policies.{policy}.dtype", "float32")
    return _set("sampling.sampler", "auto") if run.get("sampling.sampler") not in (None, "auto") else {}


def _advise_on_entropy(run: _Run, policy: str) -> dict[str, Any]:
    coefficient = run.number(f"policies.{policy}.objective.entropy_coef")
    return _set(f"policies.{policy}.objective.entropy_coef", 2 * coefficient if coefficient else 0.001)


def _lower_rate(run: _Run, policy: str) -> dict[str, Any]:
    key, rates = f"policies.{policy}.lr", run.values(f"learn/{policy}/lr")
    rate = run.number(key) or max(rates, default=0.0)
    return _set(key, f"{rate / 2:.2g}") if rate else _name("lower the learning rate {}", key)


def _find_skipped(run: _Run) -> Iterator[Finding]:
    """An update is skipped where its loss or gradient is not finite."""
    for policy in run.names("learn/", "/skipped"):
        metric = f"learn/{policy}/skipped"
        values = [value for row in run.tail if (value := to_number(row.get(metric))) is not None]
        if any(values):
            times = "all" if all(values) else f"{sum(map(bool, values))}"
            text = f"{times} of the {policy}'s last {len(values)} updates were skipped: something in them was not finite"
            yield Finding("skipped", text, severe=all(values[-RECENT:]), subject=policy, **_lower_rate(run, policy))


def _find_left_out(run: _Run) -> Iterator[Finding]:
    """Samples are left out that are too long for the model, or whose grader failed."""
    turns = [value for row in run.tail if (value := to_number(row.get("dropped"))) is not None]
    each = (run.number("batch.problems") or 32) * (run.number("batch.rollouts") or 8)
    if sum(turns) >= SEVERAL:
        share = sum(turns) / len(turns) / each
        text = f"{sum(turns):.0f} samples of the last {len(turns)} turns were left out: too long, or their grader failed"
        yield Finding("left out", text, severe=share >= MOST, **_name("the lines of the run say which"))


def _find_one_sided(run: _Run) -> Iterator[Finding]:
    """Verdicts are one-sided where they call less than half, or more than twice, as many solutions right as are right: of those
    that were judged, which need not be the generator's of these turns, and by the verdicts that can be read, if these are
    several."""
    for agent in run.agents("/positive_rate"):
        said, readable = run.now(agent, "positive_rate"), 1 - (run.now(agent, "unparsed_rate") or 0.0)
        true = run.now(agent, "share_right")
        if true is None:  # a run of an older version
            true = run.now("generator", "accuracy")
        if said is None or readable <= 1 - MOST or round(readable * run.judged(agent)) < SEVERAL:
            continue
        said = min(1.0, said / readable)
        if true is None:
            away = not 1 - ONE_SIDED < said < ONE_SIDED
        else:
            clear = _find_clear(readable * run.problems(agent, "positive_rate"))
            away = abs(said - true) >= clear and (not true / 2 <= said <= 2 * true or not 1 - ONE_SIDED < said < ONE_SIDED)
        if away:
            than = "" if true is None else f", and {format_share(true)} are"
            text = f"the {agent} calls {format_share(said)} of the solutions right{than}: its verdicts are one-sided"
            yield Finding("one-sided", text, subject=agent, **_advise_on_judge(run, agent, "warmup", "n_verifier"))


def _find_poor_judgement(run: _Run) -> Iterator[Finding]:
    """What evaluations say of the verifier, and of what it should prevent."""
    yield from _find_gap(run)
    yield from _find_trivial_f1(run)
    yield from _find_guessed(run)


def _find_gap(run: _Run) -> Iterator[Finding]:
    """A hacking gap grows where more wrong solutions are called right than at the start; a start that was too strict counts as
    none, since what goes from there to none has come closer to the truth."""
    gaps = run.values("eval/hacking_gap")
    grown = gaps[-1] - max(gaps[0], 0.0) if gaps else 0.0
    if gaps and gaps[-1] >= CLEAR and grown >= run.clear:
        text = f"the verifier's score has moved {100 * grown:.0f} points away from the true accuracy, to "
        text += f"{100 * gaps[-1]:.0f} above it: the generator may be fooling it"
        yield Finding("gap grows", text, subject="verifier", **_advise_on_judge(run, "verifier", "n_verifier"))
    elif gaps and abs(gaps[-1]) >= run.clear:
        points = f"{100 * abs(gaps[-1]):.0f} percentage points"
        text = f"the share of solutions that the verifier calls right is {points} {TOO_KIND if gaps[-1] > 0 else TOO_STRICT}"
        yield Finding("gap", text, subject="verifier", **_advise_on_judge(run, "verifier", "n_verifier"))


def _find_trivial_f1(run: _Run) -> Iterator[Finding]:
    """An F1 on first errors that needs no look at the steps."""
    found, trivial = (run.values(f"eval/verifier/{name}")[-1:] for name in ("f1", "trivial/error_modal"))
    enough = (run.number("eval.bench") or 64) >= FEW
    if found and trivial and found[0] <= trivial[0] and enough:
        text = f"the verifier's F1 on first errors, {found[0]:.3f}, is not above {trivial[0]:.3f}, which needs no look at the "
        text += "steps: knowing whether there is an error, and naming the most common place"
        yield Finding("trivial F1", text, subject="verifier", **_advise_on_judge(run, "verifier", "warmup", "n_verifier"))


def _find_guessed(run: _Run) -> Iterator[Finding]:
    """Right answers behind wrong steps."""
    accuracy, sound = (run.values(f"eval/generator/{name}")[-1:] for name in ("accuracy", "sound_accuracy"))
    if accuracy and sound and accuracy[0] - sound[0] >= run.clear:
        text = f"{format_share(accuracy[0] - sound[0])} of the solutions have a right answer and a wrong step"
        yield Finding("guessed", text, "answers may be guessed: a verifier's step rewards are for that", subject="generator")


def _advise_on_judge(run: _Run, agent: str, *options: str) -> dict[str, Any]:
    """Advise twice as many turns by the first of these options that gives it some, or else another judge."""
    policy = run.policy_of(agent)
    learns = any(f"learn/{policy}/loss" in row for row in run.rows) or run.number(f"options.n_{agent}")
    if policy is None or not learns:
        if not run.has_learned:
            return {}  # whose turns come, the rows do not say yet
        return _name("take a recipe that trains it, or a stronger one {}", run.key_of(agent, "model"))
    for option in options:
        if turns := run.number(f"options.{option}"):
            return _set(f"options.{option}", max(1, round(2 * turns)))
    return _name("give it more of the turns")


def _find_full_memory(run: _Run, machine: Row | None) -> Iterator[Finding]:
    sizes = (machine or {}).get("gpu_gib")
    known = [size for one in sizes if (size := to_number(one))] if isinstance(sizes, list) else []
    begun = to_number((machine or {}).get("turn"))
    if begun is not None:  # earlier turns may have been on another GPU
        run = replace(run, rows=[row for row in run.rows if (to_number(row.get("turn")) or 0.0) > begun])
    for policy in run.names("learn/", "/peak_gib") if known else ():
        peak = max(run.values(f"learn/{policy}/peak_gib"), default=0.0)
        if peak >= NEARLY_FULL * min(known):
            text = f"learning the {policy} held {peak:.1f} of {min(known):.1f} GiB of the GPU"
            yield Finding("memory", text, subject=policy, **_advise_on_memory(run, policy))


def _advise_on_memory(run: _Run, policy: str) -> dict[str, Any]:
    place = f"policies.{policy}"
    if tokens := run.number(f"{place}.micro_tokens"):
        return _set(f"{place}.micro_tokens", max(1, round(tokens / 2)))
    spared = next((key for key in ("recompute", "offload") if not run.get(f"{place}.{key}")), None)
    return _set(f"{place}.{spared}", "true") if spared else _name("shorten what is learned at once {}", f"{place}.micro_tokens")


def _find_slow_grader(timing: Sequence[Row]) -> Iterator[Finding]:
    turns = [row for row in timing if to_number(row.get("turn_s"))][-RECENT:]
    whole, waited = (mean([to_number(row.get(key)) or 0.0 for row in turns]) for key in ("turn_s", "idle_s"))
    if whole and waited and waited >= max(LONG, SLOW * whole):
        text = f"{format_share(waited / whole)} of a turn, {waited:.1f} s, go into prompts, parsing and grading"
        help_ = "make the grader faster, or let it work while others learn (engine=ray with placement.samplers and staleness)"
        yield Finding("slow grader", text, help_, ("engine", "placement.samplers", "staleness"))
