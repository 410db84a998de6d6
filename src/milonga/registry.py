"""A registry of named objects: recipes, tasks, roles, objectives. One mechanism for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from milonga.errors import ConfigError, suggest_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Map names to objects of one kind; a wrong name is an error that names the nearest right one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> T:
        if name in self._items:
            raise ValueError(f"{self.kind} '{name}' is registered twice")
        self._items[name] = item
        return item

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator form of `add`."""
        return lambda item: self.add(name, item)

    def get(self, name: str) -> T:
        if name not in self._items:
            raise ConfigError(f"unknown {self.kind} '{name}': {suggest_name(name, self._items)}")
        return self._items[name]

    def names(self) -> list[str]:
        return sorted(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())
