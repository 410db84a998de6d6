"""What judges, annotators, corruptors and provers write in prose, and what is read of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import PROPERTY, check_growth
from milonga.roles import SliceJudge, StepSolver, YesNoVerifier
from milonga.roles.replies import read_level, read_yes_no, swap_yes_no
from milonga.roles.slices import split_into_slices
from milonga.roles.verdicts import read_verdicts
from milonga.systems.aprm.roles import Corruptor
from milonga.systems.deepseek_math_v2.roles import DefectVerifier, ProofWriter, extract_self_analysis
from milonga.systems.genrm.roles import Annotator, mentions_reference
from milonga.tasks.corruption import change_digit
from milonga.types import Problem, Rollout

FUZZ = settings(PROPERTY, max_examples=300)
LEVELS = (0.0, 0.5, 1.0)
PROBLEM = Problem("p", "What is 2 + 3?", "5", {"worked": "One adds: 2+3=<<2+3=5>>5."})
SOLVER = StepSolver("plain")
TEXT = "First 2 is there.\n\nThen 3 more:\n2 + 3 = 5.\n\nThe answer is \\boxed{5}."
SOLUTION = Rollout.from_text("s", "generator", PROBLEM, TEXT, SOLVER.parse(TEXT))


def join(prompt: tuple[object, ...]) -> str:
    return "".join(part.text for part in prompt)  # type: ignore[attr-defined]


# -- Yes and no ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said", "plainness"),
    [
        ("Check: fine.\nVerdict: YES", True, 3),
        ("**Verdict:** NO.", False, 3),
        ("Verification: Is the answer correct (Yes/No)? No", False, 3),
        ("\\boxed{Yes}", True, 3),
        ("Final verdict: Yes, the part is right", True, 3),
        ("No errors were found.\nVerdict: **YES**", True, 3),
        ("Verdict: Yes\n\nExplanation: No further steps are needed.", True, 3),
        ("Verdict: NO\nWait.\nVerdict: YES", True, 3),  # the last word counts
        ("## Verdict\n\nNO", False, 2),
        ("The part is right. YES", True, 2),
        ("<think>Verdict: NO</think>\nYes.", True, 2),
        ("No, since 3 * 4 = 12.", False, 1),
        # whatever follows the verdict, and whatever else is asked and answered
        ("Check: Is 3+4=7? Yes.\nVerdict: NO (7*2 is 14)", False, 3),
        ("Verdict: NO\n\nIs 12 = 3*4? Yes.", False, 3),
        ("Check: does it follow? Yes, it does.\nVerdict: NO — it does not finish", False, 3),
        ("Verdict: NO\n\nExplanation: is x=3 a solution? Yes, x=3 is.", False, 3),
        ("Verdict: **NO**, because 3*4 is 12", False, 3),
        ('Verdict: "NO", since 3*4 is 12', False, 3),
        ("Verdict: YES (all steps hold)", True, 3),
        ("Verdict: NO because 3*4=12", False, 3),
        ("Verdict: NO wrong product", False, 3),
        ("Verdict: Yes the answer is correct", True, 3),
        ("Verdict: YES ✅", True, 3),
        ("**Verdict: NO** ❌", False, 3),
        ("<verdict>YES</verdict>", True, 3),
        ("Verification: Is the answer correct (Yes/No)? **No**, the answer is 12.", False, 3),
        ("Is the final answer right? No - it is 12.", False, 3),
        ("## Verdict\n\n**NO** – the product is 15.\n\nIs 7*2=14? Yes.", False, 2),
        ("**No**, since 3 * 4 = 12.", False, 1),
        ("Is 3+4=7? Yes.", True, 1),
        ("The answer is no.", False, 3),
    ],
)
def test_a_yes_or_no_is_read_however_it_is_said(text: str, said: bool, plainness: int) -> None:
    found = read_yes_no(text)
    assert found is not None and (found.right, found.plainness) == (said, plainness)
    assert text[found.at :].lower().startswith("yes" if said else "no")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "there is no mistake",
        "Answer with Yes or No",
        "Verdict: YES or NO",
        "(Yes/No)?",
        "<think>Verdict: YES",
        "Nothing. Yesterday",
        "Verdict: No errors were found",
        "Verdict: NO ERRORS",
        "Verdict: no arithmetic slip anywhere",
        "Here is my verdict. No step is wrong.",
        "The answer is no longer valid",
    ],
)
def test_what_is_no_verdict(text: str) -> None:
    assert read_yes_no(text) is None


@FUZZ
@given(st.text(max_size=80) | st.text(st.sampled_from("YESNOyesno vrdict:?/*\n{}\\boxed<think>"), max_size=120))
def test_any_text_has_a_verdict_or_none(text: str) -> None:
    found = read_yes_no(text)
    assert found is None or text[found.at :].lower().startswith("yes" if found.right else "no")
    assert read_level(text, LEVELS) in (None, *LEVELS)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("Let me determine the overall score.\nAll is right.\nOverall score: \\boxed{1}", 1.0),
        ("Overall score: \\boxed{\\frac{1}{2}}", 0.5),
        ("Overall score: \\frac{1}{4}", None),
        ("Score: .5", 0.5),
        ("Overall score: 0.5.", 0.5),
        ("Overall score: 1.0/1.0", 1.0),
        ("Overall Score: 0.5/1.0.", 0.5),
        ("Overall score: **0/1**", 0.0),
        ("Overall score: 0.50", 0.5),
        ("Overall score: 0.5/2", None),
        ("Overall score: 8/10", None),
        ("Overall score: 1..0", None),
    ],
)
def test_a_level_begins_with_a_digit_or_is_a_half(text: str, level: float | None) -> None:
    assert read_level(text, LEVELS) == level


@pytest.mark.parametrize("word", ["yes", "Yes", "YES", "no", "No", "NO"])
def test_the_other_word_is_written_alike(word: str) -> None:
    other = swap_yes_no(word)
    assert other != word and swap_yes_no(other) == word and other.isupper() == word.isupper()


@pytest.mark.parametrize("piece", ["verdict: ", "*", "step ", "yes/no ", "score \\boxed{", "no ", "?" * 50, "issue: step "])
def test_time_grows_with_the_text_alone(piece: str) -> None:
    readers: list[Callable[[str], object]] = [
        read_yes_no,
        lambda text: read_level(text, LEVELS),
        lambda text: read_verdicts(text, 3),
        lambda text: DefectVerifier("plain").parse(text, SOLUTION),
        lambda text: Corruptor("plain").parse(text, None),
    ]
    for read in readers:
        check_growth(read, piece)
    check_growth(lambda text: read_verdicts(text, 3), " ", "step")


# -- The judge of slices ---------------------------------------------------------------------------


def test_a_slice_is_asked_about_in_plain_words() -> None:
    judge = SliceJudge("plain", 1)
    first, second, _ = judge.split_solution(SOLUTION)
    assert "(nothing yet)" in join(judge.prompt(PROBLEM, first)) and "2 + 3 = 5." not in join(judge.prompt(PROBLEM, first))
    asked = join(judge.prompt(PROBLEM, second))
    assert asked.index("First 2 is there.") < asked.index("Then 3 more:\n2 + 3 = 5.") < asked.index("Verdict: YES or NO")
    assert "First 2" not in join(SliceJudge("plain", 1, "slice").prompt(PROBLEM, second))
    assert not judge.parse(asked, second).is_valid, "who repeats the question has not answered it"


@PROPERTY
@given(verdict=st.booleans(), note=st.text(st.sampled_from("abc 12+=\n"), max_size=20))
def test_a_verdict_in_prose_reads_back_and_turns_round(verdict: bool, note: str) -> None:
    judge = SliceJudge("plain", 1)
    piece = judge.split_solution(SOLUTION)[0]
    text = judge.write(verdict, note)
    parsed = judge.parse(text, piece)
    assert parsed.is_valid and parsed.format == 1.0 and parsed.value.final is verdict  # type: ignore[union-attr]
    assert judge.flip_verdict(judge.flip_verdict(text)) == text
    assert judge.parse(judge.flip_verdict(text), piece).value.final is not verdict  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "said", "form"),
    [
        ("Check: 2 + 3 is 5.\nVerdict: INCORRECT", False, 0.5),
        ("Verdict: No errors, CORRECT", True, 0.5),
        ("<think>So the verdict is correct.\nFinal verdict: CORRECT\n</think>\nVerdict: NO (wrong product)", False, 1.0),
        ("<think>Final verdict: CORRECT</think>\nVerdict: INCORRECT", False, 0.5),
        ("Check: Is 3+4=7? Yes.\nVerdict: NO (7*2 is 14)", False, 1.0),
        ("**Verdict:** Correct", True, 0.5),
        ("No, 2 + 3 is not 6.", False, 0.5),
        ("Check: it adds up.\n\n**Verdict:** YES", True, 1.0),
    ],
)
def test_a_slice_judge_may_say_correct_for_yes(text: str, said: bool, form: float) -> None:
    judge = SliceJudge("plain", 1)
    piece = judge.split_solution(SOLUTION)[0]
    parsed = judge.parse(text, piece)
    assert parsed.is_valid and parsed.value.final is said and parsed.format == form  # type: ignore[union-attr]
    assert judge.parse(judge.flip_verdict(text), piece).value.final is not said  # type: ignore[union-attr]


def test_slices_of_a_length_hold_whole_steps() -> None:
    sizes = {n: [len(p.solution.steps) for p in split_into_slices(SOLUTION, 1, "plain", n)] for n in (1, 45, 1000)}
    assert sizes == {1: [1, 1, 1], 45: [2, 1], 1000: [3]}  # the steps have 17, 23 and 24 characters
    assert SliceJudge("plain", 2, length=45).split_solution(SOLUTION)[1].solution.steps == ("The answer is \\boxed{5}.",)


# -- Yes or no about whole solutions ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "final", "form"),
    [
        ("2 + 3 is 5.\n\nVerification: Is the answer correct (Yes/No)? Yes", True, 1.0),
        ("It should be 6.\n**Verification: Is the answer correct (Yes/No)?** No", False, 1.0),
        ("The sum is right.\n\nYes", True, 0.5),
        ("I cannot tell.", None, 0.0),
    ],
)
def test_a_check_in_prose_ends_in_its_word(text: str, final: bool | None, form: float) -> None:
    parsed = YesNoVerifier("plain").parse(text, SOLUTION)
    assert parsed.value.final is final and parsed.format == form  # type: ignore[union-attr]
    assert parsed.is_valid == (final is not None)


@pytest.mark.parametrize("final", [True, False])
def test_a_written_check_holds_step_verdicts_and_the_word(final: bool) -> None:
    role = YesNoVerifier("plain")
    parsed = role.parse(role.write([True, True, final], final, ["", "2+3=5", ""]), SOLUTION)
    assert parsed.format == 1.0 and parsed.value.steps == (True, True, final)  # type: ignore[union-attr]
    direct = YesNoVerifier("plain", "direct")
    assert direct.parse(direct.write((), final), SOLUTION).value.final is final  # type: ignore[union-attr]


def test_the_reference_is_shown_to_the_annotator_alone() -> None:
    secret = replace(PROBLEM, answer="SECRET", data={"worked": "HIDDEN <<2+3=5>>5"})
    asked, annotated = (join(role.prompt(secret, SOLUTION)) for role in (YesNoVerifier("plain"), Annotator("plain")))
    assert "SECRET" not in asked and "HIDDEN" not in asked
    assert annotated.index("HIDDEN 5") < annotated.index("SECRET") < annotated.index("First 2 is there.")
    assert annotated.endswith(asked[asked.index("Check this solution") :])
    assert mentions_reference("This matches the Reference.") and mentions_reference("as in the expected answer")
    assert not mentions_reference("The answer 5 is what one expects.")


# -- The corruptor ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("Then 3 more:\n2 + 3 = 6.", "Then 3 more:\n2 + 3 = 6."),
        ("Sure! Here is the rewritten step:\n\n2 + 3 = 6.", "2 + 3 = 6."),
        ("**Rewritten step:** 2 + 3 = 6.\n\nExplanation: 6 is wrong.", "2 + 3 = 6."),
        ("```\n2 + 3 = 6.\n```", "2 + 3 = 6."),
        ("<think>hm</think>\n<step>\n2 + 3 = 6.\n</step>", "2 + 3 = 6."),
        ('"2 + 3 = 6."', "2 + 3 = 6."),
        ("One.\n\nTwo.", "One.\nTwo."),
        ("<think>never ends", None),
        ("Note that 3 + 4 = 8, so we go on.", "Note that 3 + 4 = 8, so we go on."),
        ("In this step, we add: 3 + 4 = 8.", "In this step, we add: 3 + 4 = 8."),
        ("This step gives 8.\nThis step is wrong.", "This step gives 8."),
        ("The next step is to add: 3 + 4 = 8.", "The next step is to add: 3 + 4 = 8."),
        ("We add.\nNote that 3 + 4 = 8.\nNote: it is 7.", "We add.\nNote that 3 + 4 = 8."),
        ("Here is the rewritten step:", None),
        # what betrays the rewriting
        ("Sure! Here's the modified step:\n\n> Next, 2 + 3 = 6.\n\nThis introduces a mistake", "Next, 2 + 3 = 6."),
        ("2 + 3 = 6.\n\nThis introduces a mistake", "2 + 3 = 6."),
        ("$$2 + 3 = 6$$\n\nI introduced an error by adding one.", "$$2 + 3 = 6$$"),
        ("2 + 3 = 6.\n\nHere, the subtle error is the sum.", "2 + 3 = 6."),
        ("2 + 3 = 6.\n\n---\n\nThe error here is the sum.", "2 + 3 = 6."),
        ("2 + 3 = 6.\n\nExplanation of the error: it is 5.", "2 + 3 = 6."),
        ("I changed the sum.\n\n2 + 3 = 6.", "2 + 3 = 6."),
        ("Rewritten paragraph:\n2 + 3 = 6.", "2 + 3 = 6."),
        ("**Step 2 (rewritten):** 2 + 3 = 6.", "2 + 3 = 6."),
        ("Incorrect step: 2 + 3 = 6.", "2 + 3 = 6."),
        ("Here's a subtly wrong version:\n\n**Rewritten step:** 2 + 3 = 6.", "2 + 3 = 6."),
        ("Original: 2 + 3 = 5.\nRewritten: 2 + 3 = 6.", "2 + 3 = 6."),
        ("**Original step:**\n2 + 3 = 5.\n\n**Modified step:**\n2 + 3 = 6.", "2 + 3 = 6."),
        ("<step>2 + 3 = 6.</step>", "2 + 3 = 6."),
        ("Here it is: <step>2 + 3 = 6.</step>\nThe sum is off by one.", "2 + 3 = 6."),
        ("> 2 + 3 = 6.\n> So it is 6.", "2 + 3 = 6.\nSo it is 6."),
        # ... and what does not
        (
            "The price falls.\nThe change is 3 dollars.\nI added both.",
            "The price falls.\nThe change is 3 dollars.\nI added both.",
        ),
        ("Here, the sum is 6.\nThis gives x > 3\nand y.", "Here, the sum is 6.\nThis gives x > 3\nand y."),
        ("The original price: 5.\nThe new price: 6.", "The original price: 5.\nThe new price: 6."),
        ("Original: 2 + 3 = 6.", "Original: 2 + 3 = 6."),
        ("", None),
    ],
)
def test_a_rewritten_step_is_found_in_what_is_said_around_it(text: str, step: str | None) -> None:
    parsed = Corruptor("plain").parse(text, None)
    assert parsed.value.steps == (() if step is None else (step,))  # type: ignore[union-attr]
    assert parsed.is_valid == (step is not None) and parsed.format == (0.0 if step is None else 1.0 if step == text else 0.5)


@FUZZ
@given(st.text(max_size=60) | st.text(st.sampled_from("Sure: heris step\n`<think>/note 12"), max_size=80))
def test_whatever_a_corruptor_writes_is_one_step_or_none(text: str) -> None:
    parsed = Corruptor("plain").parse(text, None)
    assert parsed.is_valid == bool(parsed.value.steps) == (parsed.format > 0)  # type: ignore[union-attr]
    assert all(step.strip() and "\n\n" not in step for step in parsed.value.steps)  # type: ignore[union-attr]


@PROPERTY
@given(text=st.text(st.sampled_from("ab 1.)23:\n*step="), max_size=40), seed=st.integers(0, 5))
def test_one_digit_changes_and_no_number_of_a_line(text: str, seed: int) -> None:
    found = change_digit(text, random.Random(seed))
    if found is not None:
        at = [k for k, (a, b) in enumerate(zip(text, found, strict=True)) if a != b]
        assert len(at) == 1 and text[at[0]].isdigit() and found[at[0]].isdigit()
    assert change_digit("1. First\nStep 2: then\n 3) so", random.Random(seed)) is None
    assert change_digit("1. It is 7.", random.Random(seed)) in {f"1. It is {d}." for d in range(10) if d != 7}


# -- Proofs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("heading", ["Evaluation:", "**Evaluation:**", "## Self-Evaluation", "Self evaluation:"])
def test_a_proof_ends_where_its_evaluation_begins(heading: str) -> None:
    text = f"{TEXT}\n\n{heading}\nIssue: step 2: no reason is given.\nOverall score: \\boxed{{0.5}}"
    parsed = ProofWriter("plain").parse(text)
    proof = Rollout.from_text("p", "generator", PROBLEM, text, parsed)
    assert parsed.is_valid and parsed.format == 1.0 and proof.solution.answer == "5" and len(proof.solution.steps) == 3
    own = extract_self_analysis(proof).verification
    assert own.score == 0.5 and own.steps == (True, False, True)
    shown = join(DefectVerifier("plain").prompt(PROBLEM, proof))
    assert "Step 3:\nThe answer" in shown and "no reason is given" not in shown


def test_a_statement_is_proved_without_a_box_and_a_score_is_no_answer() -> None:
    parsed = ProofWriter("plain").parse("By symmetry.\n\nHence it holds.\n\nEvaluation:\nNo issues.\nOverall score: \\boxed{1}")
    assert parsed.is_valid and parsed.format == 1.0 and parsed.value.answer == ""  # type: ignore[union-attr]
    assert not ProofWriter("plain").parse(TEXT).is_valid, "it must judge itself"
    assert not ProofWriter("plain").parse("Evaluation:\nOverall score: \\boxed{1}").is_valid, "there is nothing to judge"
