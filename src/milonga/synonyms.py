"""What settings are called elsewhere (TRL, verl, OpenRLHF, transformers), and what they are called here.

Invariant: nothing is taken by another name; a name that is known from elsewhere only makes a better message.
"""

from __future__ import annotations

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
    "rollout_batch_size gradient_accumulation_steps ppo_mini_batch_size num_prompts",
    Setting("turns", "--turns"): "turns steps max_steps total_steps num_steps train_steps total_training_steps iterations",
    Setting("seed", "--seed"): "random_seed data_seed",
    Setting("task.path", "--data"): "dataset dataset_name train_files train_file train_dataset data_path prompt_data",
    Setting("task.fields.question", "--question"): "question prompt_key input_key question_key question_field",
    Setting("task.fields.answer", "--answer"): "answer label_key answer_key answer_field label",
    Setting("rewards", "--reward"): "reward_funcs reward_function reward_fn custom_reward_function reward_func",
    Setting("binding=lora", "--lora"): "use_lora use_peft peft peft_config load_in_4bit",
    Setting("keep.trackers", "--wandb"): "report_to log_with logger use_wandb",
    Setting("policies.NAME.model", "--generator"): "model model_name model_path model_name_or_path pretrain base_model",
    Setting("sampling.sampler", "--sampler"): "use_vllm vllm rollout_engine",
    Setting("sampling.temperature"): "temperature temp",
    Setting("policies.NAME.epochs"): "epochs num_epochs num_train_epochs ppo_epochs num_iterations total_epochs max_epochs",
    Setting("policies.NAME.minibatches"): "minibatches num_mini_batches mini_batch_size",
    Setting("policies.NAME.micro_tokens"): "micro_batch_size ppo_micro_batch_size micro_train_batch_size max_token_len_per_gpu",
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


def find_setting(name: str) -> Setting | None:
    """Find what a setting that somebody knows by this name is called here; None where it has no name that is known."""
    plain = name.strip("-").replace("-", "_").casefold()
    return NAMES.get(plain) or NAMES.get(plain.rpartition(".")[2])


def find_flag(key: str) -> str:
    """Find the flag of a config key; empty where it has none."""
    return next((setting.flag for setting in TABLE if setting.key == key), "")


def describe_setting(found: Setting, policy: str = "NAME") -> str:
    """Say how a setting is written here: its key, and its flag."""
    key = found.key.replace("NAME", policy)
    which = " (NAME: a policy, such as generator)" if "NAME" in key else ""
    return f"here that is '{key}'{which}" + (f", or {found.flag}" if found.flag else "")
