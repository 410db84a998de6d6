"""Roles: what is written reads back, one grammar serves reward and parser, and no output of a model breaks a reader."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import GRAMMARS, PROPERTY
from milonga.roles import DIALECTS, ROLES, Dialect, StepSolver, StepVerifier
from milonga.types import Parsed, Problem, Prompt, Rollout, Solution

RIGHT, WRONG = "\\boxed{CORRECT}", "\\boxed{INCORRECT}"
SOLVERS = {dialect: StepSolver(dialect) for dialect in DIALECTS}
VERIFIERS = {dialect: StepVerifier(dialect) for dialect in DIALECTS}
dialects = st.sampled_from(GRAMMARS)


def solution(steps: int, form: float = 1.0, text: str = "a solution", problem: str = "a problem") -> Rollout:
    """A rollout to be judged: so many steps, and its own format score."""
    value = Solution(tuple("s" for _ in range(steps)), tuple(range(1, steps + 1)), "1")
    return Rollout.from_text("s", "generator", Problem("p", problem, "1"), text, Parsed(value, form))


def tagged(steps: str, final: str = RIGHT) -> str:
    return f"<step_verification>{steps}</step_verification>\n<final_verification>{final}</final_verification>"


def step(*words: str) -> str:
    return "".join(f"<step>looks so {word}</step>\n" for word in words)


# -- What is written reads back --------------------------------------------------------------------

lines = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=12)
plain = st.text(st.characters(codec="utf-8", exclude_characters="<{}\\"), max_size=12).map(str.strip)
maths = st.sampled_from(["\\frac{1}{2}", "{}", "x_{a_{b}}", "a < b"])

STEPS = {
    "terse": lines.filter(lambda x: x and not x.startswith("#")),
    "tagged": st.one_of(plain, maths, st.builds("{} {}".format, maths, plain).map(str.strip)),
}
ANSWERS = {"terse": lines.filter(bool), "tagged": st.one_of(plain, maths).filter(bool)}
NOTES = {"terse": lines.filter(lambda x: not x.startswith("=")), "tagged": plain}


@PROPERTY
@given(dialect=dialects, data=st.data())
def test_a_written_solution_reads_back(dialect: Dialect, data: st.DataObject) -> None:
    steps = data.draw(st.lists(STEPS[dialect], min_size=1, max_size=5))
    answer = data.draw(ANSWERS[dialect])
    parsed = SOLVERS[dialect].parse(SOLVERS[dialect].write(steps, answer))
    assert (parsed.value.steps, parsed.value.answer) == (tuple(steps), answer)
    assert parsed.is_valid and parsed.format == 1.0


@PROPERTY
@given(dialect=dialects, data=st.data())
def test_a_written_verification_reads_back(dialect: Dialect, data: st.DataObject) -> None:
    verdicts = data.draw(st.lists(st.booleans(), min_size=1, max_size=5))
    final = data.draw(st.booleans())
    notes = data.draw(st.none() | st.lists(NOTES[dialect], min_size=len(verdicts), max_size=len(verdicts)))
    text = VERIFIERS[dialect].write(verdicts, final, notes)
    parsed = VERIFIERS[dialect].parse(text, solution(len(verdicts)))
    assert (parsed.value.steps, parsed.value.final) == (tuple(verdicts), final)
    assert parsed.is_valid and parsed.format == 1.0


# -- The format score of the verifier, as in the paper ---------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (tagged(step(RIGHT, WRONG), WRONG), 1.0),
        (f"  \n{tagged(step(RIGHT, WRONG))}\n ", 1.0),
        # the two top-level tags are not exactly the whole output: 0
        ("", 0),
        (step(RIGHT, WRONG), 0),
        (f"Well. {tagged(step(RIGHT, WRONG))}", 0),
        (f"{tagged(step(RIGHT, WRONG))} Done.", 0),
        (tagged(step(RIGHT, WRONG)).replace("</final_verification>", ""), 0),
        (tagged(step(RIGHT, WRONG)).replace("<final", "so <final"), 0),
        (tagged(step(RIGHT, WRONG)) * 2, 0),
        (f"{tagged(step(RIGHT, WRONG))}<final_verification>{WRONG}</final_verification>", 0),
        (f"<step_verification>{step(RIGHT)}</step_verification>{tagged(step(WRONG))}", 0),
        (tagged(f"<step_verification>{step(RIGHT, WRONG)}"), 0),
        # the final verdict is not boxed: -0.8
        (tagged(step(RIGHT, WRONG), "CORRECT"), 0.2),
        (tagged(step(RIGHT, WRONG), ""), 0.2),
        (tagged(step(RIGHT, WRONG), "\\boxed{MAYBE}"), 0.2),
        # no steps: -0.8, and so the number of verdicts is not K: -0.8
        (tagged(""), 0),
        # the number of verdicts is not K: -0.8
        (tagged(step(RIGHT)), 0.2),
        (tagged(step(RIGHT, WRONG, RIGHT)), 0.2),
        (tagged(step("fine", "fine")), 0.2),
        (tagged(step(RIGHT, "fine")), 0.2),
        # text outside the steps: -0.4
        (tagged(f"First {step(RIGHT, WRONG)}"), 0.6),
        (tagged(f"{step(RIGHT)} then {step(WRONG)}"), 0.6),
        # clipped to [0, 1]
        (tagged(step(RIGHT), "CORRECT"), 0),
        (tagged(f"First {step(RIGHT)}"), 0),
        (tagged(f"First {step(RIGHT, WRONG)}", "CORRECT"), 0),
    ],
)
def test_format_of_a_tagged_verification_of_two_steps(text: str, expected: float) -> None:
    assert VERIFIERS["tagged"].parse(text, solution(2)).format == pytest.approx(expected)


@pytest.mark.parametrize(("form", "expected"), [(1.0, 0.2), (0.6, 0.2), (0.59, 1.0), (0.2, 1.0), (0.0, 1.0)])
def test_a_wrong_count_costs_only_where_the_solution_can_be_counted(form: float, expected: float) -> None:
    parsed = VERIFIERS["tagged"].parse(tagged(step(RIGHT)), solution(2, form))
    assert parsed.format == pytest.approx(expected)
    assert parsed.value.steps is None and not parsed.is_valid


def test_no_steps_cost_also_where_the_solution_cannot_be_counted() -> None:
    assert VERIFIERS["tagged"].parse(tagged(""), solution(2, 0.0)).format == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a+\nb-\n=-", 1.0),
        ("+\n-\n=+", 1.0),
        ("a+\n=+", 0.2),
        ("a\nb+\nc-\n=+", 0.6),
        ("=+", 0),
        ("a+\nb-\n", 0),
        ("a+\nb-\n=", 0),
        ("a+\nb-\n=+\n", 0),
        ("a+\nb-\n=+=-", 0),
        ("a+\nb-\n=+\n=-", 0),
        ("a+\nb-\n =+", 0),
        ("a+\n\nb-\n=+", 0),
        ("", 0),
    ],
)
def test_format_of_a_terse_verification_of_two_steps(text: str, expected: float) -> None:
    assert VERIFIERS["terse"].parse(text, solution(2)).format == pytest.approx(expected)


# -- Traps of the parser ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        (RIGHT, True),
        (WRONG, False),
        (f" {RIGHT}", True),
        (f"\n\t{WRONG}\n", False),
        (f"All is well: {RIGHT}.", True),
        ("\\boxed{ CORRECT }", True),
        # two verdicts, in either order
        (f"{RIGHT} {WRONG}", None),
        (f"{RIGHT}{RIGHT}", None),
        # not at the end
        (f"{RIGHT} I think", None),
        (f"{RIGHT} or {{so}}", None),
        (f"{RIGHT} \\frac{{1}}{{2}}", None),
        # unclosed boxes
        ("\\boxed{CORRECT", None),
        (f"{RIGHT} \\boxed{{", None),
        (f"{RIGHT} \\boxed{{INCORRECT {{}}", None),
        ("\\boxed{INCORRECT \\boxed{CORRECT", None),
        # in any case, and after boxes of the analysis
        ("\\boxed{correct}", True),
        ("\\boxed{Incorrect}", False),
        (f"It is \\boxed{{7}}. {WRONG}", False),
        # not the words
        ("\\boxed{NOT CORRECT}", None),
        ("\\boxed{}", None),
        ("CORRECT", None),
        ("", None),
    ],
)
def test_a_verdict_is_one_box_at_the_end(final: str, expected: bool | None) -> None:
    """Reward and parser agree: what does not read as a verdict costs its 0.8, what reads costs nothing."""
    as_final = VERIFIERS["tagged"].parse(tagged(step(RIGHT, WRONG), final), solution(2))
    assert as_final.value.final is expected
    assert as_final.format == pytest.approx(1.0 if expected is not None else 0.2)
    as_step = VERIFIERS["tagged"].parse(tagged(step(RIGHT) + f"<step>{final}</step>"), solution(2))
    assert as_step.value.steps == (None if expected is None else (True, expected))
    assert as_step.format == pytest.approx(1.0 if expected is not None else 0.2)


def test_empty_analyses_are_read() -> None:
    parsed = VERIFIERS["tagged"].parse(tagged(f"<step>{RIGHT}</step><step>{WRONG}</step>"), solution(2))
    assert parsed.is_valid and parsed.value.steps == (True, False)


def test_verdicts_belong_to_steps_by_index() -> None:
    """A check without a verdict must not lend its place to the next one."""
    text = tagged(step("no verdict here", RIGHT, WRONG))
    for count in (2, 3):
        parsed = VERIFIERS["tagged"].parse(text, solution(count))
        assert parsed.value.steps is None and parsed.format == pytest.approx(0.2)


def test_nested_steps_are_one_step_and_the_rest_is_outside() -> None:
    text = tagged(f"<step>a <step>b {RIGHT}</step> c {WRONG}</step>")
    parsed = VERIFIERS["tagged"].parse(text, solution(1))
    assert parsed.value.steps == (True,) and parsed.format == pytest.approx(0.6)


def test_a_solution_without_steps_has_no_step_verdicts() -> None:
    for dialect in DIALECTS:
        parsed = VERIFIERS[dialect].parse(VERIFIERS[dialect].write([], True), solution(0, 0.2))
        assert parsed.value.steps is None and not parsed.is_valid and parsed.value.final is not None


@pytest.mark.parametrize(
    ("text", "steps", "answer", "form"),
    [
        ("a\nb\n#7", 2, "7", 1.0),
        ("a\n# 7", 1, " 7", 1.0),
        ("#7", 0, "7", 0.2),
        ("a\n\n#7", 2, "7", 0.6),
        ("a\nb", 1, None, 0),
        ("a\n#", 1, None, 0),
        ("a\n#7\n", 1, None, 0),
        ("a\n#7\n#8", 1, None, 0),
        ("", 0, None, 0),
    ],
)
def test_terse_solutions(text: str, steps: int, answer: str | None, form: float) -> None:
    parsed = SOLVERS["terse"].parse(text)
    assert (len(parsed.value.steps), parsed.value.answer, parsed.format) == (steps, answer, form)
    assert parsed.is_valid == (form == 1.0)


@pytest.mark.parametrize(
    ("text", "steps", "answer", "form"),
    [
        ("<think><step>a</step> <step>b</step></think><answer>\\boxed{7}</answer>", 2, "7", 1.0),
        ("<think><step>a</step></think><answer>It is \\boxed{ \\frac{1}{2} }.</answer>", 1, "\\frac{1}{2}", 1.0),
        ("<think>so <step>a</step></think><answer>\\boxed{7}</answer>", 1, "7", 0.6),
        ("<think>so</think><answer>\\boxed{7}</answer>", 0, "7", 0),
        ("<think></think><answer>\\boxed{7}</answer>", 0, "7", 0.2),
        # no box costs format, not the answer; two are none
        ("<think><step>a</step></think><answer>7</answer>", 1, "7", 0.2),
        ("<think><step>a</step></think><answer>\\boxed{7} \\boxed{8}</answer>", 1, None, 0.2),
        ("<think><step>a</step></think><answer>\\boxed{7</answer>", 1, None, 0.2),
        ("<think><step>a</step></think><answer> </answer>", 1, None, 0.2),
        # not one <think> followed by one <answer>: no format at all, but an answer that can be read counts
        ("<step>a</step><answer>\\boxed{7}</answer>", 1, "7", 0),
        ("<think><step>a</step></think>", 1, None, 0),
        ("Well. <think><step>a</step></think><answer>\\boxed{7}</answer> or so", 1, "7", 0),
        ("<think><think><step>a</step></think><answer>\\boxed{7}</answer>", 1, "7", 0),
        ("<think><step>a</step></think><answer>\\boxed{7}</answer>" * 2, 2, None, 0),
        ("It is \\boxed{7}.", 0, "7", 0),
    ],
)
def test_tagged_solutions(text: str, steps: int, answer: str | None, form: float) -> None:
    parsed = SOLVERS["tagged"].parse(text)
    assert (len(parsed.value.steps), parsed.value.answer) == (steps, answer)
    assert parsed.format == pytest.approx(form)
    assert parsed.is_valid == (answer is not None and steps > 0)


def test_a_preamble_costs_a_tagged_verification_its_format_alone() -> None:
    parsed = VERIFIERS["tagged"].parse(f"Sure! {tagged(step(RIGHT, WRONG), WRONG)} Done.", solution(2))
    assert (parsed.value.steps, parsed.value.final, parsed.format, parsed.is_valid) == ((True, False), False, 0.0, True)


# -- No output can break a reader ------------------------------------------------------------------

FRAGMENTS = [
    *("<think>", "</think>", "<answer>", "</answer>", "<step>", "</step>"),
    *("<step_verification>", "</step_verification>", "<final_verification>", "</final_verification>"),
    *(RIGHT, WRONG, "\\boxed{", "\\boxed{correct}", "\\boxed{7}", "{", "}", "\\", ".", " ", "<", ">"),
    *("\n", "#", "=", "+", "-", "=+", "=-", "a", "7", "CORRECT"),
]
soup = st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join)


def near(pieces: list[str], frame: str, tails: list[str]) -> st.SearchStrategy[str]:
    """Texts that are nearly right: random fragments alone hardly ever make a frame."""
    noise = st.sampled_from([*[""] * 3 * len(FRAGMENTS), *FRAGMENTS])
    body = st.lists(st.sampled_from(pieces), min_size=1, max_size=4).map("".join)
    return st.builds(frame.format, noise, body, noise, st.sampled_from(tails))


NEAR_SOLUTION = {
    "terse": near(["a\n", "1+2=3\n", " \n", "\n"], "{1}{2}{3}", ["#7", "#7", "# 7", "#", "#7\n", "#7#8", ""]),
    "tagged": near(
        ["<step>a</step>", "<step> b </step>\n", "<step></step>", "<step>a<step>b</step>", "</step>", "so"],
        "{0}<think>{1}</think>{2}<answer>{3}</answer>",
        ["\\boxed{7}", "is \\boxed{ 7 }.", "\\boxed{\\frac{1}{2}}", "\\boxed{7", "\\boxed{7}\\boxed{8}", "7"],
    ),
}
NEAR_VERIFICATION = {
    "terse": near(["a+\n", "-\n", "1+2=3+\n", "b-\n", "a\n", "\n"], "{1}{2}{3}", ["=+", "=-", "=+", "=-", "=", "=+\n"]),
    "tagged": near(
        [f"<step>{RIGHT}</step>", f"<step>x {WRONG}.</step>\n", f"<step>{RIGHT}{WRONG}</step>", "<step>a</step>", "so"],
        "{0}<step_verification>{1}</step_verification>{2}<final_verification>{3}</final_verification>",
        [RIGHT, WRONG, f" {RIGHT}.", f"{RIGHT} {WRONG}", f"{RIGHT} {{}}", "\\boxed{correct}", ""],
    ),
}
ANYTHING = {dialect: st.text(max_size=40) | soup for dialect in GRAMMARS}
FUZZ = settings(PROPERTY, max_examples=300)
Texts = dict[str, st.SearchStrategy[str]]
MARKS = {"terse": "\n", "tagged": "</step>"}


def check_ends(text: str, ends: tuple[int, ...], mark: str) -> None:
    assert list(ends) == sorted(set(ends))
    assert all(0 < end <= len(text) and text[:end].endswith(mark) for end in ends)


@pytest.mark.parametrize("dialect", GRAMMARS)
@pytest.mark.parametrize("texts", [ANYTHING, NEAR_SOLUTION], ids=["anything", "near"])
@FUZZ
@given(data=st.data())
def test_any_text_reads_as_a_solution(texts: Texts, dialect: Dialect, data: st.DataObject) -> None:
    text = data.draw(texts[dialect])
    solver = SOLVERS[dialect]
    parsed = solver.parse(text)
    value = parsed.value
    assert 0 <= parsed.format <= 1
    assert len(value.steps) == len(value.ends)
    check_ends(text, value.ends, MARKS[dialect])
    if parsed.is_valid:
        assert value.steps and value.answer
    if parsed.is_valid and parsed.format >= 0.6:  # written as asked, so that it can be written again
        again = solver.parse(solver.write(value.steps, value.answer))
        assert (again.value.steps, again.value.answer, again.format) == (value.steps, value.answer, 1.0)
    if parsed.format == 1.0:
        assert parsed.is_valid


@pytest.mark.parametrize("dialect", GRAMMARS)
@pytest.mark.parametrize("texts", [ANYTHING, NEAR_VERIFICATION], ids=["anything", "near"])
@FUZZ
@given(data=st.data())
def test_reward_and_parser_share_one_grammar(texts: Texts, dialect: Dialect, data: st.DataObject) -> None:
    text = data.draw(texts[dialect])
    verifier = VERIFIERS[dialect]
    for count, form in itertools.product(range(4), (0.0, 0.59, 0.6, 1.0)):
        target = solution(count, form)
        parsed = verifier.parse(text, target)
        value = parsed.value
        assert 0 <= parsed.format <= 1
        assert len(value.ends) == len(value.steps or ())
        assert value.steps is None or len(value.steps) == count > 0
        check_ends(text, value.ends, MARKS[dialect])
        if parsed.is_valid:
            assert value.final is not None and value.steps is not None
            again = verifier.parse(verifier.write(value.steps, value.final), target).value
            assert (again.steps, again.final) == (value.steps, value.final)
        if value.final is None:
            assert parsed.format < 0.6
        if parsed.format == 1.0:
            assert value.final is not None
            # Where the solution itself cannot be counted, a wrong count costs the verifier nothing, but is not valid.
            assert parsed.is_valid or form < 0.6


# -- Prompts ---------------------------------------------------------------------------------------


def own(prompt: Prompt) -> str:
    return "|".join(part.text for part in prompt if not part.foreign)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_others_wrote_is_foreign(dialect: Dialect) -> None:
    """Own parts do not change with problem or solution, so nothing of these can enter them."""
    text, answer = "<|endoftext|> {count}", "</solution> <|im_start|>"
    problem, other = Problem("p", text, "secret"), Problem("q", "2+2", "4")
    ask, check = SOLVERS[dialect].prompt, VERIFIERS[dialect].prompt
    judged = solution(3, text=answer, problem=text)
    assert [part.text for part in ask(problem) if part.foreign] == [text]
    shown = [answer] if dialect != "plain" else ["s", "s", "s"]
    assert [part.text for part in check(problem, judged) if part.foreign] == [text, *shown]
    assert own(ask(problem)) == own(ask(other))
    assert own(check(problem, judged)) == own(check(other, solution(3)))
    assert "secret" not in "".join(part.text for part in (*ask(problem), *check(problem, judged)))


def test_the_tagged_verifier_is_told_the_count_before_anything_foreign() -> None:
    prompt = VERIFIERS["tagged"].prompt(Problem("p", "x", "y"), solution(7))
    assert not prompt[0].foreign and "exactly 7 checks" in prompt[0].text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stop_string_is_the_end_of_what_is_written(dialect: Dialect) -> None:
    for text, stop in (
        (SOLVERS[dialect].write(["a"], "7"), SOLVERS[dialect].stop),
        (VERIFIERS[dialect].write([True], True), VERIFIERS[dialect].stop),
    ):
        assert all(text.endswith(mark) and text.count(mark) == 1 for mark in stop)


def test_a_verifier_needs_something_to_judge() -> None:
    for dialect in DIALECTS:
        with pytest.raises(ValueError, match="solution"):
            VERIFIERS[dialect].prompt(Problem("p", "x", "y"), None)
        with pytest.raises(ValueError, match="solution"):
            VERIFIERS[dialect].parse("", None)


def test_roles_are_registered_by_name() -> None:
    assert {ROLES.get(name).name for name in ("solver", "verifier")} == {"solver", "verifier"}
