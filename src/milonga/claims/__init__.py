"""Claims of the papers as comparisons, one file for each recipe. `milonga claim NAME` runs one."""

from milonga.claims import absolute_zero as _absolute_zero  # noqa: F401
from milonga.claims import apo as _apo  # noqa: F401
from milonga.claims import aprm as _aprm  # noqa: F401
from milonga.claims import asl as _asl  # noqa: F401
from milonga.claims import cure as _cure  # noqa: F401
from milonga.claims import curriculum as _curriculum  # noqa: F401
from milonga.claims import deepseek_math_v2 as _deepseek_math_v2  # noqa: F401
from milonga.claims import gar as _gar  # noqa: F401
from milonga.claims import genrm as _genrm  # noqa: F401
from milonga.claims import lets_verify as _lets_verify  # noqa: F401
from milonga.claims import maporl as _maporl  # noqa: F401
from milonga.claims import mars as _mars  # noqa: F401
from milonga.claims import marti as _marti  # noqa: F401
from milonga.claims import math_shepherd as _math_shepherd  # noqa: F401
from milonga.claims import multi_agent_evolve as _multi_agent_evolve  # noqa: F401
from milonga.claims import prime as _prime  # noqa: F401
from milonga.claims import qwen_prm as _qwen_prm  # noqa: F401
from milonga.claims import rlp as _rlp  # noqa: F401
from milonga.claims import rstar_math as _rstar_math  # noqa: F401
from milonga.claims import score as _score  # noqa: F401
from milonga.claims import search_self_play as _search_self_play  # noqa: F401
from milonga.claims import self_play_swe as _self_play_swe  # noqa: F401
from milonga.claims import self_rewarding as _self_rewarding  # noqa: F401
from milonga.claims import self_taught_evaluators as _self_taught_evaluators  # noqa: F401
from milonga.claims import spin as _spin  # noqa: F401
from milonga.claims import sweet_rl as _sweet_rl  # noqa: F401
from milonga.claims import tango_code as _tango_code  # noqa: F401
from milonga.claims import tango_free as _tango_free  # noqa: F401
from milonga.claims import ttrl as _ttrl  # noqa: F401
from milonga.claims import v_star as _v_star  # noqa: F401
from milonga.claims.base import CLAIMS, Claim, claim

__all__ = ["CLAIMS", "Claim", "claim"]
