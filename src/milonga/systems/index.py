"""The one catalogue of systems: name, class, family, paper, what it does in one line, claim and page.

The command line, shell completion, README and docs are made from it. A new system is one folder and one line here. Nothing is
imported until it is asked for: completing a word must not load 40 recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from milonga.errors import ConfigError, suggest_name

if TYPE_CHECKING:
    from milonga.recipe import Recipe
    from milonga.systems.claim import Claim

T = TypeVar("T")


@dataclass(frozen=True)
class System:
    """One published system, or one of ours. Places are relative to `milonga/systems`."""

    name: str
    recipe: str
    """Its class, as "module:Class"."""
    family: str
    paper: str
    """Where it was published; empty for systems of our own."""
    line: str
    """What it does, in one line."""
    claim: str = ""
    """The claim that it is tested by, as "module:CLAIM"; empty where there is none."""
    page: str = ""
    """Its README."""
    parent: str = ""
    """The system whose recipe it extends: the only other folder that it may import from."""


# fmt: off
SYSTEMS = (
    System("tango", "tango.recipe:Tango", "Co-training", "arXiv 2505.15034", "A generator and a generative step verifier learn in turns", "", "tango/README.md"),
    System("tango_code", "tango.code:TangoCode", "Co-training", "", "Tango for programs: a coder and a verifier of its pieces, hidden tests as ground truth", "tango.claim_code:CLAIM", "tango/code.md"),
    System("tango_balanced", "tango_balanced.recipe:TangoBalanced", "Co-training", "", "Tango with a verifier that learns from balanced pairs of right and wrong solutions", "tango_balanced.claim:CLAIM", "tango_balanced/README.md", parent="tango"),
    System("curriculum", "curriculum.recipe:Curriculum", "Co-training", "", "A proposer, rewarded for problems that are sometimes solved, chooses the difficulty for Tango", "curriculum.claim:CLAIM", "curriculum/README.md", parent="tango"),
    System("prime", "prime.recipe:Prime", "Co-training", "arXiv 2502.01456", "A generator and an implicit process reward model learn from the same rollouts", "prime.claim:CLAIM", "prime/README.md"),
    System("cure", "cure.recipe:Cure", "Co-training", "arXiv 2506.03136", "A coder and a unit tester in one model, both rewarded by execution", "cure.claim:CLAIM", "cure/README.md"),
    System("deepseek_math_v2", "deepseek_math_v2.recipe:DeepSeekMathV2", "Co-training", "arXiv 2511.22570", "A proof verifier, its meta-verifier, and a generator that verifies itself", "deepseek_math_v2.claim:CLAIM", "deepseek_math_v2/README.md"),
    System("gar", "gar.recipe:Gar", "Adversarial", "arXiv 2512.16917", "A generator and a discriminator of slices of its reasoning learn adversarially", "gar.claim:CLAIM", "gar/README.md"),
    System("apo", "apo.recipe:Apo", "Adversarial", "arXiv 2311.08045", "A reward model and a policy in rounds: gold answers must beat the policy's own", "apo.claim:CLAIM", "apo/README.md"),
    System("aprm", "aprm.recipe:Aprm", "Adversarial", "arXiv 2511.22888", "A corruptor of steps against a process reward model", "aprm.claim:CLAIM", "aprm/README.md"),
    System("absolute_zero", "absolute_zero.recipe:AbsoluteZero", "Self-play", "arXiv 2505.03335", "One policy proposes programs and answers questions about them; execution is the only truth", "absolute_zero.claim:CLAIM", "absolute_zero/README.md"),
    System("asl", "asl.recipe:Asl", "Self-play", "arXiv 2510.14253", "Proposer, generative reward model and solver from one model, trained in phases", "asl.claim:CLAIM", "asl/README.md"),
    System("multi_agent_evolve", "multi_agent_evolve.recipe:MultiAgentEvolve", "Self-play", "arXiv 2510.23595", "Proposer, solver and judge from one model, rewarded by its judgements alone", "multi_agent_evolve.claim:CLAIM", "multi_agent_evolve/README.md"),
    System("search_self_play", "search_self_play.recipe:SearchSelfPlay", "Self-play", "arXiv 2510.18821", "A searching proposer makes questions from answers; a searching solver must find them again", "search_self_play.claim:CLAIM", "search_self_play/README.md"),
    System("self_play_swe", "self_play_swe.recipe:SelfPlaySwe", "Self-play", "arXiv 2512.18552", "One model injects bugs into repositories and repairs them", "self_play_swe.claim:CLAIM", "self_play_swe/README.md"),
    System("ttrl", "ttrl.recipe:Ttrl", "Label-free", "arXiv 2504.16084", "The majority of a model's own answers is the reward; or GRPO on one example", "ttrl.claim:CLAIM", "ttrl/README.md"),
    System("tango_free", "tango.free:TangoFree", "Label-free", "", "Tango without ground truth: votes and the verifier's own verdicts are the labels", "tango.claim_free:CLAIM", "tango/free.md"),
    System("tango_free_adversary", "tango.adversary:TangoFreeAdversary", "Label-free", "", "tango_free with a third agent that is rewarded for wrong solutions which pass", "", "tango/free.md"),
    System("rstar_math", "rstar_math.recipe:RstarMath", "Self-improvement in rounds", "arXiv 2501.04519", "Tree search, and preferences among sibling steps, in rounds", "rstar_math.claim:CLAIM", "rstar_math/README.md"),
    System("spin", "spin.recipe:Spin", "Self-improvement in rounds", "arXiv 2401.01335", "The data's answers must beat those of the model's own last round", "spin.claim:CLAIM", "spin/README.md"),
    System("v_star", "v_star.recipe:VStar", "Self-improvement in rounds", "arXiv 2402.06457", "Own right solutions train the generator; right against wrong ones train a DPO verifier", "v_star.claim:CLAIM", "v_star/README.md"),
    System("self_rewarding", "self_rewarding.recipe:SelfRewarding", "Self-improvement in rounds", "arXiv 2401.10020", "One model answers, grades itself, and prefers its best answer to its worst", "self_rewarding.claim:CLAIM", "self_rewarding/README.md"),
    System("maporl", "maporl.recipe:Maporl", "Several agents in one conversation", "arXiv 2502.18439", "Two agents debate over several turns and learn together", "maporl.claim:CLAIM", "maporl/README.md"),
    System("marti", "marti.recipe:Marti", "Several agents in one conversation", "OpenReview E7jZqo0A50", "Chains with a critic, debates and mixtures of agents, each rewarded for its own turns", "marti.claim:CLAIM", "marti/README.md"),
    System("mars", "mars.recipe:Mars", "Several agents in one conversation", "arXiv 2510.04935", "A planner and the reader of its documents learn from one final answer", "mars.claim:CLAIM", "mars/README.md"),
    System("sweet_rl", "sweet_rl.recipe:SweetRl", "Several agents in one conversation", "arXiv 2503.15478", "A critic with privileged information gives credit to single turns of a dialogue", "sweet_rl.claim:CLAIM", "sweet_rl/README.md"),
    System("genrm", "genrm.recipe:Genrm", "Verifier training", "arXiv 2408.15240", "Verification as next-token prediction: the probability of Yes, after written checks", "genrm.claim:CLAIM", "genrm/README.md"),
    System("lets_verify", "lets_verify.recipe:LetsVerify", "Verifier training", "arXiv 2305.20050", "A process reward model from step labels, with active selection of what to label", "lets_verify.claim:CLAIM", "lets_verify/README.md"),
    System("math_shepherd", "math_shepherd.recipe:MathShepherd", "Verifier training", "arXiv 2312.08935", "Step labels from completions of each prefix, learned by a value head", "math_shepherd.claim:CLAIM", "math_shepherd/README.md"),
    System("qwen_prm", "qwen_prm.recipe:QwenPrm", "Verifier training", "arXiv 2501.07301", "Completions and a judge must agree about the first error; the rest is dropped", "qwen_prm.claim:CLAIM", "qwen_prm/README.md"),
    System("self_taught_evaluators", "self_taught_evaluators.recipe:SelfTaughtEvaluators", "Verifier training", "arXiv 2408.02666", "A judge of pairs learns from its own judgements; the better side is known by construction", "self_taught_evaluators.claim:CLAIM", "self_taught_evaluators/README.md"),
    System("verifier_only", "tango.arms:VerifierOnly", "Verifier training", "arXiv 2505.15034", "Tango with a frozen generator: only the verifier learns", "", "tango/README.md"),
    System("score", "score.recipe:Score", "Single policy", "arXiv 2409.12917", "Two-stage, two-turn RL for self-correction", "score.claim:CLAIM", "score/README.md"),
    System("rlp", "rlp.recipe:Rlp", "Single policy", "arXiv 2510.01265", "A thought is worth what it adds to the log-probability of the next token", "rlp.claim:CLAIM", "rlp/README.md"),
    System("grpo", "grpo.recipe:Grpo", "Baselines", "arXiv 2402.03300", "Outcome rewards, normalised within the rollouts of a problem", "", "grpo/README.md"),
    System("frozen", "tango.arms:Frozen", "Baselines", "arXiv 2505.15034", "Tango with a frozen verifier", "", "tango/README.md"),
    System("sequential", "tango.arms:Sequential", "Baselines", "", "Tango in sequence: the verifier is trained first and frozen while the generator learns", "", "tango/README.md"),
    System("oracle", "tango.arms:Oracle", "Baselines", "arXiv 2505.15034", "Tango with the exact truth of each step: an upper bound for step rewards", "", "tango/README.md"),
    System("math_shepherd_rl", "math_shepherd.recipe:MathShepherdRl", "Baselines", "arXiv 2312.08935", "GRPO with the step scores of a frozen Math-Shepherd verifier", "math_shepherd.claim:RL_CLAIM", "math_shepherd/README.md"),
    System("sft", "sft.recipe:Sft", "Baselines", "", "Both agents imitate worked examples: the warm start of other recipes", "", "sft/README.md"),
)
# fmt: on


def _load_place(place: str) -> Any:
    """Import "module:attribute" of this package."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"milonga.systems.{module}"), attribute)


class Catalogue(Generic[T]):
    """Names of systems with something that each declares; it is imported when it is asked for.

    A wrong name is an error that names the nearest right one.
    """

    def __init__(self, kind: str, get_place: Callable[[System], str]) -> None:
        self.kind = kind
        self._places = {system.name: place for system in SYSTEMS if (place := get_place(system))}

    def get(self, name: str) -> T:
        if name not in self._places:
            raise ConfigError(f"unknown {self.kind} '{name}': {suggest_name(name, self._places)}")
        found: T = _load_place(self._places[name])
        return found

    def names(self) -> list[str]:
        return sorted(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


RECIPES: Catalogue[type[Recipe]] = Catalogue("recipe", lambda system: system.recipe)
CLAIMS: Catalogue[Claim] = Catalogue("claim", lambda system: system.claim)


def find_paper(name: str) -> str:
    """Return where a system was published; empty for systems of our own and of the user's."""
    return next((system.paper for system in SYSTEMS if system.name == name), "")
