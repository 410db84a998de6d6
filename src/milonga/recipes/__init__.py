"""Recipes: one file per published system, and those of the user's own."""

from milonga.recipes.absolute_zero import AbsoluteZero
from milonga.recipes.apo import Apo
from milonga.recipes.aprm import Aprm
from milonga.recipes.asl import Asl
from milonga.recipes.base import RECIPES, Recipe, RecipeOptions
from milonga.recipes.cure import Cure
from milonga.recipes.curriculum import Curriculum
from milonga.recipes.custom import find_recipe
from milonga.recipes.deepseek_math_v2 import DeepSeekMathV2
from milonga.recipes.gar import Gar
from milonga.recipes.genrm import Genrm
from milonga.recipes.grpo import Grpo
from milonga.recipes.lets_verify import LetsVerify
from milonga.recipes.maporl import Maporl
from milonga.recipes.mars import Mars
from milonga.recipes.marti import Marti
from milonga.recipes.math_shepherd import MathShepherd, MathShepherdRl
from milonga.recipes.multi_agent_evolve import MultiAgentEvolve
from milonga.recipes.prime import Prime
from milonga.recipes.qwen_prm import QwenPrm
from milonga.recipes.rlp import Rlp
from milonga.recipes.rstar_math import RstarMath
from milonga.recipes.score import Score
from milonga.recipes.search_self_play import SearchSelfPlay
from milonga.recipes.self_play_swe import SelfPlaySwe
from milonga.recipes.self_rewarding import SelfRewarding
from milonga.recipes.self_taught_evaluators import SelfTaughtEvaluators
from milonga.recipes.sft import Sft
from milonga.recipes.spin import Spin
from milonga.recipes.sweet_rl import SweetRl
from milonga.recipes.tango import Tango
from milonga.recipes.tango_arms import Frozen, Oracle, VerifierOnly
from milonga.recipes.tango_code import TangoCode
from milonga.recipes.tango_free import TangoFree
from milonga.recipes.tango_free_adversary import TangoFreeAdversary
from milonga.recipes.ttrl import Ttrl
from milonga.recipes.v_star import VStar

__all__ = [
    "RECIPES",
    "AbsoluteZero",
    "Apo",
    "Aprm",
    "Asl",
    "Cure",
    "Curriculum",
    "DeepSeekMathV2",
    "Frozen",
    "Gar",
    "Genrm",
    "Grpo",
    "LetsVerify",
    "Maporl",
    "Mars",
    "Marti",
    "MathShepherd",
    "MathShepherdRl",
    "MultiAgentEvolve",
    "Oracle",
    "Prime",
    "QwenPrm",
    "Recipe",
    "RecipeOptions",
    "Rlp",
    "RstarMath",
    "Score",
    "SearchSelfPlay",
    "SelfPlaySwe",
    "SelfRewarding",
    "SelfTaughtEvaluators",
    "Sft",
    "Spin",
    "SweetRl",
    "Tango",
    "TangoCode",
    "TangoFree",
    "TangoFreeAdversary",
    "Ttrl",
    "VStar",
    "VerifierOnly",
    "find_recipe",
]
