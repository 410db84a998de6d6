"""Find recipes and claims by name: those of the catalogue, or the user's own `file.py:Class` or `package.module:Class`."""

from __future__ import annotations

from milonga.errors import ConfigError
from milonga.loading import load_attribute
from milonga.recipe import Allowed, Recipe, Refused
from milonga.systems.claim import Claim
from milonga.systems.index import CLAIMS, RECIPES

NEEDED = ("agents", "lead", "bindings")
"""Class attributes that a recipe of the user's own must set; the others have defaults or are only shown in listings."""


def find_recipe(name: str) -> type[Recipe]:
    """Return the recipe class of a name, or raise one clear ConfigError."""
    if name in RECIPES or ":" not in name:
        return RECIPES.get(name)
    found, _ = load_attribute("recipe", name)
    if not isinstance(found, type) or not issubclass(found, Recipe):
        kind = "another class" if isinstance(found, type) else f"a value of type {type(found).__name__}"
        raise ConfigError(f"recipe '{name}' is not a Recipe subclass, but {kind}")
    missing = [*sorted(found.__abstractmethods__), *(needed for needed in NEEDED if not hasattr(found, needed))]
    if missing:
        raise ConfigError(f"recipe '{name}' does not define {' and '.join(missing)}")
    if unsaid := [key for key, permission in found.bindings.items() if not isinstance(permission, Allowed | Refused)]:
        raise ConfigError(f"recipe '{name}': bindings['{unsaid[0]}'] must be ALLOWED or Refused(\"reason\"), of milonga.recipe")
    if not isinstance(found.overlap, Allowed | Refused):
        raise ConfigError(f"recipe '{name}': overlap must be ALLOWED or Refused(\"reason\"), of milonga.recipe")
    if "name" not in vars(found):
        found.name = name.rpartition(":")[2]
    return found


def find_claim(name: str) -> Claim:
    """Return the claim of a name, or raise one clear ConfigError."""
    if name in CLAIMS or ":" not in name:
        return CLAIMS.get(name)
    found, _ = load_attribute("claim", name)
    if not isinstance(found, Claim):
        raise ConfigError(f"claim '{name}' is not a Claim, but a value of type {type(found).__name__}")
    return found
