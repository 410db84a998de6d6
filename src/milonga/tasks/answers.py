r"""Answers as people write them: numbers with units, and what free text gives as its answer (a box, a number, a choice).

Every pattern here is linear in its text: nothing in it can be repeated in two ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

QUANTITY = re.compile(r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<unit> ?[A-Za-z]{2,}(?: [A-Za-z]+){0,3})?")
"""A number, and its unit of one to four words. A single letter may be a variable."""
NO_UNIT = re.compile(
    r"\b(?:(?:dozen|hundred|thousand|million|billion|trillion|quarter|third|fifth|sixth|eighth|tenth|hundredth)s?|half|halves|gross"
    r"|percent|pi|and|or|to|not|but|if|plus|minus|times|over|by|mod|squared|cubed|factorial|more|less|fewer|than|least|most|at|up"
    r"|until|from|for|above|below|about|around|almost|nearly|roughly|[a-cx-z]{2,})\b",
    re.IGNORECASE,
)
"""Words behind a number that make another one of it, several, or a bound; the last are products of variables, `30xy`."""
RELATION = re.compile(r"\A~|[<>≤≥≈≃≅∼≠]|\\(?:approx|simeq|sim|cong|leq?|geq?|lt|gt|neq?|doteq|equiv)(?![a-zA-Z])")
"""What makes a bound or an approximation of a number."""
RATIONAL = re.compile(
    r"(?P<sign>[+-]?) ?(?:(?P<number>[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?: ?/ ?(?P<under>[0-9]{1,40}))?"
    r"|\\[dt]?frac ?(?:\{(?P<top>[0-9]{1,40})\} ?\{(?P<bottom>[0-9]{1,40})\}|(?P<digit>[0-9])(?P<other>[0-9])))"
)
"""A plain number, or a fraction of two: `3/4`, `\\frac{3}{4}`, `\\frac34`."""
NAME = re.compile(r"[A-Za-z\\{}_ ()']*|[A-Za-z][\w{}() ,']*")
"""What may stand before an equals sign without being a value."""
GROUPED = re.compile(r"(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])")
LONGEST = 100_000
"""Characters of an answer that are looked at; no longer one is right."""
BOX = re.compile(r"\\(?:boxed|fbox) ?(?:(?P<open>\{)|(?P<bare>[^\s{}$\\]+))")
"""A box, whose braces are left out around a single word now and then."""
NUMBER = re.compile(r"(?<![\w.])[-−]?\$?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)")
"""A number within a text. It begins where no word goes on: `H2O` holds none."""
CHOICE = re.compile(r"\(([A-J])\)|\b[Aa]nswer(?: is)?:? ?(?:\*\*)?([A-J])\b")


def normalise_answer(text: str) -> str:
    """Normalise an answer: remove white space around, dollar signs, trailing dots and commas that group digits."""
    text = text[: LONGEST + 1] if len(text) > LONGEST else text
    text = text.replace("\\$", "").replace("$", "").strip().rstrip(".").rstrip()
    return GROUPED.sub(lambda match: match[0].replace(",", ""), text)


@dataclass(frozen=True)
class Quantity:
    """A number with its unit, which is empty for a plain one."""

    number: Decimal
    unit: str


def read_quantity(text: str) -> Quantity | None:
    """Read a normalised answer as a number, with a unit or without; None if it is anything else."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        return None
    unit = (found["unit"] or "").strip().casefold()
    return None if NO_UNIT.search(unit) else Quantity(Decimal(found["number"]), unit)


def read_rational(text: str) -> Fraction | None:
    """Read a normalised answer as a number or a fraction of numbers; None if it is anything else."""
    found = RATIONAL.fullmatch(text)
    if found is None:
        return None
    over = found["number"] or found["top"] or found["digit"]
    under = found["under"] or found["bottom"] or found["other"] or "1"
    if not int(under):
        return None
    value = Fraction(over) / int(under)
    return -value if found["sign"] == "-" else value


def is_number(text: str) -> bool:
    """Whether an answer is a plain number."""
    found = QUANTITY.fullmatch(normalise_answer(text))
    return found is not None and not found["unit"]


def find_last_box(text: str) -> str | None:
    r"""Find what stands in the last `\boxed{…}` or `\fbox{…}` that is closed and not empty; of a box in a box the inner one."""
    closed = _match_braces(text)
    for box in reversed(list(BOX.finditer(text))):
        inner = box["bare"] or text[box.end() : closed.get(box.end() - 1, box.end())].strip()
        if inner:
            return inner
    return None


def _match_braces(text: str) -> dict[int, int]:
    """Match each opening brace with the one that closes it, by their places; those that nothing closes are left out."""
    opened: list[int] = []
    closed: dict[int, int] = {}
    for found in re.finditer(r"[{}]", text):
        if found[0] == "{":
            opened.append(found.start())
        elif opened:
            closed[opened.pop()] = found.start()
    return closed


def extract_number(text: str) -> str | None:
    """Extract the last number of a text, without its commas and its dollar sign."""
    found = NUMBER.findall(text)
    return found[-1].replace(",", "").replace("$", "").replace("−", "-") if found else None


def is_choice(text: str) -> bool:
    """Whether an answer is the letter of a choice."""
    return CHOICE.fullmatch(f"({text.strip('() ')})") is not None


def extract_choice(text: str) -> str | None:
    """Extract the last letter that is chosen in a text, as in "(C)" or "the answer is C"."""
    found = [bracketed or named for bracketed, named in CHOICE.findall(text)]
    return found[-1] if found else None
