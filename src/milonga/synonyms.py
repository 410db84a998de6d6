"""What settings, options and commands are called elsewhere (TRL, verl, OpenRLHF, transformers), and what they are called here.

Invariant: nothing is taken by another name; a name that is known from elsewhere only makes a better message. What a message
proposes exists: the option in the command that it is proposed for, the key in the config.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """A key of the config, and its flag where it has one. A setting of a policy has NAME in place of the policy's name."""

    key: str
    flag: str = ""


OBJECTIVE = "policies.NAME.objective"
TABLE: dict[Setting, str] = {
    Setting("lr", "--lr"): "lr learning_rate",
    Setting("sampling.max_tokens", "--max-tokens"): "max_tokens max_new_tokens max_completion_length max_response_length "
    "response_length max_length generate_max_len max_seq_length",
    Setting("batch.rollouts", "--rollouts"): "rollouts num_generations n group_size rollout_n rollout.n num_samples "
    "n_samples_per_prompt num_return_sequences generations samples",
    Setting("batch.problems", "--problems"): "problems batch_size train_batch_size per_device_train_batch_size "
    "rollout_batch_size ppo_mini_batch_size num_prompts",
    Setting("turns", "--turns"): "turns steps max_steps total_steps num_steps train_steps total_training_steps iterations",
    Setting("seed", "--seed"): "seed random_seed data_seed",
    Setting("task.path", "--data"): "dataset dataset_name train_files train_file train_dataset data_path prompt_data",
    Setting("task.fields.question", "--question"): "question prompt_key input_key question_key question_field",
    Setting("task.fields.answer", "--answer"): "answer label_key answer_key answer_field label",
    Setting("rewards", "--reward"): "reward_funcs reward_function reward_fn custom_reward_function reward_func",
    Setting("binding=lora", "--lora"): "lora use_lora use_peft peft peft_config load_in_4bit adapter adapters",
    Setting("keep.trackers", "--wandb"): "report_to log_with logger use_wandb",
    Setting("policies.NAME.model", "--generator"): "model model_name model_path model_name_or_path pretrain base_model",
    Setting("sampling.sampler", "--sampler"): "use_vllm vllm rollout_engine",
    Setting("sampling.temperature"): "temperature temp",
    Setting("policies.NAME.epochs"): "epochs num_epochs num_train_epochs ppo_epochs num_iterations total_epochs max_epochs",
    Setting("policies.NAME.minibatches"): "minibatches num_mini_batches mini_batch_size",
    Setting("policies.NAME.micro_tokens"): "micro_batch_size ppo_micro_batch_size micro_train_batch_size max_token_len_per_gpu "
    "gradient_accumulation gradient_accumulation_steps accumulation_steps grad_accum accumulate_grad_batches",
    Setting("policies.NAME.warmup"): "warmup warmup_steps warmup_ratio lr_warmup_steps lr_warmup_ratio",
    Setting("policies.NAME.schedule"): "lr_scheduler lr_scheduler_type scheduler lr_schedule warmup_style",
    Setting("policies.NAME.weight_decay"): "weight_decay",
    Setting("policies.NAME.grad_clip"): "max_grad_norm grad_norm max_norm gradient_clip clip_grad gradient_clipping",
    Setting("policies.NAME.recompute"): "gradient_checkpointing enable_gradient_checkpointing activation_checkpointing",
    Setting("policies.NAME.dtype"): "dtype torch_dtype bf16 fp16 precision",
    Setting("policies.NAME.lora.rank"): "lora_r lora_rank r rank",
    Setting("policies.NAME.lora.alpha"): "lora_alpha",
    Setting("policies.NAME.lora.targets"): "target_modules lora_target_modules",
    Setting("policies.NAME.offload"): "param_offload optimizer_offload adam_offload cpu_offload",
    Setting("policies.NAME.betas"): "adam_beta1 adam_beta2 adam_betas",
    Setting(f"{OBJECTIVE}.preset"): "loss_type algorithm adv_estimator advantage_estimator objective loss",
    Setting(f"{OBJECTIVE}.kl_coef"): "beta kl kl_coef kl_coeff kl_beta kl_loss_coef init_kl_coef kl_penalty use_kl_loss",
    Setting(f"{OBJECTIVE}.clip_high"): "epsilon epsilon_high clip clip_range cliprange clip_ratio clip_ratio_high eps_clip",
    Setting(f"{OBJECTIVE}.clip_low"): "epsilon_low clip_ratio_low clip_low",
    Setting(f"{OBJECTIVE}.entropy_coef"): "entropy_coef entropy_coeff entropy_bonus entropy_loss_coef",
    Setting(f"{OBJECTIVE}.advantage"): "scale_rewards norm_adv_by_std_in_grpo whiten_rewards",
    Setting(f"{OBJECTIVE}.dynamic_sampling"): "dynamic_sampling filter_groups",
    Setting("eval.every"): "eval_steps eval_every test_freq eval_interval eval_strategy",
    Setting("eval.problems"): "max_eval_samples eval_samples",
    Setting("keep.checkpoint_every"): "save_steps save_freq save_every save_interval",
    Setting("keep.checkpoints"): "save_total_limit max_ckpt_num",
    Setting("keep.rollouts_every"): "log_completions",
    Setting("keep.project"): "project_name wandb_project project",
    Setting("sampling.vllm.gpu_memory_utilization"): "gpu_memory_utilization vllm_gpu_memory_utilization",
    Setting("placement.learners"): "n_gpus_per_node num_processes nnodes",
}  # fmt: skip
FLAGS = {"output_dir": "--out", "output": "--out", "save_path": "--out", "default_local_dir": "--out", "n_gpus": "--gpus"}
FLAGS |= {"num_gpus": "--gpus", "yaml": "--config", "config_file": "--config"}
"""Names of what is no key of the config, only a flag."""
NAMES = {name: setting for setting, names in TABLE.items() for name in names.split()}
INSTEAD = {
    "solve": {"batch.rollouts": "--best-of"},
    "chat": {"batch.rollouts": "--best-of"},
    "verify": {"batch.rollouts": "--checks"},
    "eval": {"batch.rollouts": "--samples"},
    "plan": {"sampling.max_tokens": "--tokens"},
    "compare": {"seed": "--seeds"},
    "claim": {"seed": "--seeds"},
}
"""Flags of a command for what is close to a setting of a run, and is not it."""
RECIPE = "it is an argument: milonga {command} {RECIPE}"
WHOLE = "samples are never truncated"
TRUNCATION = "top_k top_p min_p topk topp"
TRAINED = {"model run folder checkpoint ckpt model_path model_name model_name_or_path": "it is the first argument: {DIR}"}
GIVEN = {"data dataset input file input_file": "it is the second argument, after what was trained: {FILE}"}
RESUME = "resume resume_from resume_path resume_from_checkpoint"
AGAIN = {RESUME: "the same command with the same --out goes on where it stopped"}
JOBS = {"workers num_workers processes num_processes parallel": "did you mean --jobs?"}
SAID: dict[str, dict[str, str]] = {
    "run": {
        RESUME: "did you mean 'milonga resume {DIR}'?",
        "recipe": RECIPE,
        "seeds": "a run has one, --seed; several are compared: milonga compare ARM ARM --seeds {N}",
        "workers num_workers": "did you mean --gpus? Workers of --engine ray are "
        "--set placement.learners=... and --set placement.samplers=...",
        TRUNCATION: f"{WHOLE}; what there is: --set sampling.temperature=...",
    },
    "probe": {"recipe": RECIPE, TRUNCATION: f"{WHOLE}; what there is: --set sampling.temperature=..."},
    "compare": {
        "recipe recipes arm arms": "they are arguments: milonga compare {ARM} ARM",
        TRUNCATION: f"{WHOLE}; what there is: --set sampling.temperature=...",
    }
    | AGAIN
    | JOBS,
    "sweep": {"seed seeds random_seed": "they stand in the study: seeds = [100, 101]"} | AGAIN | JOBS,
    "claim": {"recipe": RECIPE} | AGAIN | JOBS,
    "solve": {TRUNCATION: f"{WHOLE}; what there is: --temperature"} | TRAINED | GIVEN,
    "verify": {TRUNCATION: WHOLE} | TRAINED | GIVEN,
    "eval": {TRUNCATION: WHOLE} | TRAINED,
    "chat": {TRUNCATION: WHOLE} | TRAINED,
    "serve": {TRUNCATION: WHOLE} | TRAINED,
    "export": TRAINED,
}
"""What is to be said of names that are no setting here, by command; the value that was given stands for a word in braces."""
COMMANDS = {
    "run": "train fit learn start",
    "resume": "continue restart",
    "plan": "estimate",
    "eval": "evaluate evaluation test measure",
    "compare": "comparison",
    "sweep": "study grid grid_search tune",
    "list": "ls",
    "show": "inspect status describe log logs",
    "report": "plot plots chart charts",
    "board": "dashboard ui gui web tensorboard watch monitor",
    "doctor": "check env diagnose",
    "solve": "answer infer inference predict generate",
    "verify": "judge grade score",
    "chat": "talk",
    "serve": "server api deploy",
    "export": "convert save merge",
    "new": "init create",
    "--help": "help man usage",
    "--version": "version",
}


def find_setting(name: str) -> Setting | None:
    """Find what a setting that somebody knows by this name is called here; None where it has no name that is known."""
    plain = _normalise(name)
    return NAMES.get(plain) or NAMES.get(plain.rpartition(".")[2])


def find_flag(key: str) -> str:
    """Find the flag of a config key; empty where it has none."""
    return next((setting.flag for setting in TABLE if setting.key == key), "")


def find_command(name: str) -> str | None:
    """Find the command that somebody knows by this name; None where it has no name that is known."""
    return next((command for command, names in COMMANDS.items() if _normalise(name) in names.split()), None)


def suggest_option(command: str, option: str, value: str | None, taken: Collection[str]) -> str | None:
    """Suggest what is meant by an option that a command with these does not take: near in meaning, not in letters."""
    plain, found = _normalise(option), find_setting(option)
    if said := next((said for names, said in SAID.get(command, {}).items() if plain in names.split()), None):
        word = None if value is None else shlex.quote(value)
        return re.sub(r"\{([A-Z]+)\}", lambda what: word or what[1], said.replace("{command}", command))
    own = INSTEAD.get(command, {}).get(found.key, found.flag) if found is not None else ""
    flag = FLAGS.get(plain) or own
    if flag in taken:
        return f"did you mean {flag}?"
    if found is None or ("=" in found.key and "--set" not in taken):
        return None
    which = _explain_name(found.key)
    if "--set" in taken:
        return f"did you mean --set {found.key}{'' if '=' in found.key else '=...'}?{which}"
    if command == "resume":
        return f"edit '{found.key}'{which} in the run's config.toml, then go on with --accept-changes"
    return f"that is '{found.key}'{which} in a run's config, which milonga run sets"


def describe_setting(found: Setting, policy: str = "NAME") -> str:
    """Say how a setting is written here: its key, and its flag."""
    key = found.key.replace("NAME", policy)
    return f"here that is '{key}'{_explain_name(key)}" + (f", or {found.flag}" if found.flag else "")


def _normalise(name: str) -> str:
    return name.strip("-").replace("-", "_").casefold()


def _explain_name(key: str) -> str:
    return " (NAME: a policy, such as generator)" if "NAME" in key else ""
