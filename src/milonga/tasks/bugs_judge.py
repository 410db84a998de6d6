"""The process that runs tests: modules under test are stand-ins here, for what another process holds.

It runs inside the sandbox, and imports nothing of Milonga but the wire. Invariants:
- No code under test runs here. Of what a call returns, plain values are copied; of anything else there is a stand-in, which
  asks the other process for everything.
- A stand-in equals no plain value and has no order with one, whatever its own methods say; what it contains is found by
  looking at its items.
- Where the original returned plain values, so must a patch: what may be an object is recorded with the original, by how the
  tests came to it.
What cannot be done in this way fails. A test that fails here on the original is not run here.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

from milonga.tasks.bugs_wire import Closed, Stays, Wire, pack, unpack

PATH = 200
"""Characters that are known of the way to an object: the last ones."""
SPECIAL = ("__name__", "__qualname__", "__doc__", "__version__", "__author__")
"""Names with underscores that are asked for; others are looked for by Python and pytest for reasons of their own."""
OWN = "_milonga_"
FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, BuiltinMethodType)
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift", "divmod")
OPERATORS = {name: name for name in BINARY} | {"and": "and_", "or": "or_"}
UNARY = (
    "neg",
    "pos",
    "abs",
    "invert",
    "len",
    "iter",
    "next",
    "bool",
    "str",
    "repr",
    "hash",
    "int",
    "float",
    "index",
    "reversed",
)
OTHERS = ("getitem", "setitem", "delitem", "enter")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
TEXTS = {"len": int, "bool": bool, "str": str, "repr": str, "hash": int, "int": int, "float": float, "index": int}
"""Operations with a result of one type."""


class Changed(AssertionError):
    """What was a plain value with the original is an object now."""


class Link:
    """The other end of the wire, and the stand-ins of what is there."""

    def __init__(self, wire: Wire, allowed: Sequence[str] | None) -> None:
        """`allowed` are the places at which there may be objects; None: anywhere, as they are recorded."""
        self.wire = wire
        self.allowed = None if allowed is None else frozenset(allowed)
        self.places: dict[str, None] = {}
        self.stand_ins: dict[int, Any] = {}
        self.callbacks: list[Callable[..., Any]] = []
        self.replaced: dict[tuple[int, str], Any] = {}
        """What attributes were before the tests set them."""
        self.failure: BaseException | None = None
        """What ended a function of the tests that the other process called."""

    def ask(self, place: str, word: str, *values: Any) -> Any:
        """Ask for something, and answer what is asked meanwhile."""
        place = place[-PATH:]
        self.wire.send([word, *(pack(value, self.refer) for value in values)])
        while (reply := self.wire.receive())[0] == "callback":
            self.wire.send(self.call_back(place, *reply[1:]))
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if reply[0] == "raised" and len(reply) == 4:
            raise self.make_error(place, *reply[1:])
        if reply[0] != "returned" or len(reply) != 3 or not isinstance(reply[2], list):
            raise Closed("an answer has another form")
        for change in reply[2] if word == "call" else ():
            at, after = change
            replace_content(values[1][at], self.take(f"{place}<", after))
        return self.take(place, reply[1])

    def take(self, place: str, data: Any) -> Any:
        """Take a value that was sent. Objects may be where they were with the original, and nowhere else."""

        def resolve(word: str, parts: list[Any]) -> Any:
            known = hashlib.sha256(place.encode(errors="replace")).hexdigest()[:12]
            self.places[known] = None
            if self.allowed is not None and known not in self.allowed and word != "named":
                raise Changed(f"there is an object where the original had a plain value: {place}")
            return self.find(place, word, parts)

        return unpack(data, resolve)

    def find(self, place: str, word: str, parts: list[Any]) -> Any:
        """Find what is referred to: a stand-in, a function of the tests, or a class of Python's own."""
        if word == "callback" and type(parts[0]) is int:
            return self.callbacks[parts[0]]
        if word == "named" and parts[:1] == ["builtins"]:
            kind = getattr(builtins, str(parts[1]), None)
            if isinstance(kind, type):
                return kind
        if word == "class" and len(parts) == 4 and type(parts[0]) is int:
            return self.stand_ins.get(parts[0]) or self.make_class(place, *parts)
        if word == "object" and len(parts) == 2 and type(parts[0]) is int:
            if parts[0] not in self.stand_ins:
                self.stand_ins[parts[0]] = self.make_object(place, parts[0], parts[1], [])
            return self.stand_ins[parts[0]]
        raise Closed("a reference has another form")

    def make_class(self, place: str, number: int, name: Any, module: Any, bases: Any) -> type:
        """Make the stand-in of a class, with those of its bases: so that `isinstance` and `except` know them."""
        found = [self.find(place, base[0], base[1:]) for base in bases if isinstance(base, list) and base]
        errors = [base for base in found if issubclass(base, Exception)]
        own = [base for base in found if issubclass(base, StandIn)]
        parents = dict.fromkeys([*own, *errors] if own else [StandIn, *errors])
        names = {f"{OWN}link": self, f"{OWN}number": number, f"{OWN}place": place, "__module__": str(module)}
        self.stand_ins[number] = type.__new__(StandInType, str(name), tuple(parents), names)
        return self.stand_ins[number]  # type: ignore[no-any-return]

    def make_object(self, place: str, number: int, kind: Any, arguments: Sequence[Any]) -> Any:
        """Make the stand-in of an object."""
        if not isinstance(kind, list) or not kind:
            raise Closed("a reference has another form")
        found = self.find(place, kind[0], kind[1:])
        is_error = issubclass(found, Exception)
        if not issubclass(found, StandIn):
            found = StandIn
        made = found.__new__(found, *(arguments if is_error else ()))
        object.__setattr__(made, f"{OWN}link", self)
        object.__setattr__(made, f"{OWN}number", number)
        object.__setattr__(made, f"{OWN}place", place)
        return made

    def make_error(self, place: str, reference: Any, arguments: Any, text: Any) -> BaseException:
        """Make the exception to be raised here: one of Python's own, or a stand-in. Nothing else leaves a test early."""
        if (
            not isinstance(reference, list)
            or len(reference) != 3
            or reference[0] != "object"
            or not isinstance(reference[2], list)
        ):
            raise Closed("an exception has another form")
        plain = unpack(arguments, lambda word, parts: f"<{word}>")
        kind = self.find(place, reference[2][0], reference[2][1:])
        if not issubclass(kind, Exception) or not isinstance(plain, list):
            return RuntimeError(str(text))
        if not issubclass(kind, StandIn):
            return kind(*plain)  # type: ignore[no-any-return]
        return self.make_object(place, reference[1], reference[2], plain)  # type: ignore[no-any-return]

    def call_back(self, place: str, number: Any, arguments: Any, named: Any) -> list[Any]:
        """Call a function of the tests for the other process."""
        try:
            function = self.callbacks[number]
            values, words = self.take(f"{place}>", arguments), self.take(f"{place}>", named)
            return ["answer", pack(function(*values, **words), self.refer)]
        except Exception as error:
            return ["failed", self.refer(error)]
        except BaseException as error:  # a test that ends from within
            self.failure = error
            return ["failed", ["error", "RuntimeError", "the test has ended"]]

    def refer(self, value: Any) -> list[Any]:
        """Refer to what is not plain: a stand-in, something of Python's own library, a function, or an exception."""
        if isinstance(value, StandIn | StandInModule) or type(value) is StandInType:
            return ["object", getattr(value, f"{OWN}number")]
        if isinstance(value, type | BuiltinFunctionType | FunctionType):
            home, name = value.__module__, value.__qualname__
            if str(home).partition(".")[0] in sys.stdlib_module_names and getattr(sys.modules.get(home), name, None) is value:
                return ["named", home, name]
        if isinstance(value, FUNCTIONS):
            self.callbacks.append(value)
            return ["callback", len(self.callbacks) - 1]
        if isinstance(value, BaseException):
            name = type(value).__name__
            return ["error", name if hasattr(builtins, name) else "RuntimeError", str(value)]
        raise Stays(f"a {type(value).__name__} of the tests cannot be sent")


def replace_content(target: Any, content: Any) -> None:
    """Replace what a list, a dict, a set or a bytearray holds, as a call did in the other process."""
    if type(target) is not type(content):
        raise Closed("an argument has another type")
    if isinstance(target, list | bytearray):
        target[:] = content
    else:
        target.clear()
        target.update(content)


def look_up(value: Any, name: str) -> Any:
    """Look up an attribute of what is stood in for."""
    if name.startswith(OWN) or (name.startswith("__") and name not in SPECIAL) or name.startswith(("pytest", "_pytest")):
        raise AttributeError(name)
    return getattr(value, f"{OWN}link").ask(f"{getattr(value, f'{OWN}place')}.{name}", "get", value, name)


def put(value: Any, name: str, new: Any) -> None:
    """Set an attribute of what is stood in for, and remember what it was."""
    link, key = getattr(value, f"{OWN}link"), (getattr(value, f"{OWN}number"), name)
    if key not in link.replaced:
        with contextlib.suppress(AttributeError):
            link.replaced[key] = look_up(value, name)
    link.ask("", "set", value, name, new)


def remove(value: Any, name: str) -> None:
    """Delete an attribute of what is stood in for; one that was replaced is put back. So do tests that undo what they set: they
    find no attribute in a stand-in's own dictionary."""
    link, key = getattr(value, f"{OWN}link"), (getattr(value, f"{OWN}number"), name)
    if key in link.replaced:
        link.ask("", "set", value, name, link.replaced.pop(key))
    else:
        link.ask("", "delete", value, name)


def do(value: Any, name: str, *values: Any) -> Any:
    """Do an operation with what is stood in for."""
    result = getattr(value, f"{OWN}link").ask(f"{getattr(value, f'{OWN}place')}~{name}", "do", name, *values)
    if type(result) is not TEXTS.get(name, type(result)):
        raise TypeError(f"{name} of an object is no {TEXTS[name].__name__}")
    return result


def call(value: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    place = f"{getattr(value, f'{OWN}place')}()"
    return getattr(value, f"{OWN}link").ask(place, "call", value, list(arguments), named)


class StandInType(type):
    """The type of stand-ins of classes."""

    def __new__(mcs, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> StandInType:
        if bases:
            raise Stays(f"{name} cannot be derived from a class under test")
        return super().__new__(mcs, name, bases, names)

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return call(cls, arguments, named)

    def __getattr__(cls, name: str) -> Any:
        return look_up(cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        put(cls, name, value)

    def __delattr__(cls, name: str) -> None:
        remove(cls, name)

    def __iter__(cls) -> Any:
        return do(cls, "iter", cls)

    def __len__(cls) -> Any:
        return do(cls, "len", cls)

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        return do(cls, "getitem", cls, key)


class StandIn(metaclass=StandInType):
    """A stand-in of an object."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return call(self, arguments, named)

    def __getattr__(self, name: str) -> Any:
        return look_up(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):  # as Python does with exceptions
            object.__setattr__(self, name, value)
        else:
            put(self, name, value)

    def __delattr__(self, name: str) -> None:
        remove(self, name)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        return do(self, "exit", self, kind, error, None)


def _add_operators() -> None:
    """Give stand-ins all special methods: Python looks for these in the class alone."""

    def make_operator(name: str, is_swapped: bool = False) -> Callable[..., Any]:
        def operate(self: Any, *values: Any) -> Any:
            return do(self, name, *((*values, self) if is_swapped else (self, *values)))

        return operate

    def make_comparison(name: str) -> Callable[[Any, Any], Any]:
        def compare(self: Any, other: Any) -> Any:
            is_alike = isinstance(other, StandIn) or type(other) is StandInType
            return do(self, name, self, other) if is_alike else NotImplemented

        return compare

    for name in (*UNARY, *OTHERS):
        type.__setattr__(StandIn, f"__{name}__", make_operator(name))
    for name in BINARY:
        type.__setattr__(StandIn, f"__{name}__", make_operator(OPERATORS[name]))
        type.__setattr__(StandIn, f"__r{name}__", make_operator(OPERATORS[name], is_swapped=True))
    for name in COMPARISONS:
        type.__setattr__(StandIn, f"__{name}__", make_comparison(name))


_add_operators()


class StandInModule(ModuleType):
    """A stand-in of a module. It has no names of its own, so that nothing is imported from it by `*`."""

    def __getattr__(self, name: str) -> Any:
        return look_up(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(("__", OWN)) or isinstance(value, ModuleType):
            super().__setattr__(name, value)
        else:
            put(self, name, value)

    def __delattr__(self, name: str) -> None:
        remove(self, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules under test in the other process. Others in the same folders are tests and what belongs to them."""

    def __init__(self, link: Link, names: Sequence[str]) -> None:
        self.link, self.names, self.root = link, frozenset(names), os.getcwd()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.names:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        inner = fullname.replace(".", os.sep)
        spec.submodule_search_locations = [os.path.join(self.root, inner), os.path.join(self.root, "src", inner)]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        found = self.link.ask(f"import {module.__name__}", "import", module.__name__)
        for name in ("link", "number", "place"):
            setattr(module, f"{OWN}{name}", getattr(found, f"{OWN}{name}"))


def connect(job: dict[str, Any]) -> Link:
    """Connect with the process that holds the code under test: its modules are found there from now on."""
    link = Link(Wire(*job["wires"]), job["places"])
    sys.meta_path.insert(0, Finder(link, job["modules"]))
    return link
