"""Lines as a hostile process would write them in place of its result: nearly right, and wrong somewhere. Drawn at random.

Who reads such lines must take each for the data of one program, whatever it says. The tests draw them, and `make soak`.
"""

from __future__ import annotations

import json
import random
from typing import Any

DIGITS = "1" + "0" * 400
"""An integer that no float can hold."""
TEXTS = [
    "1",
    '"a"',
    "[1,2]",
    '{"float":"1.5"}',
    '{"set":[1,2]}',
    '{"dict":[["a",1]]}',
    '{"bytes":"ff"}',
    '{"tuple":[]}',
    f'{{"float":{DIGITS}}}',
    f'{{"float":"{DIGITS}"}}',
    f'{{"float":-{DIGITS}}}',
    '{"float":"nan"}',
    '{"float":"0x1p3"}',
    '{"float":null}',
    '{"float":[]}',
    '{"float":true}',
    '{"bytes":1}',
    '{"bytes":"fg"}',
    '{"bytes":"\\u00e9"}',
    '{"dict":[[[],1]]}',
    '{"dict":[[1]]}',
    '{"dict":{"a":1}}',
    f'{{"dict":{DIGITS}}}',
    '{"set":[[1]]}',
    '{"set":[{"dict":[]}]}',
    '{"set":1}',
    '{"tuple":"ab"}',
    '{"tuple":null}',
    '{"frozenset":[]}',
    '{"":0}',
    "{}",
    '{"set":[],"tuple":[]}',
    DIGITS,
    "9" * 5000,
    "-0",
    "1e400",
    "NaN",
    "[" * 3000,
    "[" * 21 + "]" * 21,
    '{"tuple":[' * 500 + "]}" * 500,
    '"\\ud800"',
    '"\\udc00\\ud800"',
    "\ud800",
    "\0",
    "",
]
"""Canonical texts, and what looks like one."""
NUMBERS = [0, 1, -1, 1.5, 1e308, float("nan"), float("inf"), 10**400, True, None]
STATUSES = ["ok", "syntax", "exception", "memory", "bad_output", "timeout", "sandbox_error", "nondeterministic", "\ud800", ""]


def forge_line(rng: random.Random, token: str, calls: int = 1) -> bytes:
    """Forge a line about so many calls, with the true token mostly; then, every other time, damage it."""
    results = [_draw_result(rng) for _ in range(calls + rng.choice((0, 0, 0, 0, 1, -1)))]
    reply: dict[str, Any] = {"token": token, "failure": None, "results": results, "mutates": rng.random() < 0.5}
    if rng.random() < 0.2:
        reply["failure"] = _draw_failure(rng)
    if rng.random() < 0.2:
        reply[rng.choice([*reply, "status"])] = _draw_data(rng, 4)
    line = json.dumps(reply, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass") + b"\n"
    return line if rng.random() < 0.5 else _damage(rng, line)


def _draw_result(rng: random.Random) -> Any:
    return rng.choice((lambda: [rng.choice(TEXTS)], lambda: [_nest_text(rng)], lambda: _draw_failure(rng)))()


def _nest_text(rng: random.Random) -> str:
    """A value of values, of which some may be none."""
    tag = rng.choice(("tuple", "set", "dict", "list"))
    items = [rng.choice(TEXTS) for _ in range(rng.randrange(4))]
    if tag == "dict":
        items = [f"[{item},{rng.choice(TEXTS)}]" for item in items]
    inner = f"[{','.join(items)}]"
    return inner if tag == "list" else f'{{"{tag}":{inner}}}'


def _draw_failure(rng: random.Random) -> Any:
    return [rng.choice(STATUSES), *(_draw_data(rng, 1) if rng.random() < 0.2 else rng.choice(TEXTS) for _ in range(2))]


def _draw_data(rng: random.Random, depth: int) -> Any:
    """Any JSON, and numbers that JSON does not know."""
    kind = rng.randrange(6 if depth else 4)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 4:
        return rng.choice(TEXTS)
    items = [_draw_data(rng, depth - 1) for _ in range(rng.randrange(4))]
    return items if kind == 4 else {str(key): item for key, item in enumerate(items)}


def _damage(rng: random.Random, line: bytes) -> bytes:
    """Cut, double, swap or overwrite some bytes."""
    data = bytearray(line)
    for _ in range(rng.randrange(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = start + rng.choice((1, 1, 1, 3, 20))
        part = rng.choice((b"", bytes([rng.randrange(256)]), b"[" * 2000, b"\n", bytes(data[start:end]) * 2, b"1" * 500))
        data[start:end] = part
    return bytes(data)
