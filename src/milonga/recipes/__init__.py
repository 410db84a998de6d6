"""Recipes: one file per published system."""

from milonga.recipes.base import RECIPES, Recipe, RecipeOptions
from milonga.recipes.grpo import Grpo
from milonga.recipes.tango import Tango
from milonga.recipes.tango_arms import Frozen, Oracle, VerifierOnly

__all__ = ["RECIPES", "Frozen", "Grpo", "Oracle", "Recipe", "RecipeOptions", "Tango", "VerifierOnly"]
