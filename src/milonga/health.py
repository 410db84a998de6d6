"""The health of a run: what is wrong with it, and the setting that helps. Pure functions of what a run folder holds.

Console, `show`, board, reports and `--json` all show these findings. Invariant: whatever rows and settings hold (they may be
another version's, or a stranger's), nothing here fails; every key in `Finding.settings` is one that the run's config can have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from milonga.errors import UserError
from milonga.evals.metrics import mean
from milonga.objectives import make_objective
from milonga.runfolder.record import Record, Row, to_number
from milonga.text import format_share

Badge = Literal[
    "no signal",
    "unreadable",
    "truncated",
    "entropy gone",
    "KL away",
    "one-sided",
    "gap grows",
    "mismatch",
    "memory",
    "slow grader",
]
BADGES: tuple[Badge, ...] = get_args(Badge)
"""The words for what can be wrong, in the order in which it is told."""

RECENT = 5
"""Turns of an agent that are averaged: one alone is noise, and after as many without a signal a run stops."""
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
CLEAR = 0.1
"""Difference of two shares of solutions below which neither a verifier is one-sided, nor a gap worth a word: the noise of 64
problems with one solution each is 0.06."""
OFF_RATIO = 0.05
"""Mean difference of log-probabilities of sampler and learner from which on it matters: a quarter of the usual range of a
clipped ratio, 0.2, is then used up before anything was learned."""
NEARLY_FULL = 0.9
"""Share of the GPU's memory that is held at most from which on a longer output may be one too many."""
SLOW = 0.3
"""Share of a turn in which the engine waits for prompts, parsing and grading, from which on they are worth making faster."""
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

    def __str__(self) -> str:
        return f"{self.text}: {self.help}" if self.help else self.text


def examine(record: Record) -> list[Finding]:
    """Find what is wrong with a run that was read as a whole."""
    machine = record.machine[-1] if record.machine else None
    return find_health(record.rows, record.config.model_dump(mode="json"), record.timing, machine)


def find_health(
    rows: Sequence[Row], settings: Mapping[str, Any], timing: Sequence[Row] = (), machine: Row | None = None
) -> list[Finding]:
    """Find what is wrong now, what is severe first. `rows` are in the order of their turns: of a long run the first and a few
    dozen of the last ones are enough. `settings` is the config as plain data, `machine` the last row of machine.jsonl."""
    run = _Run(rows, settings)
    found = [
        *_find_silence(run),
        *_find_bad_outputs(run),
        *_find_drift(run),
        *_find_one_sided(run),
        *_find_gap(run),
        *_find_full_memory(run, machine),
        *_find_slow_grader(timing),
    ]
    return sorted(found, key=lambda one: (not one.severe, BADGES.index(one.badge)))


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The findings as data, as `--json` prints them."""
    return [asdict(one) | {"settings": list(one.settings)} for one in findings]


@dataclass(frozen=True)
class _Run:
    """Rows and settings of a run, by questions that have an answer whatever they hold."""

    rows: Sequence[Row]
    settings: Mapping[str, Any]

    def values(self, metric: str) -> list[float]:
        return [value for row in self.rows if (value := to_number(row.get(metric))) is not None]

    def recent(self, metric: str) -> float | None:
        """The mean of a metric's last values."""
        return mean(self.values(metric)[-RECENT:])

    def now(self, agent: str, metric: str) -> float | None:
        """A figure of an agent's outputs: in the last turns, or in the last evaluation where no turn tells."""
        found = self.recent(f"rollouts/{agent}/{metric}")
        return found if found is not None else next(reversed(self.values(f"eval/{agent}/{metric}")), None)

    def names(self, prefix: str, suffix: str) -> list[str]:
        """The agents, or policies, that have a metric PREFIX/NAME/SUFFIX."""
        keys = dict.fromkeys(key for row in self.rows for key in row if key.startswith(prefix) and key.endswith(suffix))
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

    def key_of(self, agent: str, name: str) -> str | None:
        """The key of a setting of an agent's policy, its own or the one that all share; None where it is not known."""
        known = self.get("policies")
        names = list(known) if isinstance(known, Mapping) else []
        policy = agent if agent in names else names[0] if len(names) == 1 else None
        return None if policy is None else f"policies.{policy}.{name}"

    def follows_rewards(self, policy: str) -> bool:
        """Whether a policy learns by a policy gradient; one that imitates, or scores, is meant to become sure."""
        given = self.get(f"policies.{policy}.objective")
        keys = dict(given) if isinstance(given, Mapping) else {}
        try:
            return make_objective(str(keys.pop("preset", "grpo")), keys).loss.kind == "policy_gradient"
        except UserError:  # of another version, or none of ours
            return False


def _set(key: str, value: Any) -> dict[str, Any]:
    """The parts of a finding that advise a value for a key."""
    return {"help": f"--set {key}={value}", "settings": (key,)}


def _name(words: str, *keys: str | None) -> dict[str, Any]:
    """The parts of a finding that advise in words, in which {} stands for the keys; one that is not known is left out."""
    found = tuple(key for key in keys if key is not None)
    return {"help": words.format(*(f"({key})" if key else "" for key in keys)).strip(), "settings": found}


def _find_silence(run: _Run) -> Iterator[Finding]:
    """Rows without an advantage or a weight teach nothing. The run itself says so when it stops for it."""
    stalled = run.rows[-1].get("stalled") if run.rows else None
    if isinstance(stalled, str):
        yield Finding("no signal", stalled, severe=True)
        return
    for agent in dict.fromkeys(str(row["learner"]) for row in run.rows if row.get("learner")):
        signals = [
            value for row in run.rows if row.get("learner") == agent and (value := to_number(row.get("signal"))) is not None
        ]
        share = mean(signals[-RECENT:])
        if share is not None and share < FEW_SIGNALS:
            few = "nothing" if share == 0 else f"only {format_share(share)}"
            finding = Finding("no signal", f"{few} of what the {agent} samples teaches it anything", severe=share == 0)
            yield replace(finding, **_advise_on_silence(run, agent))


def _advise_on_silence(run: _Run, agent: str) -> dict[str, Any]:
    accuracy, rollouts = run.now(agent, "accuracy"), run.number("batch.rollouts")
    if accuracy is not None and not 1 - MOST < accuracy < MOST and not run.get("rewards"):
        side = "right" if accuracy >= MOST else "wrong"
        text = (
            f"{format_share(max(accuracy, 1 - accuracy))} of the {agent}'s answers are {side}, so few of its groups have both"
        )
        fitting = {} if run.get("task.pass_rate") else _set("task.pass_rate", "[0.1,0.9]")
        return {"text": f"{text} outcomes", **fitting}
    if rollouts is not None:
        return _set("batch.rollouts", round(2 * rollouts))
    return _name("raise --rollouts {}", "batch.rollouts")


def _find_bad_outputs(run: _Run) -> Iterator[Finding]:
    """What is cut at the limit, and what cannot be read, is paid nothing that it was meant to be."""
    for agent in run.agents("/invalid_rate"):
        cut, invalid = run.now(agent, "truncated_rate"), run.now(agent, "invalid_rate")
        if cut is not None and cut >= OFTEN_CUT:
            limit = run.number("sampling.max_tokens")
            raised = (
                _set("sampling.max_tokens", round(2 * limit))
                if limit
                else _name("raise --max-tokens {}", "sampling.max_tokens")
            )
            text = f"{format_share(cut)} of the {agent}'s outputs are cut at the limit of their length"
            yield Finding("truncated", text, severe=cut >= MOST, **raised)
        if invalid is not None and invalid >= OFTEN_UNREADABLE:
            text = f"{format_share(invalid)} of the {agent}'s outputs cannot be read"
            yield Finding("unreadable", text, severe=invalid >= MOST, **_advise_on_reading(run, agent))


def _advise_on_reading(run: _Run, agent: str) -> dict[str, Any]:
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
            yield Finding("entropy gone", text, **_advise_on_entropy(run, policy))
        kl = run.recent(f"learn/{policy}/kl")
        if kl is not None and kl >= FAR:
            text = f"the {policy} is {kl:.2f} away from its start (KL a token)"
            yield Finding("KL away", text, **_lower_rate(run, policy))
        off = None if run.number("staleness") else run.recent(f"learn/{policy}/mismatch")
        if off is not None and off >= OFF_RATIO:
            text = f"the log-probabilities of the {policy}'s sampler and learner differ by {off:.3f}"
            exact = run.get(f"policies.{policy}.dtype") == "float32"
            helps = _set("sampling.sampler", "auto") if exact else _set(f"policies.{policy}.dtype", "float32")
            yield Finding("mismatch", text, **helps)


def _advise_on_entropy(run: _Run, policy: str) -> dict[str, Any]:
    coefficient = run.number(f"policies.{policy}.objective.entropy_coef")
    return _set(f"policies.{policy}.objective.entropy_coef", 2 * coefficient if coefficient else 0.001)


def _lower_rate(run: _Run, policy: str) -> dict[str, Any]:
    key, rates = f"policies.{policy}.lr", run.values(f"learn/{policy}/lr")
    rate = run.number(key) or max(rates, default=0.0)
    return _set(key, f"{rate / 2:.2g}") if rate else _name("lower the learning rate {}", key)


def _find_one_sided(run: _Run) -> Iterator[Finding]:
    """Verdicts are one-sided where they call less than half, or more than twice, as many solutions right as are right."""
    for agent in run.agents("/positive_rate"):
        said, true = run.now(agent, "positive_rate"), run.now("generator", "accuracy")
        if said is None:
            continue
        if true is None:
            away = not 1 - ONE_SIDED < said < ONE_SIDED
        else:
            away = abs(said - true) >= CLEAR and (not true / 2 <= said <= 2 * true or not 1 - ONE_SIDED < said < ONE_SIDED)
        if away:
            than = "" if true is None else f", of which {format_share(true)} are"
            text = f"the {agent} calls {format_share(said)} of the solutions right{than}: its verdicts are one-sided"
            yield Finding("one-sided", text, **_advise_on_judge(run, agent, "warmup"))


def _find_gap(run: _Run) -> Iterator[Finding]:
    """A hacking gap grows where more wrong solutions are called right than at the start."""
    gaps = run.values("eval/hacking_gap")
    if gaps and gaps[-1] >= CLEAR and gaps[-1] - gaps[0] >= CLEAR:
        text = f"the verifier's score has moved {100 * (gaps[-1] - gaps[0]):.0f} points away from the true accuracy, to "
        text += f"{100 * gaps[-1]:.0f} above it: the generator may be fooling it"
        yield Finding("gap grows", text, **_advise_on_judge(run, "verifier", "n_verifier"))


def _advise_on_judge(run: _Run, agent: str, option: str) -> dict[str, Any]:
    """Advise twice as many turns of an option that the recipe has, or else another judge."""
    turns = run.number(f"options.{option}")
    if turns is not None and f"learn/{agent}/loss" in {key for row in run.rows for key in row}:
        return _set(f"options.{option}", max(1, round(2 * turns)))
    return _name("take a recipe that trains it, or a stronger one {}", run.key_of(agent, "model"))


def _find_full_memory(run: _Run, machine: Row | None) -> Iterator[Finding]:
    sizes = (machine or {}).get("gpu_gib")
    known = [size for one in sizes if (size := to_number(one))] if isinstance(sizes, list) else []
    for policy in run.names("learn/", "/peak_gib") if known else ():
        peak = max(run.values(f"learn/{policy}/peak_gib"), default=0.0)
        if peak >= NEARLY_FULL * min(known):
            text = f"learning the {policy} held {peak:.1f} of {min(known):.1f} GiB of the GPU"
            yield Finding("memory", text, **_advise_on_memory(run, policy))


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
