"""Claim of SWEET-RL: turn-level advantages by a critic with extra information, versus preferences over whole dialogues."""

from milonga.systems.claim import USUAL, Claim

CLAIM = Claim(
    "sweet_rl",
    says="After as many turns, an actor that prefers single turns as a critic with the whole problem ranks them ends more "
    "dialogues with a right answer than one that prefers whole dialogues by how they ended.",
    # The third arm's critic sees only what the actor sees. The second needs no critic: it gets as many turns of the actor.
    arms=("sweet_rl", "sweet_rl:options.credit=trajectory,batch.rollouts=16", "sweet_rl:options.critic_sees=false"),
    metric="eval/generator/success",
    conditions=USUAL,
    spread=0.091,
    turns=40,
    task={"name": "last_letter", "min_words": 3, "max_words": 3, "test_max_words": 3},
    settings={
        "batch": {"problems": 48, "rollouts": 4},
        "options": {"formats": 20, "format_lines": 64, "noise": 0.1, "critic_turns": 20, "measured": 256},
        "policies": {"generator": {"lr": 5e-4, "minibatches": 4}, "critic": {"lr": 3e-4, "epochs": 2, "minibatches": 2}},
        "eval": {"problems": 4, "samples": 1, "every": 10, "greedy": False, "bench": 0},
    },
    more=("sweet_rl:options.rank_reference=without_c", "sweet_rl:options.turn_agg=sum"),
)
