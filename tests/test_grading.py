"""Grading: what is equal, what is not, and that a hostile answer costs its own grade and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from helpers import PROPERTY
from milonga.errors import MissingExtra, UserError
from milonga.tasks import grading
from milonga.tasks.answers import is_number, normalise_answer, respell_layout, strip_dress, strip_frames
from milonga.tasks.grading import Cache, Grader, compare_quickly, decode_reply, make_environment
from test_tasks_data import shared_data


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """One whose process starts while our environment holds a secret."""
    with pytest.MonkeyPatch.context() as patch, Grader() as made:
        patch.setenv("SOME_API_KEY", "hunter2")
        yield made


def worker_id(grader: Grader) -> int:
    return grader._workers["math", False].process.pid


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


QUICK = [
    ("72", "72", True),
    ("72", " 72 \n", True),
    ("72", "$72$", True),
    ("72", "\\$72", True),
    ("72", "72.", True),
    ("72", "72.00", True),
    ("72", "+72", True),
    ("1,234,567", "1234567", True),
    ("1,234", "1234.0", True),
    (".5", "0.50", True),
    ("72", "73", False),
    ("72", "-72", False),
    ("0.1", "0.10000000000000001", False),
    ("72", "", False),
    ("72", "...", False),
    ("Paris", "paris", True),
    ("Paris", "London", False),
    ("New  York", "new york", True),
]


@pytest.mark.parametrize(("gold", "answer", "expected"), QUICK)
def test_strings_decimals_and_words_need_no_worker(gold: str, answer: str, expected: bool) -> None:
    with Grader() as grader:
        assert grader.compare_answers([(gold, answer)]) == [expected]
        assert not grader._workers
        assert grader.counts == {"quick": 1}


MATHEMATICS = [
    ("1/2", "0.5", True),
    ("\\frac{1}{2}", "1/2", True),
    ("2\\sqrt{2}", "\\sqrt{8}", True),
    ("x^2+2x+1", "(x+1)^2", True),
    ("72", "x = 72", True),
    ("72", "72\\text{ clips}", True),
    ("{1,2}", "\\{2, 1\\}", True),
    ("1/2", "1/3", False),
    ("72", "sqrt", False),
    ("x+1", "x-1", False),
]


def test_equality_is_that_of_mathematics(grader: Grader) -> None:
    results = grader.compare_answers([(gold, answer) for gold, answer, _ in MATHEMATICS])
    assert results == [expected for *_, expected in MATHEMATICS]


def split_row(text: str) -> list[str]:
    """Answers that stand in lines, two blanks between them."""
    return [answer for line in text.split("\n") for answer in line.split("  ") if answer.strip()]


WITH_UNITS = split_row(
    r"""
    30 seats  30seats  $30  30.0 dollars  30 miles per hour  30\text{ seats}  30 m  x = 30 seats  30%  30\%
    30 percent  30 cm^2  30 cm²  30 \text{ cm}^2  30^\circ  30°  30\,\mathrm{kg}
    """
)
NAMED = split_row(
    r"""
    x = 30  \theta = 30  f(2) = 30  a_1 = 30  \text{total} = 30  20 + 10 = 30  The answer is 30  Answer: 30  **30**
    \boxed{30}  \(30\)  \[30\]  \left(30\right)  \text{30}  \frac{60}{2}
    """
)


@pytest.mark.parametrize("answer", WITH_UNITS + NAMED)
def test_a_number_may_have_a_unit_or_a_name(grader: Grader, answer: str) -> None:
    assert grader.compare_answers([("30", answer), ("31", answer)]) == [True, False]


NOT_THE_NUMBER = split_row(
    r"""
    x>30  x \ge 30  30 < x  about 30  ≈30  \approx 30  30 \approx 31  ~30  \sim 30  30x  30 x  31=30  30=31
    \frac{31}{1}=30  2x=30  30=30=30=30=30=30  30 thousand  30 dozen  30 or forty  30 to forty  30 squared  30xy
    31 seats  3000%  3000\%  3000 percent  3 \cdot 1000\%  30\pm 0  \pm 30  30\pm1  [30]  [30,30]  \{30\}  (30,31)
    [29,31]  30;31  30, 31  30 or 31  30 \text{ or } 31  30 \text{ thousand}  30\text{ (or 31)}  30 or more  30ish
    30 approximately  30+  30-  \boxed{30}\boxed{31}  30\quad 31  30{}31  30\\31  30\to 31  30\rightarrow31
    30\in\{30,31\}  \neg 30  \neq 30  30\neq31  30\equiv 1  61 \mod 31  30_6  30'  \cancel{6}30  \phantom{6}30
    30\text{6}  \text{6}30  30\ldots  \ldots30  \int_0^{30} dx  not 30  the answer is not 30  less than 30  30+0i
    30\infty  |30|  30|31
    """
)
ODD = [
    "30\u202e6",
    "30\u2030",
    "6\u200b30",
    "30\u200b",
    "\u200b30",
    "30\xad",
    "30\u0301",
    "30\ufeff",
    "\uff13\uff10",
    "\u0663\u0660",
    "30\xb2",
    "30\u2070",
    "30\U000e0030",
    "\u2460",
    "30\u0336",
    "30\x006",
]
"""With characters that cannot be seen, change others, or are digits of other alphabets."""


@pytest.mark.parametrize("answer", [*NOT_THE_NUMBER, *ODD])
def test_bounds_approximations_and_contradictions_are_not_the_number(grader: Grader, answer: str) -> None:
    assert grader.compare_answers([("30", answer)]) == [False]


MALFORMED = split_row(
    r"""
    30**6  30^-6  30//6  30..6  30...  30..  30)6  6) 30  6} 30  6( 30  6{ 30  30)  (30  30}  30)(6  30+}6  5}6}7} 30  30!^6
    !30  \frac 30  \frac{30}  30\times\times6  -) 30  30sqrt  30 sqrt  30\sqrt  30\cdot  30\times  *30  30!  30_6
    30{}  30()  -{} 30  30\left  30\right  \left30  30\overline  25{5}  {25}5  {25}{5}
    25(5)  (25)(5)  \frac{25}{1}5  \frac{50}{2}\frac{10}{2}  3.0.0  25.5.5
    """
)
DOUBTED = split_row(
    r"""
    \not=30  x\not=30  x\approx=30  x\leq=30  x \gt = 30  x\prec=30  x\to=30  x\in=30  \neg x=30  x)=30  sqrt(36)=30  6)=30
    \pi=30  not x = 30  x less than or = 30  at least: 30  at most: 30  more than: 30  approximately: 30  anything but: 30
    Not this: 30  The wrong answer is 30  The answer isn't: 30  it is never: 30  The answer is about: 30  up to: 30
    negative: 30  The most: 30  six or: 30  A lower bound is 30  My guess is 30  30 thousandths  30 tens  30 score
    30 lakh  30 crore  30 grand  30 per mille  30 bn  30 negative  30 (negative)  30 no  30 wrong  30 never
    30 false  30 log  30 reciprocal  30 five
    30 (five)  30 xor  30 vs  30 mille  30 mio
    """
)


@pytest.mark.parametrize("answers", [MALFORMED, DOUBTED], ids=["malformed", "doubted"])
def test_what_is_no_mathematics_or_denies_itself_is_not_the_number(grader: Grader, answers: list[str]) -> None:
    results = grader.compare_answers([("30", answer) for answer in answers])
    assert [answer for answer, result in zip(answers, results, strict=True) if result is not False] == []


HONEST = {
    "5": r"""
        5 \text{ cm}  5\,\text{cm}  5~\text{cm}  5\ \mathrm{cm}  5 cm^2  5 \mathrm{~cm}^{2}  5 \text{ square units}
        5 \text{ (cm)}  5 (cm)  5 sq. units  5\mbox{ cm}  5\;\text{units}  5 in.  5€  5 USD  5 people.  5 km/h  5 \text{ m/s}^2
        5^{\circ}  +5  (5)  ((5))  {5}  --5  5\!  5\;  5\quad  5\\  5,  \displaystyle 5  \mathbf 5
        \mathbf{5}  \text{5}  \$5.00  n=5  f(2)=5
        x_1=5  \angle ABC=5  m\angle A=5  AB = 5  \overline{AB}=5  2+3=5  \frac{10}{2}=5  5=5  P=\frac{10}{2}  \gcd(10,15)=5
        \text{lcm}(1,5)=5  \phi(x)=5  {5 \choose 1}=5  \binom{5}{1}=5  the answer: 5  x equals 5  \text{The answer is }5  6-1
        The least common multiple is 5  The sum of a and b is 5  \sqrt{25}  \sqrt[2]{25}  sqrt(25)  5^1  5\times1
        1(5)  \frac{5}1
    """,
    "10": r"10\   \gcd(10,20)=10  2(5)  (2)(5)  {5\choose2}  10.  \$10  10\quad",
    "12345": r"12,345  12{,}345  12,\!345  12\,345  $12,345.00",
    "1000000": r"1\,000\,000  1,000,000  10^6  10^{6}  10**6  1\times10^6",
    "-3": "−3  (-3)  x=-3  - 3",
    "1.5": r"1\frac{1}{2}  1\frac12  1 \frac{1}{2}  3/2  \frac{3}{2}  {3\over2}  2\frac{3}{4}-1\frac14",
    r"\frac{1}{2}": r"1/2  0.5  .5  \frac12  \frac1{2}  \dfrac{1}{2}  \displaystyle\frac{1}{2}  {1\over2}  {1}/{2}  2^{-1}",
    r"-\frac{1}{2}": r"\frac{-1}{2}  -0.5  -1/2",
    r"\frac\pi2": r"\frac{\pi}{2}  \pi/2  pi/2",
    r"3\pi": r"3\pi  3pi  3 pi  3\pi\text{ cm}^3  V=3\pi",
    r"2\sqrt{3}": r"\sqrt{12}  2sqrt(3)  2 sqrt(3)  2\sqrt3  2\sqrt{3}\text{ units}  AB=2\sqrt{3}",
    r"75\%": "75  0.75  75%  75 percent",
    r"12\text{ cm}": r"12  12 cm  12\,\mathrm{cm}",
    r"90^\circ": r"90  90^{\circ}  90°  90 degrees",
    "x=5": "5  x = 5  5 cm",
    "1,-2": r"""
        -2,1  1, -2  \{1,-2\}  1 \text{ or } -2  1 and -2  x=1,-2  x=1, x=-2  x=1 or x=-2  x = 1 \text{ or } x = -2
        x_1=1, x_2=-2  x=1\text{ and }x=-2  x=1; x=-2
    """,
    r"\pm 3": r"\pm 3  3,-3  x=\pm 3  x=3, x=-3",
    "(3,4)": r"(3, 4)  \left(3,4\right)  (x,y)=(3,4)  x=3, y=4  x=3 \text{ and } y=4",
    "3,5,7": r"3, 5, 7  {3,5,7}  3,5, and 7  3,5,\text{ and }7  a=3,b=5,c=7  a = 3, b = 5, and c = 7",
    r"[1,3]": r"[1, 3]  x\in[1,3]  \left[1,3\right]",
    r"(1,2)\cup(3,4)": r"(1,2) \cup (3,4)  (3,4)\cup(1,2)",
    r"x \ge 2": r"[2,\infty)  x\geq2",
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": r"\begin{pmatrix}1\\2\end{pmatrix}  \begin{bmatrix} 1 \\ 2 \end{bmatrix}",
    "x^2+2x+1": r"(x+1)^2  (x+1)**2  f(x)=(x+1)^2  (x+1)(x+1)  \displaystyle x^2+2x+1  x^2+2x+1\quad",
    r"\frac{x}{2}": r"{x\over2}  x/2  \frac12x  0.5x",
    "y=2x+1": "y = 2x + 1  2x+1",
    "3+4i": "4i+3  z = 3+4i",
    "p - q": "p-q  -q+p",
    "ab": r"ba  a b  a\cdot b",
    "mn": "nm",
    "even": r"\text{Even}  Even  \textbf{even}  The answer is even",
    r"\text{True}": "true  True.",
    r"\text{(A)}": "A  (A)",
    r"8\!:\!34 \text{ p.m.}": r"8:34 p.m.  8:34\text{ p.m.}  8:34",
    "1010_2": "1010_{2}  1010",
    "3:2": "3 : 2",
    r"\sqrt[3]{2}": "2^{1/3}",
    r"\log_2 3": r"\log_{2}3  \log_2(3)",
}


@pytest.mark.parametrize("gold", HONEST)
def test_a_right_answer_may_be_written_in_many_ways(grader: Grader, gold: str) -> None:
    answers = split_row(HONEST[gold])
    results = grader.compare_answers([(gold, answer) for answer in answers])
    assert [answer for answer, result in zip(answers, results, strict=True) if not result] == []


OTHERS = {
    "5": "2(3)  3{2}  (2)3  x^2=5  2x=5  70k",
    "1,-2": "x=1, x=2  x=1  x=1, x=-2, x=3  x=1=2, x=-2  2=1, x=-2  x=1, x\\ne-2  x\\not=1, x=-2  1=1, 2=-2  x=1, not x=-2",
    "(3,4)": "x=4, y=3  x=3, x=4  x=3, y=4, z=5  x=3, y=5",
    "3,5,7": "a=3,b=5  a=3,b=5,c=8  " + ",".join(f"a_{n}={3 + n % 3 * 2}" for n in range(20)),
    "x+1": r"""
        x\not=x+1  2x\boxed{x+1}  2x answer: \(x+1\)  x+1\text{ is wrong}  x+1\text{ or not}  x+1\text{a}+y\text{b}
        x+1t  x+1 cm  x+1} y  y} x+1  x+1)(y  x+2\to x+1  x+1=x+2
    """,
    "2s": "2  3s",
    "even": "odd  not even  neven  The answer is not: even",
    "no": "on  n o",
    "p - q": "q-p  p+q  pq",
    "ab": "a+b  abb  cd",
}


@pytest.mark.parametrize("gold", OTHERS)
def test_what_only_looks_like_a_reference_is_wrong(grader: Grader, gold: str) -> None:
    answers = split_row(OTHERS[gold])
    results = grader.compare_answers([(gold, answer) for answer in answers])
    assert [answer for answer, result in zip(answers, results, strict=True) if result is not False] == []


def test_no_line_of_an_answer_is_read_without_the_others(grader: Grader) -> None:
    assert grader.compare_answers([("\\frac{1}{2}", "6*\n\\frac{1}{2}"), ("5", "10*\n\\frac{1}{2}")]) == [False, True]


SIGNS = st.sampled_from(
    [*"5560123..-+*/^!(){}_ ", "**", "\\frac", "\\sqrt", "sqrt", "\\cdot", "\\left", "\\right", "\\log", "\\pi", "\n"]
)


@PROPERTY
@given(st.lists(SIGNS, max_size=4).map("".join), st.lists(SIGNS, max_size=4).map("".join))
def test_no_string_of_signs_is_right_for_two_numbers(grader: Grader, before: str, behind: str) -> None:
    """And one that is right for 5 is 5 to the parser of LaTeX, shown the whole of it."""
    answer = f"{before}5{behind}"
    golds = sorted({"5", "6", *re.findall(r"[0-9]{1,9}", answer)}, key=int)
    right = {
        int(gold) for gold, found in zip(golds, grader.compare_answers([(g, answer) for g in golds]), strict=True) if found
    }
    assert len(right) <= 1
    if 5 in right:
        parser = pytest.importorskip("latex2sympy2_extended")
        latex = strip_dress(respell_layout(strip_frames(normalise_answer(answer))))
        assert is_number(latex) or parser.latex2sympy(re.sub(r"(?<=[0-9)])\s*\(", r"\\cdot(", latex)).doit() == 5


UNREADABLE = {r"\begin{pmatrix} 1 & -1 \\ 1 & \phantom -1 \end{pmatrix}"}
"""References of MATH that only meet an answer in the same letters."""


def load_references() -> list[str]:
    """Every reference of GSM8K and of MATH, once; one row of MATH has an empty one."""
    rows = [
        json.loads(line) for name in ("gsm8k", "math") for path in shared_data(name).glob("*.jsonl") for line in path.open()
    ]
    return sorted({row["answer"].rpartition("####")[2].strip() for row in rows} - {""})


def test_every_reference_of_real_data_is_right(grader: Grader) -> None:
    references = load_references()
    assert len(references) > 3000
    assert grader.compare_answers([(gold, gold) for gold in references]) == [True] * len(references)
    boxed = grader.compare_answers([(gold, f"\\boxed{{{gold}}}") for gold in references])
    assert boxed == [True] * len(references)


def test_references_of_real_data_are_read_and_not_only_recognised(grader: Grader) -> None:
    """With other blanks and another size of fractions they are other strings. Every eighth: each is a process of its own."""
    spelt = [
        (gold, re.sub(r"(?<=\w)\s*([+-])\s*(?=\w)", r" \1  ", gold).replace("\\frac", "\\dfrac")) for gold in load_references()
    ]
    others = [pair for pair in spelt if pair[0] != pair[1] and pair[0] not in UNREADABLE][::8]
    results = grader.compare_answers(others)
    assert len(others) > 100 and [pair for pair, result in zip(others, results, strict=True) if not result] == []


def test_percent_is_a_unit(grader: Grader) -> None:
    """References of GSM8K are numbers without it where a share is asked for, those of MATH mostly have the sign."""
    right = [("25", "25%"), ("5\\%", "5%"), ("5\\%", "5"), ("5\\%", "0.05"), ("32 \\%", "32 \\text{ percent}")]
    wrong = [("5", "500%"), ("0.25", "25%"), ("5\\%", "500%"), ("5\\%", "5 dollars"), ("5 feet", "5%"), ("1/4", "25\\%")]
    assert grader.compare_answers(right) == [True] * len(right)
    assert grader.compare_answers(wrong) == [False] * len(wrong)


@pytest.mark.parametrize("gold", ["\\frac{1}{2}", "2\\sqrt{2}", "x^2+1", "(1,2)", "\\frac{\\pi}{3}", "3+4i"])
def test_any_reference_stays_itself_and_nothing_besides(grader: Grader, gold: str) -> None:
    dresses = [gold, f"${gold}$", f"{gold}.", f"y = {gold}", f" {gold} "]
    assert grader.compare_answers([(gold, dress) for dress in dresses]) == [True] * len(dresses)
    others = [f"7={gold}", f"{gold}=7", f"7 \\approx {gold}", f"{gold} \\approx 7", f"{gold}\u202e", f"{gold}\u200b7"]
    assert grader.compare_answers([(gold, other) for other in others]) == [False] * len(others)


def test_units_matter_where_both_have_one(grader: Grader) -> None:
    pairs = [("30 seats", "30"), ("30 seats", "30 Seats"), ("30 seats", "31 seats"), ("30 seats", "30 rows")]
    assert grader.compare_answers(pairs)[:3] == [True, True, False]
    assert grader.compare_answers(pairs)[3] is not True


def test_a_word_is_not_a_product_of_its_letters() -> None:
    with Grader() as grader:
        assert grader.compare_answers([("listen", "silent"), ("no", "on")]) == [False, False]


@pytest.mark.parametrize("hedge", ["71 or 72", "72, 73", "71$ $72", "71 72", "$71$ and $72$", "\\{71, 72\\}"])
def test_several_guesses_are_not_an_answer(grader: Grader, hedge: str) -> None:
    assert grader.compare_answers([("72", hedge)]) == [False]


HOSTILE = [
    "9**9**9",
    "9^{9^{9}}",
    "((9^{999})^{999})^{999}",
    "99999999!",
    "999!!!",
    "\\binom{999999}{500000}",
    "\\sum_{i=1}^{99999999} i",
    "(" * 900 + "1" + ")" * 900,
    "\\frac{1}{" * 50 + "2" + "}" * 50,
    "7\x002",
    "\x00",
    "\ud800",
    '72\n{"id": 1, "value": true}',
    "a+" * 500_000,
    "1" * 1_000_000,
    "1/" + "1" * 1_000_000,
    "= " * 100_000,
]
"""Answers that would hang a grader, break it, or take it long to read."""
COSTLY = ["((9^{99})^{99})^{99}", "\\exp(\\exp(\\exp(\\exp(9))))"]
"""Answers that nothing tells from others but the time that they take."""


def test_hostile_answers_are_wrong_and_are_not_even_read(grader: Grader, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    programs = [
        f"__import__('os').system('touch {marker}')",
        f"\\text{{__import__('os').system('touch {marker}')}}",
        f"eval(\"open('{marker}', 'w')\")",
    ]
    before = grader.counts["asked"]
    for gold in ("72", "\\frac{1}{72}", "2\\sqrt{2}"):
        assert grader.compare_answers([(gold, answer) for answer in [*HOSTILE, *programs]]) == [False] * (len(HOSTILE) + 3)
    assert not marker.exists()
    assert grader.counts["asked"] == before, "ten thousand of them cost what ten thousand numbers cost"


def test_an_answer_that_takes_too_long_is_wrong_and_nothing_is_lost_by_it(grader: Grader) -> None:
    assert grader.compare_answers([("\\sqrt{3}", "\\sqrt{9/3}")]) == [True]
    first = worker_id(grader)
    assert grader.compare_answers([("2\\sqrt{2}", answer) for answer in COSTLY]) == [False] * len(COSTLY)
    assert grader.compare_answers([("\\sqrt{3}", "\\sqrt{12}/2")]) == [True]
    assert worker_id(grader) == first, "the same worker goes on"
    before = grader.counts["asked"]
    assert grader.compare_answers([("2\\sqrt{2}", COSTLY[0])] * 100) == [False] * 100
    assert grader.counts["asked"] == before, "what hung once does not hang twice"


def test_a_worker_that_is_late_by_the_clock_could_not_tell() -> None:
    """That is the machine's doing: no answer has so much processor time."""
    with Grader(limit=1e-6) as hurried:
        hurried.start("math")
        assert hurried.compare_answers([("2\\sqrt{2}", "\\sqrt{8}")]) == [None]
        assert hurried.counts["timeout"] == 1
        hurried.limit = 60.0
        assert hurried.compare_answers([("2\\sqrt{2}", "\\sqrt{8}")]) == [True], "and it may be asked again"


def test_a_worker_that_someone_else_killed_costs_no_grade(grader: Grader) -> None:
    assert grader.compare_answers([("\\sqrt{5}", "\\sqrt{20}/2")]) == [True]
    os.kill(worker_id(grader), signal.SIGKILL)
    grader._workers["math", False].process.wait()
    assert grader.compare_answers([("\\sqrt{5}", "\\sqrt{45}/3")]) == [True]


def test_a_turn_of_a_thousand_answers_is_cheap(grader: Grader) -> None:
    grader.compare_answers([("1/7", "2/14")])
    pairs = [("1/7", f"{n % 9}/56") for n in range(500)] + [("72", str(n)) for n in range(500)]
    start = time.monotonic()
    results = grader.compare_answers(pairs)
    assert time.monotonic() - start < 2
    assert results[:500] == [n % 9 == 8 for n in range(500)]
    assert results[500:] == [n == 72 for n in range(500)]


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    cache = Cache(3)
    for n in range(5):
        cache.put(n, -n)
        assert cache.get(2 if n >= 2 else n) in (0, -1, -2)
    assert len(cache) == 3
    assert [n in cache for n in range(5)] == [False, False, True, True, True]


def test_the_worker_holds_no_secrets(grader: Grader) -> None:
    assert "hunter2" not in str(make_environment("folder"))
    grader.compare_answers([("\\sqrt{7}", "\\sqrt{28}/2")])
    environment = Path(f"/proc/{worker_id(grader)}/environ")
    if not environment.exists():
        pytest.skip("this system does not show the environment of a process")
    names = {line.partition(b"=")[0].decode() for line in environment.read_bytes().split(b"\0") if line}
    assert names <= {*make_environment("folder"), "LC_CTYPE"}


def test_closing_ends_the_process_and_removes_its_folder() -> None:
    grader = Grader()
    grader.compare_answers([("\\sqrt{2}", "\\sqrt{8}/2")])
    pid, folder = worker_id(grader), Path(grader._workers["math", False]._folder)
    assert folder.is_dir()
    grader.close()
    assert not is_running(pid)
    assert not folder.exists()
    assert grader.compare_answers([("\\sqrt{2}", "\\sqrt{18}/3")]) == [True], "a closed grader starts anew when it is asked"
    grader.close()


def test_nothing_third_party_is_imported_here() -> None:
    """Neither by importing the tasks, nor by grading."""
    script = """
import sys
import milonga.tasks
from milonga.tasks import grading
from milonga.tasks.grading import get_shared_grader
get_shared_grader().compare_answers([("\\\\sqrt{2}", "\\\\sqrt{8}/2"), ("72", "__import__('os')")])
heavy = {"torch", "transformers", "datasets", "reasoning_gym", "math_verify", "sympy"} & set(sys.modules)
print("worker", get_shared_grader()._workers["math", False].process.pid)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not is_running(int(done.stdout.split()[1])), "the worker closes at exit"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with Grader() as grader:
        assert grader.compare_answers([("72", "72")]) == [True], "what needs no worker needs no package"
        with pytest.raises(MissingExtra, match=r"math-verify .*\.\[math\]"):
            grader.compare_answers([("\\sqrt{2}", "\\sqrt{8}/2")])


@PROPERTY
@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_are_compared_as_numbers(a: object, b: object) -> None:
    left, right = f"{a:f}", f"{b:f}"
    assert compare_quickly(left, right) is (Fraction(left) == Fraction(right))
    assert compare_quickly(left, f"{left}0" if "." in left else f"{left}.0") is True


@PROPERTY
@given(st.text())
def test_plain_leaves_nothing_to_strip(text: str) -> None:
    assert normalise_answer(normalise_answer(text)) == normalise_answer(text)


@PROPERTY
@given(st.binary())
def test_no_line_from_a_worker_breaks_us(line: bytes) -> None:
    assert decode_reply(line) is None or isinstance(decode_reply(line), dict)
    assert decode_reply(b"[" * 100_000) is None


def test_a_grader_that_cannot_start_ends_a_run_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are compared without it: it would be missed only at the first answer that is none."""
    (tmp_path / "math_verify.py").write_text('raise ImportError("half installed")')
    monkeypatch.syspath_prepend(tmp_path)
    rows = "".join(f'{{"question": "{n} and 1?", "answer": "{n + 1}"}}\n' for n in range(40))
    (tmp_path / "sums.jsonl").write_text(rows)
    with Grader() as broken:
        monkeypatch.setattr(grading, "_shared", broken)
        task = {"name": "jsonl", "path": str(tmp_path / "sums.jsonl")}
        with pytest.raises(UserError, match=r"math-verify did not start: ImportError: half installed; install"):
            milonga.run("grpo", task=task, models={"generator": "embedded"}, turns=1, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "config.toml").exists()
