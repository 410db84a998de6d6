"""The chapter of a report about several runs: settings that differ, final metrics, overlaid curves.

There are no confidence intervals here: runs that were not planned as pairs give none. Use `milonga compare` for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from milonga.report.blocks import Chapter, Figures, Section, Sheet
from milonga.report.curves import build_metric_figures, build_pair_figure
from milonga.runfolder.record import HEADLINE, Record
from milonga.text import clip_text, format_amount, format_number

MOST_SETTINGS = 40


def build_joint_chapter(records: Sequence[Record]) -> Chapter:
    names = _number_duplicates([record.name for record in records])
    pair = build_pair_figure(records, names)
    sections = [
        Section("How they ended", [build_outcome_sheet(records, names)]),
        *([Section("Settings that differ", [found])] if (found := _build_settings_sheet(records, names)).rows else []),
        Section("Curves", [Figures([*build_metric_figures(records, names), *([pair] if pair is not None else [])])]),
    ]
    return Chapter("Side by side", f"{len(records)} runs: {', '.join(names)}", sections)


def _number_duplicates(names: Sequence[str]) -> list[str]:
    """Make names unique: repeated names get a number."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def build_outcome_sheet(records: Sequence[Record], names: Sequence[str]) -> Sheet:
    measured = [
        (label, f"eval/{metric}") for label, metric in HEADLINE if any(r.get_curve(f"eval/{metric}")[0] for r in records)
    ]
    rows = []
    for name, record in zip(names, records, strict=True):
        ends = [record.get_curve(metric)[1] for _, metric in measured]
        values = [f"{format_number(v[0])} → {format_number(v[-1])}" if v else "—" for v in ends]
        costs = [record.get_curve(f"compute/{what}")[1] for what in ("tokens", "flops")]
        rows.append(
            (
                name,
                record.config.recipe,
                str(record.last["turn"]),
                *values,
                *(format_amount(c[-1] if c else None) for c in costs),
            )
        )
    return Sheet("", ("run", "recipe", "turns", *(label for label, _ in measured), "tokens", "FLOPs"), rows)


def _build_settings_sheet(records: Sequence[Record], names: Sequence[str]) -> Sheet:
    """Build the table of config keys that differ between runs. Keys that only one recipe or policy has are left out."""
    flats = [_flatten_config(record.config.model_dump(mode="json")) for record in records]
    keys = dict.fromkeys(key for one in flats for key in one)
    policies = set.intersection(*(set(record.config.policies) for record in records))
    recipes = {record.config.recipe for record in records}

    def shared(key: str) -> bool:
        section, name, *_ = [*key.split("."), ""]
        if section == "options" and len(recipes) > 1:
            return all(key in one for one in flats)
        return section != "policies" or name in policies

    differing = [key for key in keys if shared(key) and len({one.get(key) for one in flats}) > 1][:MOST_SETTINGS]
    rows = [(key, *(clip_text(one.get(key, "—"), 60) for one in flats)) for key in differing]
    return Sheet("", ("setting", *names), rows)


def _flatten_config(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    out: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        out |= _flatten_config(value, f"{name}.") if isinstance(value, Mapping) else {} if value is None else {name: str(value)}
    return out
