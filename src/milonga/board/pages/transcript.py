"""The transcript of a problem: its rollouts step by step, with the verifier's verdict beside the true label of each step."""

from __future__ import annotations

from milonga.board.browse import Check, Note, Rollout, Step, Transcript
from milonga.board.pages.parts import box, heated, mark, number, strip, words

UNSEEN = "nothing that can be read"


def show_transcript(found: Transcript, opened: str | None) -> None:
    """Show a transcript. `opened` lists what is unfolded, as links carry it; None unfolds all rollouts, no verifications."""
    keys = {str(at) for at in range(len(found.rollouts))} if opened is None else set(opened.split(","))
    scale = max((abs(value) for rollout in found.rollouts for value in all_credit(rollout)), default=0.0)
    words(found.question, "question", "p")
    words(found.problem, "id", "p")
    legend(scale)
    for at, rollout in enumerate(found.rollouts):
        show_rollout(rollout, at, keys, scale)
    if found.left_out:
        words(f"{found.left_out} more rollouts are not shown", "note")


def all_credit(rollout: Rollout) -> list[float]:
    """Collect the advantages of a rollout and of its verifications, for one colour scale on the page."""
    own = [value for step in rollout.steps for value in step.advantages] + list(rollout.rest_advantages)
    return own + [value for check in rollout.checks for value in check.advantages]


def legend(scale: float) -> None:
    with box("legend"):
        words("the verifier's verdict, then the exact truth where it is known:")
        words("✓ right", "mark right")
        words("✗ wrong", "mark wrong")
        words("· none", "mark unknown")
        words("where they differ, the truth is framed")
        if scale:
            words(f"advantage per token: −{scale:.2f}", "apart")
            strip(tuple(scale * (k / 10 - 1) for k in range(21)), scale)
            words(f"+{scale:.2f}")


def show_rollout(rollout: Rollout, at: int, keys: set[str], scale: float) -> None:
    key = str(at)
    with box("rollout", "details", id=f"r{at}", data_key=key, data_item=key, open=True if key in keys else None):
        with box("", "summary"):
            words(f"{rollout.seat} {at + 1}", "name")
            symbol, kind = mark(rollout.correct)
            truth = {True: "right", False: "wrong", None: "not graded"}[rollout.correct]
            words(f"{symbol} {truth}", f"badge {kind}")
            words("no answer" if rollout.answer is None else f"answer {rollout.answer}", "answer")
            fooled = sum(check.fooled for check in rollout.checks)
            contradictions = sum(check.contradiction for check in rollout.checks)
            if fooled:
                words(f"⚑ fooled {fooled} of {len(rollout.checks)}", "badge fooled")
            if contradictions:
                words(f"≠ {contradictions} contradict themselves", "badge contradiction")
            if rollout.invalid:
                words(f"∅ {rollout.invalid}", "badge invalid")
            if rollout.finish == "length":
                words("cut off", "badge")
            words(rollout.policy, "id")
        for number_, step in enumerate(rollout.steps):
            show_step(step, rollout, f"{at}.{number_}", keys, scale)
        show_rest(rollout, f"{at}.end", keys, scale)


def show_step(step: Step, rollout: Rollout, key: str, keys: set[str], scale: float) -> None:
    symbol, kind = mark(step.verdict)
    folds = bool(step.notes)
    told = {True: "the verifier says right", False: "the verifier says wrong", None: "no verdict"}[step.verdict]
    with box(f"step {kind}" + ("" if folds else " bare"), "details", data_key=key, data_item=key, open=keyed(key, keys)):
        with box("", "summary"):
            words(symbol + tally(step.notes), f"mark {kind}", title=told)
            truth_mark(step.truth, step.verdict)
            credit(step.advantages, scale)
            heated(step.text, "text", step.advantages, step.ends, scale)
        for note in step.notes:
            show_note(note, rollout.checks[note.check])


def credit(advantages: tuple[float, ...], scale: float) -> None:
    """Show the mean advantage of some tokens, and each advantage as a colour."""
    with box("credit"):
        if advantages:
            words(f"{sum(advantages) / len(advantages):+.2f}", "mean")
            strip(advantages, scale)


def keyed(key: str, keys: set[str]) -> bool | None:
    return True if key in keys else None


def truth_mark(truth: bool | None, said: bool | None) -> None:
    """Show the true label; framed if the verifier's verdict differs."""
    symbol, kind = mark(truth)
    off = " off" if None not in (truth, said) and truth != said else ""
    text = {True: f"{symbol} true", False: f"{symbol} false", None: ""}[truth]
    words(text, f"truth {kind}{off}", title="the exact truth" if text else None)


def tally(notes: tuple[Note, ...]) -> str:
    """Format how many of several verifications call the step right; empty for fewer than two."""
    if len(notes) < 2:
        return ""
    return f" {sum(note.right is True for note in notes)}/{len(notes)}"


def show_note(note: Note, check: Check) -> None:
    symbol, kind = mark(note.right)
    with box("note-line"):
        words(symbol, f"mark {kind}")
        words(note.text or ("no words, a score" if note.score is not None else "no words"), "text")
        if note.score is not None:
            words(number(note.score), "score")
        words(check.policy, "id")


def show_rest(rollout: Rollout, key: str, keys: set[str], scale: float) -> None:
    """Show the text after the last step, and under it the final verdict of each verification."""
    finals = [check.final for check in rollout.checks if check.final is not None]
    said = None if 2 * sum(finals) == len(finals) else 2 * sum(finals) > len(finals)
    symbol, kind = mark(said)
    folds = "" if rollout.checks else " bare"
    with box(f"step end {kind}{folds}", "details", data_key=key, data_item=key, open=keyed(key, keys)):
        with box("", "summary"):
            share = f" {sum(finals)}/{len(rollout.checks)}" if len(rollout.checks) > 1 else ""
            words(symbol + share, f"mark {kind}", title="the final verdict")
            truth_mark(rollout.correct, said)
            credit(rollout.rest_advantages, scale)
            heated(rollout.rest or "(nothing after the last step)", "text", rollout.rest_advantages, rollout.rest_ends, scale)
        for check in rollout.checks:
            show_check(check, scale)


def show_check(check: Check, scale: float) -> None:
    symbol, kind = mark(check.final)
    with box("note-line"):
        words(symbol, f"mark {kind}")
        # A verification that could not be parsed is shown in full: no part of it stands under a step.
        words((check.text if check.invalid else check.rest) or UNSEEN, "text")
        if check.score is not None:
            words(number(check.score), "score")
        if check.fooled:
            words("⚑ fooled", "badge fooled")
        if check.contradiction:
            words("≠ contradicts its steps", "badge contradiction")
        if check.invalid:
            words(f"∅ {check.invalid}", "badge invalid")
        words(check.policy or check.seat, "id")
        credit(check.advantages, scale)
