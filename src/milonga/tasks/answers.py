r"""Answers as people write them: numbers with units, and what free text gives as its answer (a box, a number, a choice).

Every pattern here is linear in its text: nothing in it can be repeated in two ways.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, pairwise

FUNCTIONS = (
    "frac|dfrac|tfrac|cfrac|sqrt|cdot|times|div|pi|left|right|log|ln|exp|sin|cos|tan|arcsin|arccos|arctan|binom|overline"
)
EXPRESSION = re.compile(
    rf"(?:[-0-9.+*/^!(){{}}\s]|\\(?:{FUNCTIONS})(?![A-Za-z])|(?<![A-Za-z\\])sqrt(?![A-Za-z])|\b[ei](?![A-Za-z])|(?<=sqrt)\[[0-9]\]|(?<=log)_)*"
)
"""The signs of which one number is written. Whatever else stands in an answer makes another thing of it, or several."""
NO_EXPRESSION = re.compile(
    r"[0-9.](?:\s|\{\s*\})+[0-9.]|[-+*/^(_]\s*\Z|\.\s*\.|\.[0-9]+\.|(?<!_)[0-9.]\s*\{|(?:\A|[^A-Za-z_^}\]\s])\s*\{[^{}]*\}\s*[0-9.{]"
)
"""Two numbers side by side, as in `3 4` and `3{4}`, and what is not finished."""
UNIT = re.compile(r"(?:[A-Za-z]{2,}\.?|[mgshLNJWVKCF](?![A-Za-z]))(?:[ /][A-Za-z]+\.?){0,3}(?:\^?\{?[23]\}?|[²³])?|[%€£¥]")
"""A unit of one to four words. Most single letters may be variables."""
NO_UNIT = re.compile(
    r"\b(?:(?:dozen|ten|score|hundred|thousand|million|billion|trillion|lakh|crore|quarter|third|fourth|fifth|sixth|seventh|eighth"
    r"|ninth|(?:ten|hundred|thousand|million|billion)th)s?|half|halves|gross|grand|thou|bn|mn|mio|mil|mille|milli|micro|mega|giga"
    r"|zero|one|two|three|four|five|six|seven|eight|nine|eleven|twelve|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
    r"|pi|and|x?n?or|to|not|no|non|never|isn|wrong|incorrect|false|anything|but|if|plus|minus|negative|times|over|by|mod|vs|fold"
    r"|squared|cubed|factorial|root|sqrt|log|ln|exp|sin|cos|tan|co?sine|inverse|reciprocal|more|less|fewer|than|least|most|at|up|ish"
    r"|until|from|for|above|below|about|around|almost|nearly|roughly|approx(?:imately)?|maybe|perhaps|possibly|probably"
    r"|[a-cx-z]{2,})\b",
    re.IGNORECASE,
)
"""Words behind a number that make another one of it, several, or a bound; the last are products of variables, `30xy`."""
DOUBT = re.compile(
    r"\b(?:not|no|non|never|nor|neither|none|nothing|anything|wrong|incorrect|false|untrue|except|unless|unlike|but|or|if|than"
    r"|almost|nearly|roughly|approx[a-z]*|estimate[a-z]*|guess|maybe|perhaps|possibly|probably|bound|exceeds?|up to"
    r"|at (?:least|most)|[a-z]+n't|(?:least|most|more|less|fewer|greater|larger|smaller|above|below|under|over|about|around"
    r"|plus|minus|negative|times|and)\W*(?:(?:is|are|equals)\W*)?\Z)(?![A-Za-z])",
    re.IGNORECASE,
)
"""Words before a value that deny it, or make a bound or an approximation of it; some only where they stand right before it."""
PERCENT = re.compile(r"%|per ?cent|percentage", re.IGNORECASE)
RATIONAL = re.compile(
    r"(?P<sign>[+-]?) ?(?:(?P<number>[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?: ?/ ?(?P<under>[0-9]{1,40}))?"
    r"|\\[dt]?frac ?(?:\{(?P<top>[0-9]{1,40})\} ?\{(?P<bottom>[0-9]{1,40})\}|(?P<digit>[0-9])(?P<other>[0-9])))"
)
"""A plain number, or a fraction of two: `3/4`, `\\frac{3}{4}`, `\\frac34`."""
DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
APPROXIMATE = re.compile(r"\A~|[≈≃≅∼≐]|\\(?:approx|simeq|sim|cong|doteq|thickapprox|thicksim)(?![a-zA-Z])")
ORDER = re.compile(r"[<>≤≥≠]|\\(?:leq?|geq?|lt|gt|neq?|equiv|leqslant|geqslant|ll|gg|not)(?![a-zA-Z])")
SEVERAL = re.compile(r"(?<!\\)[,;|±∓]|\\(?:pm|mp|cup|lor|vee|land|wedge|text\{ ?(?:or|and) ?\})(?![a-zA-Z])|\b(?:or|and)\b")
"""Signs of an approximation, of a bound, and of several values: who writes them gives something else than one exact value."""
LETTERS = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi|varphi"
    "|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell"
)
MARKS = (
    "angle|measuredangle|triangle|square|prime|text|textbf|textit|textrm|mathrm|mathbf|mathcal|mathbb|mbox|operatorname|overline|vec"
    "|overrightarrow|hat|bar|tilde|widehat|left|right|cdot|times|div|d?frac|sqrt|log|ln|sin|cos|tan|cot|sec|csc|gcd|lcm|max|min|det"
)
CALLS = rf"(?:gcd|lcm|max|min|det|{LETTERS})(?![A-Za-z])|(?:text|mathrm|operatorname)\{{[A-Za-z]+\}}"
NAME = re.compile(
    rf"(?:[A-Za-z{{}}_ ()',]|\\(?:{LETTERS}|{MARKS})(?![A-Za-z])|\\[ ,;])*|(?:[A-Za-z]|\\(?:{CALLS}))[\w{{}}() ,']*"
)
"""What may stand before an equals sign without being a value: letters, words and functions. Commands are listed: the others
may be relations."""
LEAD = re.compile(r"[A-Za-z][A-Za-z ']{0,60}(?:(?<= is)|(?<= are)|(?<= equals)|:)(?![A-Za-z])\s*")
"""Words that announce an answer: "The answer is"."""
LAYOUT = (
    (re.compile(r"\\(?:displaystyle|textstyle|q?quad)(?![A-Za-z])"), " "),
    (re.compile(r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))"), ""),
    (
        re.compile(r"\{((?:[^{}\\]|\\(?!(?:over|choose)(?![A-Za-z]))[A-Za-z ,])*)\\over(?![A-Za-z])([^{}]*)\}"),
        r"\\frac{\1}{\2}",
    ),
    (
        re.compile(r"\{((?:[^{}\\]|\\(?!(?:over|choose)(?![A-Za-z]))[A-Za-z ,])*)\\choose(?![A-Za-z])([^{}]*)\}"),
        r"\\binom{\1}{\2}",
    ),
    (re.compile(r"(?<=[0-9A-Za-z)}])\*\*(?=[-0-9A-Za-z({\\])"), "^"),
    (re.compile(r"\\!"), ""),
    (re.compile(r"(?:\\[,;:\\]|[\\,~]){1,3}\Z"), ""),
)
"""Ways to write any expression: sizes, blanks, groups of digits, older commands, powers of programs, blanks at the end."""
NOTE = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s?\{([^{}]*)\}(?:\^\{?[23]\}?)?\Z")
STYLES = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s?\{([^{}]*)\}")
SPELLINGS = (
    (STYLES, r"\1"),
    (re.compile(r"\\(?:textbf|mathrm|mathbf|boldsymbol)\s?(?=[0-9])"), ""),
    (re.compile(r"\{,\}(?:\\!)?|,\\!"), ","),
    (re.compile(r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])|°"), " degrees "),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\[,;: ]|(?<!^)~"), " "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\([dtc]?frac) ?([0-9]) ?([0-9])"), r"\\\1{\2}{\3}"),
    (re.compile(r"\\([dtc]?frac) ?([0-9]) ?(?=\{)"), r"\\\1{\2}"),
    (re.compile(r"\\([dtc]?frac) ?\\pi ?([0-9])"), r"\\\1{\\pi}{\2}"),
    (re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![A-Za-z])\\?sqrt ?\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<=[0-9}]) {0,3}\( ?([A-Za-z]{2,20}(?:[ /][A-Za-z]{1,20})?) ?\)\Z"), r" \1"),
)
"""Ways to write a number: styles of type, groups of digits, degrees, blanks, percent, short fractions, roots, units."""
FRAMES = (("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("**", "**"), ('"', '"'), ("'", "'"), ("`", "`"))
BRACKETS = (("\\left(", "\\right)"), ("(", ")"))
"""What may stand around an answer, and around a number."""
MOST_SIDES, MOST_PARTS = 4, 16
"""Sides of an equation, and values with a name each, that are still compared."""
PART = re.compile(r",(?:\\!)?|;|\\(?:text|mbox) ?\{ ?(?:or|and) ?\}|\b(?:or|and)\b|[({\[]|[)}\]]")
"""What parts the values of a list, and the brackets within which it does not."""
MOST_READ, MOST_NESTED = 400, 10
"""Characters of an answer, unless the reference is long too, and brackets within brackets, that are read as mathematics."""
COSTLY = re.compile(
    r"(?:\^|\*\*)[\s{(+-]*[0-9]{4}|(?:\^|\*\*)\s*(?:\{[^{}^]*|\([^()^]*|[0-9A-Za-z]\s*)(?:\^|\*\*)"
    r"|[)}]\s*(?:\^|\*\*)[\s{(]*[0-9]{3}|[0-9]{4}[\s)}]*!|![\s)}]*!|\\binom\{?[0-9]{4}|\\(?:sum|prod|int)(?![a-z])|[0-9]{100}"
)
"""Powers of powers and the like, which cost more to compute than any answer is worth."""
GROUPED = re.compile(r"(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])")
CUT_OFF = re.compile(r"[0-9]\.[\s.]*\.\Z|[0-9]…\Z")
"""A number that goes on. One dot behind a number is a full stop."""
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
    text = text.replace("\\$", "").replace("$", "").replace("−", "-").strip()
    if not CUT_OFF.search(text):
        text = text.rstrip(".").rstrip()
    return GROUPED.sub(lambda match: match[0].replace(",", ""), text)


@dataclass(frozen=True)
class Value:
    """One number as somebody wrote it: the expression, its number if it is one or a fraction of two, and its unit ("" if there
    is none, "%" for percent)."""

    expression: str
    number: Decimal | Fraction | None
    unit: str


def read_value(text: str, gold: Value | None = None) -> Value | None:
    """Read a normalised reference or, with the reference `gold`, an answer as one number, with a unit or without; None if it is
    anything else, such as a bound, several numbers, or an expression with variables. In a reference a blank parts the unit from
    the number, and a letter is no unit; an answer may hold e and i only if the reference is no plain number."""
    text = strip_dress(text)
    end = EXPRESSION.match(text).end()  # type: ignore[union-attr]
    expression, unit = text[:end].strip(), text[end:].strip()
    if unit and not UNIT.fullmatch(unit):
        return None
    if gold is None and unit[:1].isalpha() and (not unit[1:2].isalpha() or not text[end - 1 : end].isspace()):
        return None
    unit = "%" if PERCENT.fullmatch(unit) else unit.casefold()
    if NO_UNIT.search(unit) or NO_EXPRESSION.search(expression) or not re.search(r"[0-9]|pi|[ei]\b", expression):
        return None
    if gold is not None and gold.number is not None and re.search(r"\b[ei]\b", expression):
        return None
    number = Decimal(expression) if DECIMAL.fullmatch(expression) else read_rational(expression)
    return Value(expression, number, unit)


def strip_dress(text: str) -> str:
    """Strip from a normalised number what does not change it: frames and brackets, words that announce it, styles of type."""
    for pattern, plain in SPELLINGS:
        text = pattern.sub(plain, text)
    lead = LEAD.match(text)
    stripped = lead is not None and not DOUBT.search(lead[0])
    return strip_frames(text[lead.end() :] if lead and stripped else text, (*FRAMES, *BRACKETS))


def respell_layout(text: str) -> str:
    """Spell in one way what changes nothing of what an expression says."""
    for pattern, plain in LAYOUT:
        text = pattern.sub(plain, text)
    return normalise_answer(text)


def strip_frames(text: str, frames: Sequence[tuple[str, str]] = FRAMES) -> str:
    """Strip what stands around a whole answer, such as a box."""
    text = text.strip()
    for opening, closing in frames:
        inner = text[len(opening) : len(text) - len(closing)]
        if inner and text.startswith(opening) and text.endswith(closing) and min(_measure_depths(inner)) >= 0:
            text = inner.strip()
    return normalise_answer(text)


def is_far(one: Decimal | Fraction, other: Decimal | Fraction) -> bool:
    """Whether two numbers differ by more than rounding could explain."""
    left, right = Fraction(one), Fraction(other)
    return abs(left - right) > max(Fraction(1), abs(left), abs(right)) / 1000


def list_sides(gold: str, answer: str) -> list[str]:
    """List what an answer says to be equal to the reference: the sides of its equation, but for a name on the left. Who writes
    `6 = 5` says two things. Empty if there are too many; the answer itself where the reference is an equation."""
    if "=" in gold or "=" not in answer:
        return [answer]
    named = read_named_values(gold, answer) if SEVERAL.search(gold) else None
    if named is not None:
        return [named]
    sides = [side.strip() for side in answer.split("=", MOST_SIDES + 1)]
    values = sides[1:] if is_name(sides[0]) else sides
    return values if len(values) <= MOST_SIDES else []


def is_name(text: str) -> bool:
    """Whether the left side of an equation names what the right side is: it is no value, and neither a relation nor a doubt."""
    depths = _measure_depths(text)
    if NAME.fullmatch(text) is None or min(depths) < 0 or depths[-1]:
        return False
    if EXPRESSION.fullmatch(text) and re.search(r"[0-9]", text):
        return False
    return not (ORDER.search(text) or APPROXIMATE.search(text) or DOUBT.search(text))


def read_named_values(gold: str, answer: str) -> str | None:
    """Read `x = 1, x = -2` as `1, -2`, and as `(3, 4)` what the reference has in brackets: those have different names. None if
    not every part of the answer is one name and one value."""
    equations = [part.split("=", 2) for part in split_parts(answer)]
    if not 2 <= len(equations) <= MOST_PARTS or not all(len(sides) == 2 and is_name(sides[0].strip()) for sides in equations):
        return None
    values = ", ".join(value.strip() for _, value in equations)
    if strip_frames(gold, BRACKETS) == gold:
        return values
    return f"({values})" if len({name.strip() for name, _ in equations}) == len(equations) else None


def split_parts(text: str) -> list[str]:
    """Split a list at its commas and at `or` and `and`, but not within brackets."""
    parts, begin, depth = [], 0, 0
    for found in PART.finditer(text):
        depth += (found[0] in "({[") - (found[0] in ")}]")
        if depth == 0 and found[0] not in ")}]":
            parts.append(text[begin : found.start()])
            begin = found.end()
    parts.append(text[begin:])
    return [part for part in (part.strip() for part in parts) if part]


def strip_note(gold: str, answer: str) -> tuple[str, str]:
    """Strip from an expression the unit or note in words behind it, `x \\text{ cm}`: from a reference if the answer has none or
    the same, from an answer if it is a unit."""
    ours, theirs, plain = NOTE.search(gold), NOTE.search(answer), STYLES.sub(r"\1", answer)
    if ours and ours.start():
        words = ours[1].strip().rstrip(".")
        same = words and plain.rstrip(".").casefold().endswith(words.casefold())
        if same:
            return gold[: ours.start()].strip(), plain.rstrip(".")[: -len(words)].strip()
        return gold if theirs else gold[: ours.start()].strip(), answer
    if theirs and theirs.start() and UNIT.fullmatch(theirs[1].strip()) and not NO_UNIT.search(theirs[1]):
        return gold, answer[: theirs.start()].strip()
    return gold, answer


def is_refused(gold: str, answer: str) -> bool:
    """Whether an answer is wrong before it is read: too long or too deep, costly to compute, or with characters that cannot be
    seen or are no plain digits. What the reference has itself is allowed."""
    if len(answer) > max(MOST_READ, 4 * len(gold)) or (COSTLY.search(answer) and not COSTLY.search(gold)):
        return True
    if max(_measure_depths(answer)) > max(MOST_NESTED, *_measure_depths(gold)):
        return True
    return any(_is_odd(character, before) for before, character in pairwise(f" {answer}") if character not in gold)


def _is_odd(character: str, before: str) -> bool:
    """Whether a character is invisible, changes another, or is a digit of another alphabet. Powers of units are not odd."""
    if character.isascii():
        return not (character.isprintable() or character.isspace())
    if character in "²³":
        return not before.isalpha()
    return unicodedata.category(character)[0] in "CM" or character.isnumeric()


def _measure_depths(text: str) -> list[int]:
    """Return for each character how many brackets are open behind it."""
    return list(accumulate(((c in "({[") - (c in ")}]") for c in text), initial=0))


def is_other_kind(gold: str, answer: str) -> bool:
    """Whether an answer is an approximation, a bound, or several values, where the reference is none."""
    ordered = ORDER.search(answer) and not (ORDER.search(gold) or SEVERAL.search(gold))
    return bool(
        ordered
        or (APPROXIMATE.search(answer) and not APPROXIMATE.search(gold))
        or (SEVERAL.search(answer) and not SEVERAL.search(gold) and not ORDER.search(gold))
    )


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
    return DECIMAL.fullmatch(normalise_answer(text)) is not None


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
