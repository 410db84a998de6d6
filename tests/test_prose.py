"""Prose: steps are paragraphs, the last box is the answer, verdicts are read however a model lays them out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.errors import ConfigError
from milonga.roles import StepSolver, StepVerifier
from milonga.roles.prose import find_steps, find_thought
from milonga.roles.solver import LOOSE_FORMAT, accept_extracted, extract_answer
from milonga.roles.templates import PromptTemplate
from milonga.roles.verdicts import read_verdicts
from milonga.tasks import Chain
from milonga.tasks.answers import extract_number, find_last_box
from milonga.types import Parsed, Problem, Rollout, Segment, Solution, Verification

SOLVER, VERIFIER = StepSolver("plain"), StepVerifier("plain")
"""`real_outputs.jsonl`: outputs at temperature 1 on GSM8K and MATH of Qwen2.5-Coder-0.5B-Instruct and 1.5B-Instruct, both
q4_k_m (SHA-256 of the GGUF files 1d961463… and cc324af0…), with what a person reads in them."""
REAL = [json.loads(line) for line in (Path(__file__).parent / "real_outputs.jsonl").read_text(encoding="utf-8").splitlines()]
FUZZ = settings(PROPERTY, max_examples=300)


def make_solution(count: int) -> Rollout:
    value = Solution(tuple(f"s{k}" for k in range(count)), tuple(range(1, count + 1)), "1")
    return Rollout.from_text("s", "generator", Problem("p", "a problem", "1"), "text", Parsed(value, 1.0))


def split(text: str) -> list[str]:
    return [text[a:b].strip() for a, b in find_steps(text)]


# -- Steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("One.\n\nTwo.", ["One.", "Two."]),
        ("One\nstill one.\n \n\n\nTwo.\n", ["One\nstill one.", "Two."]),
        # a displayed formula stays with what precedes it
        ("So:\n\n\\[ x = 1 \\]\n\nDone.", ["So:\n\n\\[ x = 1 \\]", "Done."]),
        ("So:\n\n$$\nx = 1\n\n+ 2\n$$\n\nDone.", ["So:\n\n$$\nx = 1\n\n+ 2\n$$", "Done."]),
        ("\\begin{align}\na\n\nb\n\\end{align}\n\nDone.", ["\\begin{align}\na\n\nb\n\\end{align}", "Done."]),
        # items of a numbered list are steps, their sub-items are not
        ("We do:\n1. **A**: a\n   - b\n2. c\n3) d", ["We do:", "1. **A**: a\n   - b", "2. c", "3) d"]),
        ("Step 1: a\nStep 2: b", ["Step 1: a", "Step 2: b"]),
        ("**Step 1:** a\n\n### Step 2\nb", ["**Step 1:** a", "### Step 2\nb"]),
        # a title goes with what follows it, and a last one with what precedes it
        ("### First\n\nOne.\n\n**Second**\n\nTwo.", ["### First\n\nOne.", "**Second**\n\nTwo."]),
        ("1. **Find the cost:**\n\n   3 * 4 = 12\n\n2. **Add**", ["1. **Find the cost:**\n\n   3 * 4 = 12\n\n2. **Add**"]),
        ("Step 1:\n\na\n\nStep 2:\n\nb", ["Step 1:\n\na", "Step 2:\n\nb"]),
        # a code fence is not cut
        ("Run:\n\n```python\na = 1\n\n1. b\n```\n\nDone.", ["Run:", "```python\na = 1\n\n1. b\n```", "Done."]),
        ("```\nnever closed\n\nat all", ["```\nnever closed\n\nat all"]),
        ("", []),
        (" \n\n ", []),
        ("# Only a title", ["# Only a title"]),
    ],
)
def test_steps_are_paragraphs(text: str, steps: list[str]) -> None:
    assert split(text) == steps


words = st.sampled_from(
    ["a", "So", "\n", "\n\n", " ", "$$", "\\[", "\\]", "1. ", "2) ", "```", "# T", "**B**", "Step 1:", "x = 1"]
)
soup = st.lists(words, max_size=30).map("".join) | st.text(max_size=60)


@FUZZ
@given(text=soup)
def test_steps_cover_the_text_and_none_is_empty(text: str) -> None:
    spans = find_steps(text)
    assert bool(spans) == bool(text.strip())
    assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])] if spans else True
    assert all(text[a:b].strip() for a, b in spans)
    assert not spans or spans[-1][1] == len(text)


# -- Solutions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{7}.", "7"),
        ("\\boxed{3} or rather \\boxed{ 4 }", "4"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{5} and \\boxed{}", "5"),
        ("\\boxed{5} and \\boxed{6", "5"),
        ("Sure! <think>\\boxed{1}</think> It is \\boxed{2}, I hope.", "2"),
        ("no box", None),
    ],
)
def test_the_last_box_is_the_answer(text: str, answer: str | None) -> None:
    assert find_last_box(text) == answer
    parsed = SOLVER.parse(text)
    assert parsed.get(Solution).answer == answer
    assert (parsed.format, parsed.is_valid) == ((1.0, True) if answer else (0.0, False))


@pytest.mark.parametrize(
    ("text", "thought", "after"),
    [
        ("<think>a\n\nb</think>c\n\nd", ["a", "b"], ["c", "d"]),
        ("a\n\nb</think>c", ["a", "b"], ["c"]),  # opened by the template
        ("Hm. <think>a</think>c", ["a"], ["c"]),
        ("<think>a\n\nb", ["a", "b"], []),  # cut
        ("c\n\nd", ["c", "d"], ["c", "d"]),  # no thought
    ],
)
def test_steps_are_those_of_the_thought_or_of_what_follows(text: str, thought: list[str], after: list[str]) -> None:
    thinker = StepSolver("plain")
    thinker.thought_steps = True
    assert list(thinker.parse(text).get(Solution).steps) == thought
    assert list(SOLVER.parse(text).get(Solution).steps) == after
    assert (find_thought(text) is None) == ("think" not in text)


def test_an_answer_that_the_task_finds_has_a_lower_format_score() -> None:
    loose = accept_extracted(SOLVER.parse("It is 7."), "7", asked=False)
    assert (loose.get(Solution).answer, loose.format, loose.is_valid) == ("7", LOOSE_FORMAT, True)
    program = accept_extracted(SOLVER.parse("```python\nx\n```"), "x", asked=True)
    assert (program.get(Solution).answer, program.format, program.is_valid) == ("x", 1.0, True)
    assert not accept_extracted(SOLVER.parse("I do not know"), None, asked=False).is_valid


class Numbers(Chain):
    """A task whose answers are numbers, as those of files are."""

    def extract(self, text: str, problem: Problem) -> str | None:
        return extract_number(text)


@pytest.mark.parametrize(
    ("text", "boxed", "answer"),
    [
        ("<think>I think \\boxed{5}. wait no</think>So \\boxed{6}.", "6", "6"),
        ("<think>I think \\boxed{5}. wait no</think>The answer is 6.", None, "6"),
        ("I think \\boxed{5}.</think>The answer is 6.", None, "6"),
        ("<think>So \\boxed{5}.</think>That is all.", None, "5"),
        ("<think>So it is 5.</think>That is all.", None, "5"),
        ("<think>So \\boxed{5}.</think>\n", "5", "5"),
        ("<think>So \\boxed{5}. Or 6", "5", "5"),
        ("The answer is 6.", None, "6"),
        ("I do not know.", None, None),
    ],
)
def test_what_is_said_behind_the_thought_outranks_a_box_in_it(text: str, boxed: str | None, answer: str | None) -> None:
    parsed = SOLVER.parse(text)
    assert parsed.get(Solution).answer == boxed and (boxed is not None or parsed.format == 0.0)
    problem = Problem("p", "a problem", "1")
    assert (boxed or extract_answer(Numbers(), text, problem, lost=False)) == answer
    cut = extract_answer(Numbers(), text, problem, lost=True)
    assert cut == find_last_box(text), "of a text that was cut only a box counts"
    program = replace(problem, data={"form": "program"})
    assert extract_answer(Chain(), text, program, lost=False) is None


paragraphs = st.text("abc xyz=+", min_size=1, max_size=12).map(str.strip).filter(bool)


@PROPERTY
@given(steps=st.lists(paragraphs, min_size=1, max_size=5), answer=st.text("0123ab/", min_size=1, max_size=8))
def test_a_written_solution_reads_back(steps: list[str], answer: str) -> None:
    parsed = SOLVER.parse(SOLVER.write(steps, answer))
    found = parsed.get(Solution)
    assert len(found.steps) == len(steps) and found.answer == answer and parsed.format == 1.0
    assert all(read.startswith(written) for read, written in zip(found.steps, steps, strict=True))


@FUZZ
@given(text=soup)
def test_any_text_reads_as_a_solution(text: str) -> None:
    parsed = SOLVER.parse(text)
    value = parsed.get(Solution)
    assert len(value.steps) == len(value.ends) and list(value.ends) == sorted(set(value.ends))
    assert 0 <= parsed.format <= 1 and parsed.is_valid == (value.answer is not None and bool(value.steps))


# -- Verifications ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "steps", "final", "form"),
    [
        ("Step 1: CORRECT\nStep 2: no. INCORRECT\nStep 3: CORRECT\nFinal verdict: INCORRECT", (True, False, True), False, 1.0),
        ("**Step 1:** so: **Verdict:** Correct\n**Step 2:** Wrong\n**Final verdict:** Incorrect", (True, False), False, 1.0),
        # it may stop after the first wrong step, and the final verdict may be missing
        ("Step 1: fine. CORRECT\nStep 2: no. INCORRECT\nFinal verdict: INCORRECT", (True, False), False, 1.0),
        ("Step 1: CORRECT\nStep 2: INCORRECT", (True, False), False, 2 / 3),
        ("Step 1: CORRECT\nStep 2: CORRECT\nStep 3: CORRECT", (True, True, True), True, 3 / 4),
        # what follows a gap is unknown
        ("Step 1: CORRECT\nStep 2: INCORRECT\nStep 4: CORRECT", (True, False), False, 2 / 3),
        ("Step 1: CORRECT\nStep 3: CORRECT\nFinal verdict: CORRECT", None, True, 2 / 4),
        ("Step 1: CORRECT\nStep 2: hm", None, None, 1 / 4),
        ("Final verdict: CORRECT", None, True, 1 / 4),
        # however it is laid out
        ("**Step 1**: **Correct**\n\n**Step 2**: ok. *correct*\n\n**Step 3**: **Incorrect**.\n\n**Final Verdict**: incorrect",
         (True, True, False), False, 1.0),
        ("### Step 1\n$x = \\boxed{5}$\n\n\\boxed{CORRECT}\n### Step 2\n\\boxed{\\text{Incorrect}}\n\nOverall: \\boxed{WRONG}",
         (True, False), False, 1.0),
        ("- Step 1: The sum is right.\n- Step 2: This is not correct, since the correct value is 8.\nVerdict: wrong.",
         (True, False), False, 1.0),
        ("1. Correct\n2. Correct\n3. Incorrect\n", (True, True, False), False, 3 / 4),
        ("CORRECT\nCORRECT\nCORRECT\nINCORRECT", (True, True, True), False, 1.0),
        ("Step 1: CORRECT\nStep 2: CORRECT\nStep 3: CORRECT\nThe solution is correct.", (True, True, True), True, 1.0),
        ("Step 1 is correct.\nStep 2 is incorrect.", (True, False), False, 2 / 3),
        # steps that are copied first have no verdicts
        ("Step 1: 2 + 2 = 4\nStep 2: 4 + 1 = 6\nStep 1: yes. CORRECT\nStep 2: it is 5. INCORRECT", (True, False), False, 2 / 3),
        # remarks behind a verdict do not change it
        ("Step 1: CORRECT\nStep 2: 5 + 3 = 9. INCORRECT. The CORRECT answer is 8.", (True, False), False, 2 / 3),
        ("Step 1: Incorrect. Correct answer: 8.", (False,), False, 1 / 2),
        ("Step 1: INCORRECT (CORRECT: 7)\nFinal verdict: INCORRECT\n\nThe CORRECT answer is 8.", (False,), False, 1.0),
        ("Step 1: This cannot be correct.", (False,), False, 1 / 2),
        # a thought is no verdict, even where nothing follows it
        ("<think>\nStep 1: seems CORRECT.\nStep 2: CORRECT.\nFinal verdict: CORRECT. wait no\n</think>\n"
         "Step 1: CORRECT\nStep 2: 3*4=13 is wrong. INCORRECT\nFinal verdict: INCORRECT", (True, False), False, 1.0),
        ("<think>CORRECT\nCORRECT\nCORRECT</think>\nINCORRECT\nCORRECT\nCORRECT", (False, True, True), False, 3 / 4),
        ("<think>Step 1: INCORRECT\nFinal verdict: INCORRECT</think>", None, None, 0.0),
        ("<think>Step 1: INCORRECT\nFinal verdict: INCORRECT", None, None, 0.0),
        ("<think>Step 1: CORRECT</think>\nFinal verdict: INCORRECT", None, False, 1 / 4),
        # a verdict line within a check is that of the step
        ("**Step 1:** ok.\n- Verdict: CORRECT\n**Step 2:** no.\n- Verdict: INCORRECT\n**Final verdict:** INCORRECT",
         (True, False), False, 1.0),
        ("### Step 1\nIt is right.\n**Verdict:** CORRECT\n\n### Step 2\nOops.\n**Verdict:** INCORRECT\n\nOverall: INCORRECT",
         (True, False), False, 1.0),
        ("**Step 1:** a\n*Conclusion:* CORRECT\n**Step 2:** b\n*Conclusion:* INCORRECT", (True, False), False, 2 / 3),
        ("Step 1\nVerdict: CORRECT\nStep 2\nVerdict: INCORRECT\n\nVerdict: INCORRECT", (True, False), False, 1.0),
        ("1. The sum.\nVerdict: CORRECT\n2. So.\nVerdict: INCORRECT\nFinal verdict: INCORRECT", (True, False), False, 1.0),
        ("Step 1: we redo it.\nVerdict: INCORRECT\nFinal verdict: INCORRECT", (False,), False, 1.0),
        ("Verdict for step 1: CORRECT\nVerdict for step 2: INCORRECT\nFinal verdict: INCORRECT", (True, False), False, 1.0),
        ("Step 1: it is right.\n1. 2+2=4\nThe verdict on step 1 is INCORRECT.\nFinal verdict: INCORRECT", (False,), False, 1.0),
        ("Step 1: CORRECT\nStep 2:\nThe conclusion of step 1 is used. INCORRECT\nOverall: wrong", (True, False), False, 1.0),
        # ... and that of the whole where the steps have theirs
        ("Step 1: CORRECT\nStep 2: The sum is correct.\nStep 3: CORRECT\nVerdict: INCORRECT", (True, True, True), False, 1.0),
        ("Step 1: It is wrong.\nStep 2: CORRECT\nStep 3: CORRECT\nConclusion: INCORRECT\nOverall it fails.",
         (False, True, True), False, 1.0),
        ("Verdict: INCORRECT\nStep 1: CORRECT\nStep 2: INCORRECT", (True, False), False, 1.0),
        # a list within a check is none of steps
        ("Step 1: it is correct.\n1. 2+2=4\n2. 4 is right: CORRECT\nStep 2: so 5 is wrong. INCORRECT\nFinal verdict: INCORRECT",
         (True, False), False, 1.0),
        ("Step 1: CORRECT\nStep 2: I check:\n1. 2+2=4\n2. 4+4=8\n3. 8+8=17 is INCORRECT\nFinal verdict: INCORRECT",
         (True, False), False, 1.0),
        ("1. The sum:\n   1. 2+2=4\n   2. 4 is CORRECT\n2. The product is INCORRECT", (True, False), False, 2 / 3),
        ("Step 1: CORRECT\n2. The product is INCORRECT", (True, False), False, 2 / 3),
        # signs, reasons, brackets and tables
        ("Step 1: Correct ✅\nStep 2: ✅ Correct\nStep 3: Incorrect ❌\nFinal: Incorrect ❌", (True, True, False), False, 1.0),
        ("Step 1: Correct (3+4=7)\nStep 2: correct - so far\nStep 3: **Incorrect** because 7*2=14\nFinal verdict: Incorrect",
         (True, True, False), False, 1.0),
        ("**1.** CORRECT\n**2**. CORRECT\n(3) INCORRECT", (True, True, False), False, 3 / 4),
        ("| Step | Verdict |\n|---|---|\n| 1 | CORRECT |\n| 2 | 3+4=8 | Incorrect |\n\nFinal verdict: INCORRECT",
         (True, False), False, 1.0),
        ("| Step 1 | Correct | 3+4=7 |\n| Step 2 | Incorrect | 7*2=14 |\n| Overall | Incorrect |", (True, False), False, 1.0),
        ("Step 1: <step>Correct</step>\nStep 2: Incorrect $\\checkmark$", (True, False), False, 2 / 3),
        # of the words within one sentence the last counts, and one that is supposed is none
        ("Step 1: This would only be CORRECT if x>0, so INCORRECT", (False,), False, 1 / 2),
        ("Step 1: CORRECT\nStep 2: Since step 1 is CORRECT, we get 24, but it says 25. INCORRECT", (True, False), False, 2 / 3),
        ("Step 1: It is not INCORRECT, it is CORRECT\nStep 2: The sum is INCORRECT. If it were 8, it were CORRECT.",
         (True, False), False, 2 / 3),
        ("Step 1: INCORRECT. It should be 8 to be CORRECT.", (False,), False, 1 / 2),
        ("Step 1: The sum is INCORRECT, it should be 7 and then it is CORRECT", (False,), False, 1 / 2),
        ("Step 1: INCORRECT. Step 2 follows from it.\nFinal verdict: It is INCORRECT; step 2 is CORRECT", (False,), False, 1.0),
        ("Step 1: This is the first INCORRECT step", None, None, 0.0),
        ("Step 1: The sum is INCORRECT\n- CORRECT: 3+4=7", (False,), False, 1 / 2),
        ("Step 1: This would only be correct if x>0.", None, None, 0.0),
        ("Step 1: It is unclear whether this is CORRECT.", None, None, 0.0),
        ("Step 1: This could not be correct.", (False,), False, 1 / 2),
        ("Step 1: Because 3+4=7 this is CORRECT.\nStep 2: I would say it is INCORRECT", (True, False), False, 2 / 3),
        # who says both says nothing
        ("Step 1: CORRECT\nStep 2: INCORRECT\nFinal verdict: CORRECT\nFinal verdict: INCORRECT", (True, False), False, 2 / 3),
        ("Step 1: CORRECT INCORRECT\nFinal verdict: INCORRECT CORRECT", None, None, 0.0),
        # words of an analysis are none
        ("Step 1: The answer is in correct units.\n", None, None, 0.0),
        ("Step 1: Correct value should be 5, not 6.\n", None, None, 0.0),
        ("Step 1: The correct value is on the right side.\n", None, None, 0.0),
        ("I cannot say.", None, None, 0.0),
        ("", None, None, 0.0),
    ],
)  # fmt: skip
def test_verdicts_on_three_steps(text: str, steps: tuple[bool, ...] | None, final: bool | None, form: float) -> None:
    parsed = VERIFIER.parse(text, make_solution(3))
    value = parsed.value
    assert (value.steps, value.final) == (steps, final)
    assert parsed.format == pytest.approx(form)
    assert parsed.is_valid == (steps is not None and final is not None)


@PROPERTY
@given(
    verdicts=st.lists(st.booleans(), min_size=1, max_size=5),
    final=st.booleans(),
    note=st.sampled_from(["", "2 + 2 = 4.", "the right side is 7"]),
)
def test_a_written_verification_reads_back(verdicts: list[bool], final: bool, note: str) -> None:
    parsed = VERIFIER.parse(VERIFIER.write(verdicts, final, [note] * len(verdicts)), make_solution(len(verdicts)))
    assert (parsed.value.steps, parsed.value.final, parsed.format) == (tuple(verdicts), final, 1.0)


marks = st.sampled_from(
    ["Step 1:", "Step 2:", "Step 3:", "2.", " ", "\n", "\n", "CORRECT", "INCORRECT", "correct", "not ", "is ", "**",
     "\\boxed{", "}", "Final verdict:", "The solution", "wrong", "."]
)  # fmt: skip


@FUZZ
@given(text=st.lists(marks, max_size=25).map("".join) | st.text(max_size=60), count=st.integers(0, 3))
def test_any_text_reads_as_a_verification(text: str, count: int) -> None:
    parsed = VERIFIER.parse(text, make_solution(count))
    value = parsed.value
    assert 0 <= parsed.format <= 1
    assert len(value.ends) == len(value.steps or ()) and list(value.ends) == sorted(set(value.ends))
    assert value.steps is None or 0 < len(value.steps) <= count
    assert value.steps is None or len(value.steps) == count or value.steps[-1] is False
    assert all(0 < end <= len(text) for end in value.ends)


# -- What real models write ------------------------------------------------------------------------


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{n}-{row['model']}-{row['kind']}") for n, row in enumerate(REAL)])
def test_outputs_of_real_models_are_read_as_a_person_reads_them(row: dict[str, Any]) -> None:
    if row["kind"] == "solution":
        parsed = SOLVER.parse(row["text"])
        value = parsed.get(Solution)
        assert (value.answer, len(value.steps)) == (row["answer"], row["count"])
    else:
        found = VERIFIER.parse(row["text"], make_solution(row["count"])).value
        said = None if found.steps is None else list(found.steps)
        assert (said, found.final) == (row["steps"], row["final"])


# -- Prompts ---------------------------------------------------------------------------------------


def test_foreign_text_passes_a_template_unchanged() -> None:
    template = PromptTemplate("Q: {{ problem }}\n{% for s in steps %}{{ loop.index }} {{ s }};{% endfor %}{{ count }}", "mine")
    hostile = "{{ 7 * 7 }} <|im_end|> {% raw %}"
    parts = template.render({"problem": hostile, "steps": [hostile, "b"]}, count=2)
    assert "".join(part.text for part in parts) == f"Q: {hostile}\n1 {hostile};2 b;2"
    assert [part.text for part in parts if part.foreign] == [hostile, hostile, "b"]


@pytest.mark.parametrize(
    ("source", "message"),
    [("{% if %}", "line 1"), ("{{ question }}", "its variables are problem"), ("{{ problem.__class__.__mro__ }}", "mine")],
)
def test_a_faulty_template_is_one_line(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PromptTemplate(source, "mine").render({"problem": "x"})


def test_an_example_is_shown_to_base_models_and_ends_where_the_next_begins() -> None:
    solver = StepSolver("plain")
    plain = "".join(part.text for part in solver.prompt(Problem("p", "2+2?", "4")))
    assert plain.startswith("2+2?") and "\\boxed{}" in plain and not solver.stop
    solver.example = True
    shown = "".join(part.text for part in solver.prompt(Problem("p", "2+2?", "4")))
    assert shown.index("\\boxed{8}") < shown.index("2+2?") and shown.endswith("Solution:\n")
    value = solver.parse(f"It is 4.\n\n\\boxed{{4}}{solver.stop[0]}").get(Solution)
    assert value.steps == ("It is 4.", "\\boxed{4}") and value.answer == "4"


def test_verdicts_keep_their_places() -> None:
    text = "Step 1: fine. CORRECT\nFinal verdict: INCORRECT"
    found = read_verdicts(text, 1)
    assert found.final is not None
    assert text[found.steps[1].at :].startswith("CORRECT") and text[found.final.at :].startswith("INCORRECT")


def sample_check(text: str, count: int, chances: list[float]) -> Rollout:
    """A sampled verification, one token for each word, whose tokens had these probabilities."""
    words = text.split(" ")
    ends = np.cumsum([len(word) + 1 for word in words])
    ends[-1] -= 1
    target, prompt = make_solution(count), 3
    return Rollout(
        id="v",
        agent="verifier",
        problem=target.problem,
        ids=np.arange(prompt + len(words)),
        segments=(Segment("prompt", 0, prompt), Segment("verifier", prompt, prompt + len(words), "verifier", 0, trained=True)),
        logprobs=np.concatenate([np.zeros(prompt), np.log(chances)]),
        text=text,
        parsed=VERIFIER.parse(text, target),
        targets=(target,),
        chars=np.concatenate([np.zeros(prompt, dtype=np.int64), ends]),
    )


def test_a_soft_verdict_lies_on_the_side_of_its_word_by_the_words_probability() -> None:
    text = "Step 1: CORRECT\n Step 2: INCORRECT\n Final verdict: INCORRECT"
    check = sample_check(text, 3, [1, 1, 0.75, 1, 1, 0.5, 1, 1, 0.875])
    value = VERIFIER.soften(check).get(Verification)
    assert (value.steps, value.final) == ((True, False), False)
    assert value.step_scores == pytest.approx((0.875, 0.25)) and value.score == pytest.approx(0.0625)


def test_without_a_final_verdict_the_soft_one_is_that_of_all_steps() -> None:
    value = VERIFIER.soften(sample_check("Step 1: CORRECT\n Step 2: CORRECT", 2, [1, 1, 0.5, 1, 1, 0.25])).get(Verification)
    assert value.score == pytest.approx(0.75 * 0.625)
    nothing = sample_check("I cannot say", 2, [1, 1, 1])
    assert VERIFIER.soften(nothing) == nothing.parsed
