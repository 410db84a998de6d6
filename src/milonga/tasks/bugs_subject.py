"""The process that holds the code under test, and nothing else: it does what the process that runs the tests asks of it.

It runs inside the sandbox, and imports nothing of Milonga but the wire. Whatever the code under test does here it does to
itself: all that leaves this process is answers, and no answer says more than a value that could have been returned.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

from milonga.tasks.bugs_wire import Closed, Stays, Wire, pack, unpack

OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in dir(operator) if not name.startswith("_")},
    **{each.__name__: each for each in (iter, next, len, bool, str, repr, hash, abs, int, float, round, divmod, reversed)},
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value, *error: type(value).__exit__(value, *error),
}
CHANGEABLE = (list, dict, set, bytearray)
"""Plain types whose values a call may change: what became of its arguments is sent back."""


class Callback:
    """A function of the tests, to be called from here."""

    def __init__(self, subject: Subject, number: int) -> None:
        self.subject, self.number = subject, number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.subject.call_back(self, arguments, named)


class Subject:
    """Objects by number, and what is asked of them."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.requests: dict[str, Callable[..., Any]] = {
            "import": importlib.import_module,
            "get": getattr,
            "set": setattr,
            "delete": delattr,
            "call": lambda function, arguments, named: function(*arguments, **named),
            "do": lambda name, *values: OPERATIONS[name](*values),
        }

    def serve(self) -> None:
        """Answer requests until there are no more."""
        while True:
            try:
                self.wire.send(self.answer(self.wire.receive()))
            except Closed:
                return

    def answer(self, message: list[Any]) -> list[Any]:
        word, *data = message
        try:
            values = [unpack(each, self.resolve) for each in data]
            before = [pack(each, self.refer) for each in values[1]] if word == "call" else []
            result = pack(self.requests[word](*values), self.refer)
            changed = [
                [at, after]
                for at, old in enumerate(before)
                if isinstance(values[1][at], CHANGEABLE) and (after := pack(values[1][at], self.refer)) != old
            ]
            return ["returned", result, changed]
        except Closed:
            raise
        except BaseException as error:
            return ["raised", *self.describe(error)]

    def call_back(self, callback: Callback, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a function of the tests. Until it returns, more may be asked here."""
        self.wire.send(["callback", callback.number, pack(arguments, self.refer), pack(named, self.refer)])
        while True:
            message = self.wire.receive()
            if message[0] == "answer":
                return unpack(message[1], self.resolve)
            if message[0] == "failed":
                raise unpack(message[1], self.resolve)
            self.wire.send(self.answer(message))

    def describe(self, error: BaseException) -> list[Any]:
        """Describe an exception: what it is, its plain arguments, and its text."""
        try:
            arguments, text = pack(list(error.args), self.refer), str(error)
        except BaseException:
            arguments, text = ["list"], ""
        return [self.refer(error), arguments, text]

    def refer(self, value: Any) -> list[Any]:
        if isinstance(value, Callback):
            return ["callback", value.number]
        if isinstance(value, type):
            return self.refer_class(value)
        return ["object", self.number(value), self.refer_class(type(value))]

    def refer_class(self, kind: type) -> list[Any]:
        if getattr(builtins, kind.__name__, None) is kind:
            return ["named", "builtins", kind.__name__]
        bases = [self.refer_class(base) for base in kind.__bases__]
        return ["class", self.number(kind), kind.__name__, kind.__module__, bases]

    def number(self, value: Any) -> int:
        """Number an object, which is kept from now on: the same object has the same number."""
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def resolve(self, word: str, parts: list[Any]) -> Any:
        if word == "object":
            return self.objects[parts[0]]
        if word == "callback":
            return Callback(self, parts[0])
        if word == "named":
            return operator.attrgetter(parts[1])(importlib.import_module(parts[0]))
        if word == "error":
            return getattr(builtins, parts[0])(*parts[1:])
        raise Stays(word)


def serve(job: dict[str, Any]) -> None:
    """Write the files down, and serve what is asked of them."""
    for path, text in job["files"].items():
        os.makedirs(os.path.dirname(os.path.join("tree", path)), exist_ok=True)
        with open(os.path.join("tree", path), "w", encoding="utf-8", newline="") as file:
            file.write(text)
    os.mkdir("home")
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR"), os.path.abspath("home")))
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    sys.dont_write_bytecode = True
    os.chdir("tree")
    sys.path += [os.getcwd(), os.path.join(os.getcwd(), "src"), *job["environment"]]
    Subject(Wire(*job["wires"])).serve()
