"""The transcript of a problem: its rollouts step by step, with the verifier's verdict beside the true label of each step."""

from __future__ import annotations

from milonga.board.browse import Check, Note, RolloutView, Step, Transcript
from milonga.board.pages.parts import (
    TINY,
    add_box,
    add_text,
    format_advantage,
    format_number,
    get_verdict_mark,
    show_advantage_strip,
    show_token_advantages,
)

UNSEEN = "nothing that can be read"


def show_transcript(found: Transcript, opened: str | None) -> None:
    """Show a transcript. `opened` lists what is unfolded, as links carry it; None unfolds all rollouts, no verifications."""
    keys = {str(at) for at in range(len(found.rollouts))} if opened is None else set(opened.split(","))
    advantages = [value for rollout in found.rollouts for value in _collect_advantages(rollout)]
    scale = max(map(abs, advantages), default=0.0)
    add_text(found.question, "question", "p")
    add_text(found.problem, "id", "p")
    _show_legend(scale, bool(advantages))
    for at, rollout in enumerate(found.rollouts):
        _show_rollout(rollout, at, keys, scale)
    if found.left_out:
        add_text(f"{found.left_out} more rollouts are not shown", "note")


def _collect_advantages(rollout: RolloutView) -> list[float]:
    """Collect the advantages of a rollout and of its verifications, for one colour scale on the page."""
    own = [value for step in rollout.steps for value in step.advantages] + list(rollout.rest_advantages)
    return own + [value for check in rollout.checks for value in check.advantages]


def _show_legend(scale: float, credited: bool) -> None:
    with add_box("legend"):
        add_text("the verifier's verdict, then the exact truth where it is known:")
        add_text("✓ right", "mark right")
        add_text("✗ wrong", "mark wrong")
        add_text("· none", "mark unknown")
        add_text("where they differ, the truth is framed")
        if scale:
            add_text(f"advantage per token: {format_advantage(-scale, scale)}", "apart")
            show_advantage_strip(tuple(scale * (k / 10 - 1) for k in range(21)), scale)
            add_text(format_advantage(scale, scale))
            if scale < TINY:
                add_text(
                    "all of them are tiny: colours are relative to the largest here, and say nothing beyond it", "relative"
                )
        elif credited:
            add_text("every advantage here is zero: nothing was learned from it", "apart relative")


def _show_rollout(rollout: RolloutView, at: int, keys: set[str], scale: float) -> None:
    key = str(at)
    with add_box("rollout", "details", id=f"r{at}", data_key=key, data_item=key, open=True if key in keys else None):
        with add_box("", "summary"):
            add_text(f"{rollout.agent} {at + 1}", "name")
            symbol, kind = get_verdict_mark(rollout.correct)
            truth = {True: "right", False: "wrong", None: "not graded"}[rollout.correct]
            add_text(f"{symbol} {truth}", f"badge {kind}")
            add_text("no answer" if rollout.answer is None else f"answer {rollout.answer}", "answer")
            fooled = sum(check.fooled for check in rollout.checks)
            contradictions = sum(check.contradiction for check in rollout.checks)
            if fooled:
                add_text(f"⚑ fooled {fooled} of {len(rollout.checks)}", "badge fooled")
            if contradictions:
                add_text(f"≠ {contradictions} contradict themselves", "badge contradiction")
            if rollout.invalid:
                add_text(f"∅ {rollout.invalid}", "badge invalid")
            if rollout.finish == "length":
                add_text("cut off", "badge")
            add_text(rollout.policy, "id")
        for number_, step in enumerate(rollout.steps):
            _show_step(step, rollout, f"{at}.{number_}", keys, scale)
        _show_rest(rollout, f"{at}.end", keys, scale)


def _show_step(step: Step, rollout: RolloutView, key: str, keys: set[str], scale: float) -> None:
    symbol, kind = get_verdict_mark(step.verdict)
    folds = bool(step.notes)
    told = {True: "the verifier says right", False: "the verifier says wrong", None: "no verdict"}[step.verdict]
    with add_box(
        f"step {kind}" + ("" if folds else " bare"), "details", data_key=key, data_item=key, open=_get_open_state(key, keys)
    ):
        with add_box("", "summary"):
            add_text(symbol + _format_tally(step.notes), f"mark {kind}", title=told)
            _show_truth(step.truth, step.verdict)
            _show_advantages(step.advantages, scale)
            show_token_advantages(step.text, "text", step.advantages, step.ends, scale)
        for note in step.notes:
            _show_note(note, rollout.checks[note.check])


def _show_advantages(advantages: tuple[float, ...], scale: float) -> None:
    """Show the mean advantage of some tokens, and each advantage as a colour."""
    with add_box("credit"):
        if advantages:
            add_text(format_advantage(sum(advantages) / len(advantages), scale), "mean")
            show_advantage_strip(advantages, scale)


def _get_open_state(key: str, keys: set[str]) -> bool | None:
    return True if key in keys else None


def _show_truth(truth: bool | None, said: bool | None) -> None:
    """Show the true label; framed if the verifier's verdict differs."""
    symbol, kind = get_verdict_mark(truth)
    off = " off" if None not in (truth, said) and truth != said else ""
    text = {True: f"{symbol} true", False: f"{symbol} false", None: ""}[truth]
    add_text(text, f"truth {kind}{off}", title="the exact truth" if text else None)


def _format_tally(notes: tuple[Note, ...]) -> str:
    """Format how many of several verifications call the step right; empty for fewer than two."""
    if len(notes) < 2:
        return ""
    return f" {sum(note.right is True for note in notes)}/{len(notes)}"


def _show_note(note: Note, check: Check) -> None:
    symbol, kind = get_verdict_mark(note.right)
    with add_box("note-line"):
        add_text(symbol, f"mark {kind}")
        add_text(note.text or ("no words, a score" if note.score is not None else "no words"), "text")
        if note.score is not None:
            add_text(format_number(note.score), "score")
        add_text(check.policy, "id")


def _show_rest(rollout: RolloutView, key: str, keys: set[str], scale: float) -> None:
    """Show the text after the last step, and under it the final verdict of each verification."""
    finals = [check.final for check in rollout.checks if check.final is not None]
    said = None if 2 * sum(finals) == len(finals) else 2 * sum(finals) > len(finals)
    symbol, kind = get_verdict_mark(said)
    folds = "" if rollout.checks else " bare"
    with add_box(f"step end {kind}{folds}", "details", data_key=key, data_item=key, open=_get_open_state(key, keys)):
        with add_box("", "summary"):
            share = f" {sum(finals)}/{len(rollout.checks)}" if len(rollout.checks) > 1 else ""
            add_text(symbol + share, f"mark {kind}", title="the final verdict")
            _show_truth(rollout.correct, said)
            _show_advantages(rollout.rest_advantages, scale)
            show_token_advantages(
                rollout.rest or "(nothing after the last step)", "text", rollout.rest_advantages, rollout.rest_ends, scale
            )
        for check in rollout.checks:
            _show_check(check, scale)


def _show_check(check: Check, scale: float) -> None:
    symbol, kind = get_verdict_mark(check.final)
    with add_box("note-line"):
        add_text(symbol, f"mark {kind}")
        # A verification that could not be parsed is shown in full: no part of it stands under a step.
        add_text((check.text if check.invalid else check.rest) or UNSEEN, "text")
        if check.score is not None:
            add_text(format_number(check.score), "score")
        if check.fooled:
            add_text("⚑ fooled", "badge fooled")
        if check.contradiction:
            add_text("≠ contradicts its steps", "badge contradiction")
        if check.invalid:
            add_text(f"∅ {check.invalid}", "badge invalid")
        add_text(check.policy or check.agent, "id")
        _show_advantages(check.advantages, scale)
