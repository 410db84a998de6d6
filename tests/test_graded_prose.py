"""Readers of free text that several systems share: scores on a scale, questions, choices between two answers, conclusions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY, check_growth
from milonga.roles.grades import Scale, parse_grading, read_score
from milonga.roles.proposer import Proposal, Proposer, QuestionWriter
from milonga.roles.questions import read_question
from milonga.roles.replies import read_choice
from milonga.roles.verdicts import read_conclusion
from milonga.types import Problem

TEN, FIVE = Scale(1, 10, 8), Scale(0, 5, 4)
SCORES: list[tuple[str, Scale, float | None, float]] = [
    ("Score: 7", TEN, 7, 1.0),
    ("Good.\n\n**Final Score: 9/10**", TEN, 9, 1.0),
    ("<score>7</score>", TEN, 7, 1.0),
    ("- **Score:** 4.5", FIVE, 4.5, 1.0),
    ("### Score\n\n4", FIVE, 4, 1.0),
    ("Score (0-5): 4", FIVE, 4, 1.0),
    ('{"score": 7, "why": "12 is wrong"}', TEN, 7, 1.0),
    ("Score: $\\boxed{4}$", FIVE, 4, 1.0),
    ("Therefore, the final score is 4.", FIVE, 4, 1.0),
    ("Total score: 3 points", FIVE, 3, 1.0),
    ("Score: N = 4", FIVE, 4, 1.0),
    ("Score: 1 + 1 + 1 + 0 + 0 = 3", FIVE, 3, 1.0),
    ("<think>Score: 1</think>Score: 5", FIVE, 5, 1.0),
    ("Score: 2\nNo, better:\nScore: 5", FIVE, 5, 0.5),
    ("**7/10**", TEN, 7, 0.5),
    ("\\boxed{7}", TEN, 7, 0.5),
    ("I would give it 8 out of 10.", TEN, 8, 0.5),
    ("I would rate this answer a 6", TEN, 6, 0.5),
    ("I deduct one point.\n**9/10**\nIt is nearly right.", TEN, 9, 0.5),
    ("Overall: 4/5\n\nIt is well done.", FIVE, 4, 0.5),
    ("It deserves 4/5. The rest is fine.\nGo on.", FIVE, 4, 0.5),
    ("So 3/5 of the apples are red. The solution is right.", FIVE, None, 0.0),
    ("9 out of 10 students pass.", TEN, None, 0.0),
    ("The share is 3/5.\nThe solution is right.", FIVE, None, 0.0),
    ("The answer is 12, as it should be.\n7", TEN, 7, 0.5),
    ("Score: 7 or 8", TEN, None, 0.0),
    ("Score: 7-8", TEN, None, 0.0),
    ("Score: 11", TEN, None, 0.0),
    ("Score: -1", FIVE, None, 0.0),
    ("Score: 0", TEN, None, 0.0),
    ("Score: 9/10", FIVE, None, 0.0),
    ("Score: 80%", TEN, None, 0.0),
    ("Score: five", FIVE, None, 0.0),
    ("<think>Score: 3", FIVE, None, 0.0),
    ("The total is 4, and Grade 7 has 5 pupils.", TEN, None, 0.0),
    ("I give 1 point for relevance and 1 for use.", FIVE, None, 0.0),
    ("\\boxed{4} is the right result.\nIt is well done.", TEN, None, 0.0),
    ("", TEN, None, 0.0),
    ("Score: $\\frac{8}{10}$", TEN, 8, 1.0),
    ("\\[ \\boxed{\\frac{8}{10}} \\]", TEN, 8, 0.5),
    ("So $\\frac{3}{5}$ of the apples are red. It is right.", FIVE, None, 0.0),
    ("Score: \\frac{3}{4}", FIVE, None, 0.0),
    ("Score: 8,5/10", TEN, 8.5, 1.0),
    ("Score: 8,5", TEN, None, 0.0),
    ("\\[\n\\boxed{8}\n\\]", TEN, 8, 0.5),
    ("It is $x$:\n$$\n\\boxed{4}\n$$\n", FIVE, 4, 0.5),
    ("\\[\n\\boxed{4}\n\\]\nIt is well done.", FIVE, None, 0.0),
    # what was not given is none, and of two that were the last counts
    ("Score: 3/10\n\nScore: 9/10 would need units.", TEN, 3, 1.0),
    ("Score: 3\n\nA score of 9 would take units.", TEN, 3, 1.0),
    ("Score: 7/10. Needs units.", TEN, 7, 1.0),
    ("Score: 7/10 - it could be shorter.", TEN, 7, 1.0),
    ("Score: 9/10 would need units.", TEN, None, 0.0),
    ("Score: 3/10\n\nScore: 9/10 with units.", TEN, 9, 0.5),
    # What Qwen2.5-Coder-0.5B-Instruct wrote, asked for "Score: N" and for "Score: N/5".
    ("4/5", FIVE, 4, 0.5),
    ("Score: 3/5", FIVE, 3, 1.0),
    ('"Score: 2/5"\n\nExplanation:\n1. The answer talks about licks.\n5. The total number of people is 5.', FIVE, 2, 1.0),
    ("Answer is \\boxed{Score: 4/5}", FIVE, 4, 0.5),
    ("2", FIVE, 2, 0.5),
    ("Score: 10", FIVE, None, 0.0),
    ("8\nScore: 22", FIVE, None, 0.0),
    ("0\n\nScore: N", FIVE, None, 0.0),
    ("1, 1, 2, 2, 2", FIVE, None, 0.0),
    ("8 Out of 10\n\nAs a helpful assistant, I score N = 50.", FIVE, None, 0.0),
    ("Score: N\n\n1. Dan needs 58 licks.\n4. The average is \\boxed{230} licks.", FIVE, None, 0.0),
    # What Qwen2.5-Coder-1.5B-Instruct wrote.
    ("So it is \\(\\boxed{75}\\).\n\n** Judgement: 9 out of 10**\n\n**Explanation: I judged this answer clear.", TEN, 9, 0.5),
    ("Explanation: The answer is incorrect.\n\nGrade: 1/$10", TEN, 1, 1.0),
    ("Based on this, this answer received an **8 out of 10 grade** for its logical connectivity.", TEN, 8, 0.5),
    ("Hence, the question only receives a 4 out of 10 score.", TEN, 4, 0.5),
    ("7. The final grade is Score: 8/10.\n\nFinal Answer: The number of marbles is \\boxed{40}.", TEN, 8, 0.5),
    ("It lacks point 5.\n\nA grade of 3/5 is given because the answer covers what was asked for.", FIVE, 3, 0.5),
    ("The answer is 5 points. It is complete, clear, and correct.", FIVE, 5, 0.5),
    ("The answer gets 5 points. It is complete and accurate.", FIVE, 5, 0.5),
    ("The answer scores 4 points for being correct and complete about the question. It is right.", FIVE, 4, 0.5),
    ("Answer gets 4 out of 5 points for:\n1. It is what an expert would write.\n\nWhy: It is clear.", FIVE, 4, 0.5),
    ("0/5 scored because the answer does not directly state every detail.", FIVE, 0, 0.5),
    ("Judgement:\nThe response does not match.\n\nGrade: 1 to 4", TEN, None, 0.0),
    ("My judgement about the given answer is **4 to 7 points**.\n\nThe reasoning:\n- You followed it.", TEN, None, 0.0),
    ("Therefore, the answer is incorrect, and the rank of 1 to 3 points should be given.", TEN, None, 0.0),
    ("The correct score for this response is:\nScore: 1 to 4/10", TEN, None, 0.0),
    ("It cannot be answered.\n\nScore: 0/10", TEN, None, 0.0),
    ("For this answer, the points it gets are 2 and 3 out of 5.\n\n1. It is about the question.", FIVE, None, 0.0),
    ("It gives a basic answer.\n100 points as the answer gives a clear and basic answer.", FIVE, None, 0.0),
    # ... and what must not be read for the sake of these
    ("An ideal answer gets 5 points. This one is poor.", FIVE, None, 0.0),
    ("No answer gets 5 points.", FIVE, None, 0.0),
    ("If complete, the answer gets 5 points.", FIVE, None, 0.0),
    ("The answer gets 5 points, if it were complete.", FIVE, None, 0.0),
    ("The answer gets 2 points for accuracy and 3 for clarity.", FIVE, None, 0.0),
    ("The answer gets 1 point for each criterion met. All five are met.", FIVE, None, 0.0),
    ("A grade of 5/5 was given by the other judge, which is too high.\nSo it is.", FIVE, None, 0.0),
    ("It can't be that a grade of 5/5 is justified.\nNo.", FIVE, None, 0.0),
    ("A grade of 5/5 is given for perfection only.\nNo.", FIVE, None, 0.0),
    ("The answer gets 1 point for its relevance. The answer gets 2 points for its use.", FIVE, None, 0.0),
    ("The answer gets 2 points for its relevance, and one point for its use.", FIVE, None, 0.0),
    ("The answer is 5 points too high. It is wrong.", FIVE, None, 0.0),
    ("Tom wins two games. The answer is 5 points. That is right.", FIVE, None, 0.0),
    ("So 3/5 is given to Tom. It is right.", FIVE, None, 0.0),
    ("9 out of 10 score above average.\nIt is right.", TEN, None, 0.0),
    ("To deserve it, a grade of 5/5 is given only if all is right.\nIt is not.", FIVE, None, 0.0),
]


@pytest.mark.parametrize(("text", "scale", "points", "form"), SCORES)
def test_a_score_is_read_however_it_is_written_and_never_guessed(
    text: str, scale: Scale, points: float | None, form: float
) -> None:
    assert read_score(text, scale) == (points, form)


def test_points_become_a_score_and_a_verdict() -> None:
    """V = (x - 1) / 9 on a scale from 1 to 10; points / 5 on one from 0 to 5."""
    found = parse_grading("Score: 7", TEN).value
    assert found.score == pytest.approx(6 / 9) and found.final is False and found.steps is None
    assert [parse_grading(f"Score: {n}", TEN).value.score for n in (1, 10)] == [0.0, 1.0]
    assert parse_grading("Score: 4", FIVE).value.score == 0.8 and parse_grading("Score: 4", FIVE).value.final is True
    missing = parse_grading("It is fine.", TEN)
    assert missing.value.score is None and missing.format == 0.0 and missing.invalid == "no score from 1 to 10"


@PROPERTY
@given(st.integers(1, 10), st.text(max_size=40).filter(lambda text: "<" not in text))
def test_what_was_asked_for_reads_back_behind_any_remark(points: int, remark: str) -> None:
    assert read_score(f"{remark}\nScore: {points}", TEN)[0] == points


CHARS = st.sampled_from([*"0123456789", *" \n:/.*-+=[](){}AB", "Score", "rating", "of", "or", "boxed{", "<score>", "Question:",
                         "Answer:", "[[A]]", "Final verdict", "CORRECT", "<think>", "</think>", "<question>"])  # fmt: skip


@PROPERTY
@given(st.lists(CHARS, max_size=40).map("".join))
def test_no_text_breaks_a_reader(text: str) -> None:
    points, form = read_score(text, TEN)
    assert (points is None and form == 0.0) or (points is not None and 1 <= points <= 10 and form in (0.5, 1.0))
    question = read_question(text)
    assert (question.format > 0) == bool(question.question) and (question.question or not question.work)
    choice, sure = read_choice(text)
    assert choice in (None, "A", "B", "C") and (sure > 0) == (choice is not None)
    assert read_conclusion(text)[0] in (None, True, False)


@pytest.mark.parametrize(
    "piece",
    [
        "1 ",
        "score ",
        "Score: ",
        "1/",
        "(",
        "1 + ",
        "Question:\n",
        "A ",
        "[[",
        "final ",
        "A or ",
        "Sure:\n\n",
        "**",
        "# ",
        "new ",
        "step 1\n",
        "\\frac{1}",
        "1,1/",
    ],
)
def test_time_grows_with_the_text_and_no_faster(piece: str) -> None:
    for read in (lambda t: read_score(t, TEN), read_question, read_choice, read_conclusion):
        check_growth(read, piece)


QUESTIONS = [
    ("Question: How many?", "How many?", "", 1.0),
    ("Sure! Here is a harder question:\n\n**Question:** How many\npears?\n\n**Answer:** 4", "How many\npears?", "4", 1.0),
    ("<question>How many?</question>\nSolution: \\boxed{3}", "How many?", "\\boxed{3}", 1.0),
    ("<think>Question: no</think>New question: How many?", "How many?", "", 1.0),
    ("Question: one?\nQuestion: two?", "one?", "", 0.5),
    ("How many are there?\n\nExplanation: it is harder.", "How many are there?", "", 0.5),
    ('Certainly, here is one:\n"How many are there?"', "How many are there?", "", 0.5),
    ("Question 2: How many?\nSolution:\n2 + 2 = 4.\n\nSo \\boxed{4}.", "How many?", "2 + 2 = 4.\n\nSo \\boxed{4}.", 1.0),
    ("Question:\nHere are two integers: 3 and 5.\nAdd them.", "Here are two integers: 3 and 5.\nAdd them.", "", 1.0),
    ("Below are two numbers: 3 and 5.\nWhat is more?", "Below are two numbers: 3 and 5.\nWhat is more?", "", 0.5),
    (
        "Question: There are 2 boxes.\nNote: each holds 4.\nHow many?",
        "There are 2 boxes.\nNote: each holds 4.\nHow many?",
        "",
        1.0,
    ),
    (
        "Question: Q?\nSolution:\n\n**Explanation:** He adds.\n\n\\boxed{7}",
        "Q?",
        "**Explanation:** He adds.\n\n\\boxed{7}",
        1.0,
    ),
    ("Question: Q?\nSolution: Add.\n\nReasoning: 3+4.\n\n\\boxed{7}", "Q?", "Add.\n\nReasoning: 3+4.\n\n\\boxed{7}", 1.0),
    # headings and bold lines need no colon, and solutions have many names
    ("### Question\n\nHow far?\n\n### Solution\n\n60*3 = \\boxed{180}", "How far?", "60*3 = \\boxed{180}", 1.0),
    ("**New Question**\n\nHow far?\n\n**Solution**\n\n\\boxed{180}", "How far?", "\\boxed{180}", 1.0),
    ("Question: How far?\n\n### Solution\n60*3=180\n\n\\boxed{180}", "How far?", "60*3=180\n\n\\boxed{180}", 1.0),
    ("Question: How far?\n\n**Step-by-step solution:**\n60*3=180", "How far?", "60*3=180", 1.0),
    ("Question: How far?\n\n**Correct Answer:** 180", "How far?", "180", 1.0),
    ("Question: How far?\n\n### Detailed Solution:\n180", "How far?", "180", 1.0),
    ("<question>How far?</question>\n\n### Solution\n\n\\boxed{180}", "How far?", "\\boxed{180}", 1.0),
    ("Question: How far?\n\nTo solve this, multiply: 60*3=180.", "How far?", "To solve this, multiply: 60*3=180.", 1.0),
    ("Question: How far?\n\n**Step 1:** 60*3\n\\boxed{180}", "How far?", "**Step 1:** 60*3\n\\boxed{180}", 1.0),
    ("1. Question: one?\n2. Question: two?", "one?", "", 0.5),
    ("Here is a harder version:\n\n---\n\nHow far?\n\n---", "How far?", "", 0.5),
    # remarks about the question are none of it
    ("Question: How far?\n\nNote: this version is harder.", "How far?", "", 1.0),
    ("Question: How far?\n\n**Note:** This new question needs two steps.\nIt is harder.", "How far?", "", 1.0),
    ("Question: How far?\n\nThis question is harder because it needs two steps.", "How far?", "", 1.0),
    ("How far is it?\n\nLet me know if you want another one!", "How far is it?", "", 0.5),
    # ... but what the question needs is
    (
        "Now then.\nQuestion:\nTo solve this puzzle, Ann has 3 keys.\nHow many?",
        "To solve this puzzle, Ann has 3 keys.\nHow many?",
        "",
        1.0,
    ),
    ("Question: How far?\nNote: the answer is in km.", "How far?\nNote: the answer is in km.", "", 1.0),
    ("Question: This problem is about trains.\nHow far?", "This problem is about trains.\nHow far?", "", 1.0),
    (
        "Question: A recipe.\nStep 1: take 3 eggs.\nStep 2: take 2.\nHow many?",
        "A recipe.\nStep 1: take 3 eggs.\nStep 2: take 2.\nHow many?",
        "",
        1.0,
    ),
    (
        "Question: Its solution is 3.\nThe answer of Ann is 4.\nWho?",
        "Its solution is 3.\nThe answer of Ann is 4.\nWho?",
        "",
        1.0,
    ),
    ("Question:", "", "", 0.0),
    ("### Question", "", "", 0.0),
    ("Answer: 4", "", "", 0.0),
    ("", "", "", 0.0),
]


@pytest.mark.parametrize(("text", "question", "work", "form"), QUESTIONS)
def test_a_question_is_found_among_what_stands_around_it(text: str, question: str, work: str, form: float) -> None:
    found = read_question(text)
    assert (found.question, found.work, found.format) == (question, work, form)


def test_a_proposer_in_prose_asks_for_a_box_only_where_answers_have_one() -> None:
    role = Proposer("plain")
    boxed, free = (role.prompt(Problem("p", "^How many?", "", data)) for data in ({"posed": True}, {"form": "open"}))
    assert "harder" in boxed[0].text and "\\boxed" in boxed[0].text and boxed[1].text == "How many?" and boxed[1].foreign
    assert "\\boxed" not in free[0].text
    found = role.parse("Question: How many?\nSolution: 2 + 2, so \\boxed{4}.")
    assert found.is_valid and found.value == Proposal("How many?", "4", "2 + 2, so \\boxed{4}.")
    assert role.parse(role.write("How many?", "So \\boxed{4}.")).value == Proposal("How many?", "4", "So \\boxed{4}.")
    loose = role.parse("Question: How many?\nAnswer: four")
    assert loose.is_valid and loose.value.answer == "four" and loose.format == 0.5
    assert role.parse("Question: How many?").invalid == "no solution"
    assert QuestionWriter("plain", "Ask.").parse("").invalid == "no question"


CHOICES = [
    ("A has an error. B is fine.\n\n[[B]]", "B", 1.0),
    ("[[A]]", "A", 1.0),
    ("**Verdict: [[A]]**", "A", 1.0),
    ("End with [[A]] or [[B]].\n[[B]]", "B", 1.0),
    ("At first [[A]]. But no:\n[[B]]", "B", 1.0),
    ("[B]", "B", 0.5),
    ("\\boxed{A}", "A", 0.5),
    ("Verdict: B", "B", 0.5),
    ("The better solution is A.", "A", 0.5),
    ("Solution A is better than solution B, since B is wrong.", "A", 0.5),
    ("Both are right.\n[[C]]", "C", 1.0),
    ("My choice:\nB", "B", 0.5),
    ("A is about apples, B is about pears.", None, 0.0),
    ("[[A]] or [[B]]", None, 0.0),
    ("<think>[[A]]", None, 0.0),
    ("", None, 0.0),
]


@pytest.mark.parametrize(("text", "choice", "form"), CHOICES)
def test_the_plainest_and_last_choice_counts(text: str, choice: str | None, form: float) -> None:
    assert read_choice(text) == (choice, form)


CONCLUSIONS = [
    ("2 + 2 = 4.\n\nFinal verdict: CORRECT", True, True),
    ("Step 1: fine.\nStep 2: wrong.\n**Final Verdict:** INCORRECT", False, True),
    ("The answer is incorrect.", False, False),
    ("It is 5, not 4.\nINCORRECT", False, False),
    ("Final verdict: CORRECT\nFinal verdict: INCORRECT", None, False),
    ("Final verdict: CORRECT or INCORRECT", None, False),
    ("<think>Final verdict: CORRECT</think>Final verdict: INCORRECT", False, True),
    ("It is about the correct value.", None, False),
    ("", None, False),
    # What Qwen2.5-Coder-1.5B-Instruct wrote.
    ("The answer is CORRECT.\n\nReasoning: There are 92 dogs. We can conclude this is the correct answer to it.", True, False),
    ("The answer is CORRECT.\n[This statement is a statement about an outcome.]", True, False),
    (
        'The answer to the question "How many bugs were there? " is CORRECT.\n\nIt is straightforward:\n\\[ x = x \\]',
        True,
        False,
    ),
    ("The answer is correct. The reasoning is as follows:\n1. We have 20 pets.\n4. So it is indeed correct.", True, False),
    ("The answer is definitively incorrect. The correct number of licks is approximately 52.", False, False),
    ("The answer you provided is incorrect because it is not 95:\n\n- You add.\n\nSo 50 flowers remain.", False, False),
    ("3. The number of cats left is 5.\n4. The final verdict: CORRECT\n\nFinal answer: It is \\(\\boxed{5}\\).", True, True),
    ("1. We collect them.\n5. Final verdict: CORRECT\n\nThis test question examines a model.", True, True),
    ("3. **Joining**: All join.\n\n4. **Final verdict**: CORRECT\n\nThe correct final verdict is that 30 do.", True, True),
    ("5. **Final verdict:**\n   - CORRECT\n\nThe minimum number of boats is \\(\\boxed{9}\\).", True, True),
    ("4. It matches, so the final verdict is: CORRECT.\n\nTherefore, Emma will be 56 years old.", True, True),
    ('End with "Final verdict: CORRECT" or "Final verdict: INCORRECT".\n\nFinal verdict: CORRECT', True, True),
    ("No bugs are left after 3 hours. Therefore, the final answer is:\n\\[\n\\boxed{CORRECT}\n\\]", True, False),
    ("The enrollment remains unchanged at 20.\n\nFinal verdict: EXACT.", None, False),
    (
        "It depends.\n\nFinal verdict: DEPENDENT ON THE INITIAL NUMBER OF BUGS\n\nThis means that it will depend on them.",
        None,
        False,
    ),
    ('"Final verdict: CORRECT" or "Final verdict: INCORRECT" cannot be determined. More is needed.', None, False),
    ('The answer to the question "How many?" is correct if we assume the number is \\( P \\).\n\nSo it is.', None, False),
    ('The answer to "Final verdict: CORRECT" would fit.\n\nSo "Final verdict: INCORRECT" would be closer.', None, False),
    # ... and what is supposed, quoted, or taken back
    ("3. If all is right, the final verdict is CORRECT.\nThe sum is 5, not 6.", None, False),
    ("2. Write your final verdict as CORRECT when it holds.\nIt doesn't hold", None, False),
    ("1) The previous final verdict was CORRECT\nbut I see an error.", None, False),
    ('It says: end with "Final verdict: CORRECT" or "Final verdict: INCORRECT". Final verdict: INCORRECT', False, True),
    ('Final verdict: CORRECT, since "Final verdict: CORRECT" or "Final verdict: INCORRECT" was asked.', True, True),
    ("The answer is correct\nonly if x = 3", None, False),
    ("The answer is correct.\nNo it is not.", None, False),
    ("The answer is correct.\n\nActually, that's false; it should be 7.", None, False),
    ("The answer is incorrect.\nWait, I recomputed, and it is fine: 5.", None, False),
    ("The answer is correct.\n\nFirst, 4 hours pass.\n\nSo the correct answer is 3 hours, and not 4.", None, False),
    ("The answer is CORRECT.\n\n2 + 2 is 5. But the answer is INCORRECT.\nSo much for that.", None, False),
    ("4. Final verdict: CORRECT\n5. Final verdict: INCORRECT\n\nThat is all.", None, False),
]


@pytest.mark.parametrize(("text", "right", "marked"), CONCLUSIONS)
def test_a_conclusion_is_one_verdict_or_none(text: str, right: bool | None, marked: bool) -> None:
    assert read_conclusion(text) == (right, marked)
