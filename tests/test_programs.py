"""Agents around a program: what they write reads back, what is malformed is invalid, and questions hold what they should."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import GRAMMARS, PROPERTY
from milonga.roles import DIALECTS
from milonga.roles.fences import clean_arguments, find_fenced_blocks
from milonga.systems.absolute_zero.roles import (
    Abducer,
    Deducer,
    Inducer,
    InputProposer,
    Inputs,
    Program,
    ProgramProposer,
    Question,
)
from milonga.tasks.code_questions import split_usage
from milonga.types import Problem


@pytest.mark.parametrize("dialect", DIALECTS)
def test_proposals_read_back(dialect: Any) -> None:
    proposer, prober = ProgramProposer(dialect), InputProposer(dialect)
    program = "def f(a): return sum(a)"
    assert proposer.parse(proposer.write(program, "[1,2]")).value == Program(program, "[1,2]")
    assert prober.parse(prober.write(["[1]", "[]", "[2,3]"])).value == Inputs(("[1]", "[]", "[2,3]"))
    for text in ("", "sum(a)", "sum(a)\n#", "\n#1", "a\nb\n#1", "<program></program><input>1</input>", "[1]\n;[2]"):
        assert not proposer.parse(text).is_valid and not prober.parse(text).is_valid


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_answers_are_read_as_a_solvers(dialect: Any) -> None:
    for role in (Deducer(dialect), Abducer(dialect), Inducer(dialect)):
        found = role.parse(role.write(["[2]", "4"], "4"))
        assert found.is_valid and found.value.answer == "4" and found.value.steps == ("[2]", "4")


@pytest.mark.parametrize("role", [Deducer("plain"), Abducer("plain")])
def test_answers_in_prose_read_back(role: Any) -> None:
    found = role.parse(role.write(["Half of 4.", "It is 2."], "2"))
    assert found.is_valid and found.format == 1.0 and found.value.answer == "2" and len(found.value.steps) == 2


ANSWERS = [
    ("output", "It is reversed.\n\n```output\n'<b>'\n```", "'<b>'", 1.0),
    ("output", "<think>```output\n1\n```</think>\n```output\n2\n```", "2", 1.0),
    ("output", "```output\nresult = {'a': 1}  # a dict\n```", "{'a': 1}", 1.0),
    ("output", "The output is:\n```python\n[1, 2]\n```", "[1, 2]", 0.5),
    ("output", "**Output:** `[1, 2]`.", "[1, 2]", 0.5),
    ("output", "So the answer is \\boxed{7}.", "7", 0.5),
    ("output", "Then `f` returns `[1]`.", "[1]", 0.5),
    ("output", "`n` is 3: `3`\n```output\nab cd\n```", "'ab cd'", 0.5),
    ("input", "```input\nsorted([2, 1])\n```", "sorted([2, 1])", 0.5),
    ("input", "```input\nf([1, 2], n=3)\n```", "[1, 2],3", 1.0),
    ("input", "```input\ns = 'a b'\nn = 3\n```", "'a b', 3", 1.0),
    ("input", "Input: 'x', 2", "'x', 2", 0.5),
    # Written by Qwen2.5-Coder-1.5B-Instruct, which copies the marks of a sentence.
    ("output", "We can write the result as:\n```output.\n['apple', 'cherry']\n```", "['apple', 'cherry']", 1.0),
    ("output", 'Therefore, the output is:\n\n```output. "random_example_input"\n```', '"random_example_input"', 1.0),
    ("output", "The output of this code block is:\n\n```output. apple banana cherry\n```", "'apple banana cherry'", 0.5),
    ("output", "It is `[ 'a' ]`, which is represented as:\n\n```python\noutput. ['a', 'b']\n```", "['a', 'b']", 0.5),
    ("input", "```python\ninput: ['apple', 'banana', 'cherry']\n```", "['apple', 'banana', 'cherry']", 0.5),
    ("input", "So, the input that results in this output is `input: [2, 4, 6, 8]`", "[2, 4, 6, 8]", 0.5),
    ("input", 'The input that produces the output `0.4` is:\n```\ninput: ["apple"]\n```', '["apple"]', 0.5),
    # Near to these.
    ("output", "```output: 5```", "5", 1.0),
    ("output", "```output\nOutput: ab cd\n```", "'ab cd'", 0.5),
    ("output", "- So:\n  ```output: [1,\n  2]\n  ```", "[1,\n2]", 1.0),
    ("input", "```input\nInput 1: [3], 4\n```", "[3], 4", 1.0),
]


@pytest.mark.parametrize(("name", "text", "answer", "score"), ANSWERS)
def test_an_answer_in_prose_is_found(name: str, text: str, answer: str, score: float) -> None:
    found = (Deducer if name == "output" else Abducer)("plain").parse(text)
    assert found.is_valid and found.format == score and found.value.answer == answer


def test_prose_without_an_answer_says_so() -> None:
    labels = "```python\ninput: [3]\noutput.append(4)\noutput: list[int] = []\n```"  # of something else, or before no literal
    for text in ("", "I do not know.", "<think>```output\n1\n```", labels):
        found = Deducer("plain").parse(text)
        assert not found.is_valid and found.format == 0.0 and found.value.answer is None


FUNCTION = "def f(a, n):\n    return a[n:]"
PROPOSALS = [
    (f"A slice.\n\n```python\n{FUNCTION}\n```\n\n```input\n[1, 2], 1\n```", "[1, 2], 1", 1.0),
    (f"<think>```python\ndef f(): 1\n```</think>```python\n{FUNCTION}\n```\n```input\n'<a>', 1\n```", "'<a>', 1", 1.0),
    (f"```python\n{FUNCTION}\n```\n**Input:**\n```\nf([1, 2], 1)\n```", "[1, 2], 1", 0.5),
    (f"```python\n{FUNCTION}\n\nprint(f([1, 2], 1))\n```", "[1, 2], 1", 0.5),
]


@pytest.mark.parametrize(("text", "given", "score"), PROPOSALS)
def test_a_program_and_its_input_are_found_in_prose(text: str, given: str, score: float) -> None:
    found = ProgramProposer("plain").parse(text)
    assert found.is_valid and found.format == score and found.value == Program(FUNCTION, given)


# Written by Qwen2.5-Coder-1.5B-Instruct: the program, the rest, and what the rest gives as its input.
ASSIGNED = [
    ("import re\n\ndef f(a):\n    return re.findall(r'\\w+', a)", "input = 'python is fun'", "'python is fun'"),
    ("def f(a):\n    return a * 2", "input = [4, 7, 9, 12]", "[4, 7, 9, 12]"),
    ("def f(a):\n    return a[:3]", "input = ['[1,2,3]' ]", "['[1,2,3]' ]"),
    # Near to these.
    ("def f(input, n):\n    return input[n:]", "inputs = [\n    1,\n    2,\n], 1  # two", "[\n    1,\n    2,\n], 1"),
    ("def f(a):\n    return a * 2", "input = 'ab'\nprint(f(input))", "'ab'"),
    ("def f(a):\n    return a * 2", "input = 'ab'\nprint(f('cd'))", "'cd'"),
]


@pytest.mark.parametrize(("program", "rest", "given"), ASSIGNED)
def test_an_input_assigned_below_a_program_is_no_part_of_it(program: str, rest: str, given: str) -> None:
    found = ProgramProposer("plain").parse(f"Here is your new program:\n\n```python\n{program}\n\n{rest}\n```")
    assert found.is_valid and found.format == 0.5 and found.value == Program(program, given)


@pytest.mark.parametrize(
    "source",
    [
        "import math\n\ndef f(a):\n    return math.sin(a)\n\ninput = [2 * math.pi]",  # so wrote the same model: no literal
        "input = [1, 2]\n\ndef f(a):\n    return a",
        "def f(a):\n    return a + input[0]\n\ninput = [1, 2]",
        "def f(a):\n    return a\n\ninput = other = [1, 2]",
        "def f(a):\n    return a\n\ninput[0] = 1",
        "def g(a):\n    return a\n\ninput = [1, 2]",
    ],
)
def test_what_is_no_input_stays_in_the_program(source: str) -> None:
    assert split_usage(source) == (source, None)


def test_the_word_behind_a_fence_names_its_block_whatever_mark_follows() -> None:
    written = "```python, def f(a):\n    return a\n```\n\n```input. 'x'\n```"
    assert ProgramProposer("plain").parse(written).value == Program("def f(a):\n    return a", "'x'")
    assert [(block.name, block.body) for block in find_fenced_blocks("```main.py\n1\n```\n```python:a/b.py\n2\n```")] == [
        ("main.py", "1"),
        ("python:a/b.py", "2"),
    ]


def test_a_program_alone_is_worth_a_part_of_the_format() -> None:
    scores = [ProgramProposer("plain").parse(text).format for text in (f"```python\n{FUNCTION}\n```", "def g(): pass", "")]
    assert scores == [0.25, 0.0, 0.0]


def test_inputs_are_lines_of_a_block() -> None:
    prober = InputProposer("plain", 3)
    found = prober.parse("```input\n1. f([1], 0)\n2. [2], '<'\n- [2],'<'\nnone\n[3], 1\n[4], 1\n```")
    assert found.value == Inputs(("[1],0", "[2],'<'", "[3],1")) and found.format == 1.0
    fewer = prober.parse("These:\n```python\n[1], 0\n[2], 1\n```")
    assert fewer.value == Inputs(("[1],0", "[2],1")) and fewer.format == pytest.approx(1 / 3)
    assert not prober.parse("```input\n[1], 0\n```").is_valid


def test_labels_before_inputs_are_none_of_them() -> None:
    prober = InputProposer("plain", 6)
    found = prober.parse("Here are six different inputs:\n\n```python\ninput,'d'\ninput,'da'\ninput,'dab'\n```")
    assert found.value == Inputs(("'d'", "'da'", "'dab'"))  # so wrote Qwen2.5-Coder-1.5B-Instruct
    pairs = prober.parse("```input\n1. Input: [1], 0\n   Output: [2]\nInput 2: [3], 1\nOutput 2: [4]\n```")
    assert pairs.value == Inputs(("[1],0", "[3],1")), "an output is no input"
    for text in ("input, aaa, aaaaa\ninput, ab, abb", "input, '+' == 1\ninput, 'abc' == 3"):  # and so
        assert not prober.parse(f"```python\n{text}\n```").is_valid


@pytest.mark.parametrize(
    "source",
    [
        "def f(a):\n    return a + y\n\ninput = [1, 2]\ny = input[0]",
        "def f(a):\n    def h(input): return input\n    return h(a) + input\ninput = 3",
        "def f(a):\n    return a * k\nk = 3; input = 5",
    ],
    ids=["read below", "read beside a parameter", "on a line with another"],
)
def test_an_assignment_that_the_program_needs_stays_in_it(source: str) -> None:
    assert split_usage(source) == (source, None)


def test_a_list_of_inputs_that_is_gone_through_is_not_one_input() -> None:
    assert split_usage("def f(a):\n    return a\ninputs = [1, 2]\nfor x in inputs:\n    print(f(x))")[1] is None


def test_the_name_of_a_file_behind_a_fence_is_no_program() -> None:
    said = "```python: main.py\ndef f(a):\n    return a\n```\n\n```input\n3\n```"
    assert ProgramProposer("plain").parse(said).value == Program("def f(a):\n    return a", "3")
    assert clean_arguments("input 3, 4") is None, "no label with a number"


def test_lines_of_a_function_are_no_inputs() -> None:
    """A real proposal: the program once more, and inputs below it under names of their own."""
    said = '```python\ndef f(a):\n    result = ""\n\n    return result\n\ninput1 = "ab"\ninput2 = "ba"\n```'
    assert InputProposer("plain", 6).parse(said).value == Inputs(("'ab'", "'ba'"))


def test_thoughts_and_angles_may_stand_in_tagged_proposals() -> None:
    found = ProgramProposer("tagged").parse("Well.\n<program>def f(s): return s < '>'</program> then <input>'<b>'</input>")
    assert found.value == Program("def f(s): return s < '>'", "'<b>'")
    assert InputProposer("tagged").parse("So: <inputs>\n'<'\n'>'\n</inputs>").value == Inputs(("'<'", "'>'"))


def test_each_agent_is_asked_in_a_way_of_its_own() -> None:
    for dialect in DIALECTS:
        roles = [role(dialect) for role in (Deducer, Abducer, Inducer, ProgramProposer, InputProposer)]
        problem = Problem("p", "n+1\n2", "")
        texts = ["".join(part.text for part in role.prompt(problem)) for role in roles]
        assert len(set(texts)) == len(roles) and all("n+1\n2" in text for text in texts)
        assert all(part.foreign == (part.text == problem.text) for role in roles for part in role.prompt(problem))


@pytest.mark.parametrize("dialect", ["plain", "tagged"])
def test_whoever_must_write_a_function_is_told_its_name(dialect: Any) -> None:
    asked = {
        role: "".join(part.text for part in role(dialect).prompt(Problem("p", "", ""))) for role in (Inducer, ProgramProposer)
    }
    assert "Write a function `f`" in asked[Inducer] and "one function called `f`" in asked[ProgramProposer]


def test_questions_hold_two_of_three() -> None:
    terse, full = Question(terse=True), Question(terse=False)
    assert terse.render_deduction("n+1", "2") == "n+1\n2" and terse.render_induction([("1", "2"), ("2", "3")]) == "1=2;2=3"
    assert terse.render_references([("n+1", "2"), ("n*2", "1")]) == "n+1#2\nn*2#1"
    for text in (full.render_deduction("n+1", "2"), full.render_abduction("n+1", "2"), full.render_references([("n+1", "2")])):
        assert "n+1" in text and "2" in text
    assert full.render_induction([("1", "2")]) == "Input: 1\nOutput: 2"


@PROPERTY
@given(st.text(max_size=60) | st.text(alphabet="def f(a):\n`input[]1,'<>=#", max_size=80))
def test_no_text_breaks_a_reader(text: str) -> None:
    for dialect in DIALECTS:
        for role in (ProgramProposer(dialect), InputProposer(dialect), Deducer(dialect), Abducer(dialect)):
            found = role.parse(text)
            assert found.is_valid == (found.invalid is None) and 0 <= found.format <= 1


# Written by Qwen2.5-Coder-1.5B-Instruct, the longer ones shortened, with the inputs that a person reads in them.
LOOSE_INPUTS = {
    "inline code of a list": (
        'Here are six different inputs for the function `f(warnings)`:\n\n1. `"bogus13"`\n2. `"somethingSpecial"`\n'
        '3. `"noWarning"`\n4. `"feelTheThunder"`\n5. `"anyword"`\n6. `""`\n\nEach of these inputs will trigger a '
        "different output based on the logic inside the function `f(warnings)`.",
        ("'bogus13'", "'somethingSpecial'", "'noWarning'", "'feelTheThunder'", "'anyword'", "''"),
    ),
    "with what is said about it": (
        "Here are six different inputs for the function `f(x)`:\n\n"
        "1. `[1]` - The first and last elements of `[1]` are both `1`.\n"
        "2. `[True, False]` - The first and last elements of `[True, False]` are `True` and `False`.\n"
        "3. `[None]` - The first and last elements of `[None]` are `None`.\n\nThese inputs should show how it works.",
        ("[1]", "[True,False]", "[None]"),
    ),
    "calls of input": (
        "```python\ninput([1, 2])\ninput([1, 3])\ninput([-1, 2, 3])\n```",
        ("[1,2]", "[1,3]", "[-1,2,3]"),
    ),
    "a block for each call": (
        "Here are six different inputs for the function `f` (which calculates the sum of a list of numbers):\n\n"
        "```python\nf([])\n```\n\nIt will return `0`\n\n```python\nf([1,2,3])\n```\n\nIt will return `6`\n\n"
        "```python\nf([-1 plea, -2 plea])\n```\n\nIt will return `-15 plea`",
        ("[]", "[1,2,3]"),
    ),
}


@pytest.mark.parametrize(("text", "inputs"), LOOSE_INPUTS.values(), ids=list(LOOSE_INPUTS))
def test_inputs_are_found_without_a_block_of_their_own(text: str, inputs: tuple[str, ...]) -> None:
    found = InputProposer("plain", 6).parse(text)
    assert found.value == Inputs(inputs) and found.format == pytest.approx(len(inputs) / 12)


@pytest.mark.parametrize(
    "text",
    [
        "```python\n...\n...\nsin(0)\nsin(1)\nsin(2)\n...\n...\n```",  # by the same model: to be computed first
        '```python\ninput("Enter a number: ")\ninput("Enter another: ")\n```',
        "1. `f` takes a list.\n2. `f([1, 2]` is not closed.",
        "```python\nf([1])\nf([2])\n```\n\n```python\nprint(f([1]))\n```",  # the last block is what counts
    ],
)
def test_calls_of_other_functions_are_no_inputs(text: str) -> None:
    assert not InputProposer("plain", 6).parse(text).is_valid


def test_a_fence_with_a_name_ends_the_block_above_it() -> None:
    """So wrote Qwen2.5-Coder-1.5B-Instruct: it forgot to close the program."""
    written = '```python\ndef f(n):\n    return "Over 999" if n > 999 else "Under"\n\n```input\n200\n```\n\n```\n'
    program = 'def f(n):\n    return "Over 999" if n > 999 else "Under"'
    assert ProgramProposer("plain").parse(written).value == Program(program, "200")
    assert [block.name for block in find_fenced_blocks("```python\n1\n``` input\n2\n```")] == ["python"], "no name, no end"
