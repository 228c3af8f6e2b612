"""What lessons say of TRL, transformers, accelerate and torch, read off their installed sources.

Where a pin is raised, this file says which lesson has to be read again. What is run, not read: test_NN.py.
"""

import importlib.util
import re
from pathlib import Path

import pytest

TRAINER, UTILS, CONFIG = "trl/trainer/grpo_trainer.py", "trl/trainer/utils.py", "trl/trainer/grpo_config.py"
TRANSFORMERS = "transformers/models"

# (lesson, file, what stands in it: comments apart, white space as one blank, "…" for anything in between)
STANDS = [
    ("02", TRAINER, 'if self.beta != 0.0: self._metrics[mode]["kl"].append('),
    ("03", TRAINER, "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1"),
    ("03", TRAINER, "per_token_kl = per_token_kl * coef_1"),
    ("04", TRAINER, '"frac_reward_zero_std"'),
    ("04", TRAINER, "mini_repeat_count=self.num_generations"),
    ("05", "transformers/trainer.py", "def evaluation_loop( … all_preds.add(logits) … self.args.batch_eval_metrics"),
    (
        "05",
        "transformers/trainer.py",
        "all_preds.add(logits) … args.eval_accumulation_steps is not None … all_preds.to_cpu_and_numpy()",
    ),
    ("05", "transformers/trainer.py", "logits = self.preprocess_logits_for_metrics(logits, labels)"),
    *(
        ("06", f"{TRANSFORMERS}/{name}/modeling_{name}.py", text)
        for name in ("llama", "qwen2", "qwen3")
        for text in ("return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)", "return q_embed, k_embed")
    ),
    ("06", f"{TRANSFORMERS}/olmo2/modeling_olmo2.py", "return q_embed.to(q_type), k_embed.to(k_type)"),
    ("06", f"{TRANSFORMERS}/cohere/modeling_cohere.py", "return q_embed.to(dtype=dtype), k_embed.to(dtype=dtype)"),
    ("06", "transformers/integrations/flash_attention.py", "target_dtype = get_target_dtype(query, module)"),
    (
        "07",
        "torch/distributed/elastic/multiprocessing/subprocess_handler/subprocess_handler.py",
        "env_vars = os.environ.copy()",
    ),
    ("07", "accelerate/utils/launch.py", "current_env = os.environ.copy() … current_env = os.environ.copy()"),
    ("08", TRAINER, '"do_sample": True'),
    ("08", UTILS, "logits = logits / temperature"),
    ("09", TRAINER, "if args.n_gpu > 1: raise ValueError( … does not support `nn.DataParallel`"),
    ("09", TRAINER, "create_model_from_path(get_config_model_id(self.model.config)"),
    ("10", "transformers/trainer.py", "average_tokens_across_devices"),
    ("10", TRAINER, "set_seed(args.seed, device_specific=True)"),
    ("10", TRAINER, "return RepeatSampler( data_source=dataset, … seed=self.args.seed, )"),
    ("10", "accelerate/utils/random.py", "seed += AcceleratorState().process_index"),
    ("10", "accelerate/utils/launch.py", "mpirun_hostfile is not None"),
    ("11", TRAINER, "add_fused_lm_head( … labels=labels, fused_lm_head=True)"),
    ("11", UTILS, "def add_fused_lm_head … without materializing the `(batch, seq_len, vocab)` logits"),
    ("12", TRAINER, "unscorable_mask = torch.isnan(rewards_per_func).all(dim=1)"),
    ("12", TRAINER, ".nansum(dim=1)"),
    ("12", TRAINER, "advantages = torch.nan_to_num(advantages, nan=0.0)"),
    ("12", TRAINER, "num_items_in_batch = self.accelerator.gather(loss_mask.sum()).sum()"),
    ("12", TRAINER, 'if self.loss_type in ["grpo", "sapo"]: loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1)'),
    ("12", CONFIG, "beta: float = field( default=0.0"),
    ("12", CONFIG, "num_iterations: int = field( default=1"),
    ("12", CONFIG, 'multi_objective_aggregation: str = field( default="sum_then_normalize"'),
    ("13", TRAINER, "self.reward_funcs = reward_funcs"),
    ("15", CONFIG, 'vllm_mode: str = field( default="colocate"'),
    ("15", CONFIG, "vllm_gpu_memory_utilization: float"),
    ("15", "transformers/trainer.py", "model = nn.DataParallel(model)"),
    ("16", TRAINER, 'padding_side="left"'),
    ("16", TRAINER, "sampling/sampling_logp_difference/mean"),
    ("16", TRAINER, "def _get_per_token_logps_and_entropies( self, model, input_ids, attention_mask, logits_to_keep,"),
    ("16", TRAINER, "return logps, entropies, aux_loss"),
    ("17", CONFIG, "learning_rate: float = field( default=1e-6"),
    ("17", CONFIG, "top_k: int = field( default=0"),
    ("17", CONFIG, "max_completion_length: int | None = field( default=512"),
    ("17", CONFIG, "mask_truncated_completions: bool = field( default=False"),
    ("17", CONFIG, "use_bias_correction_kl: bool = field( default=True"),
    ("17", CONFIG, "log_completions: bool = field( default=False"),
    ("17", CONFIG, 'loss_type: str = field( default="dapo"'),
    ("17", CONFIG, 'scale_rewards: str = field( default="group"'),
    ("17", TRAINER, "return await asyncio.gather(*coros)"),
    ("17", TRAINER, '**self._logs["rewards"],'),  # a column for each reward function, of its name
    ("17", TRAINER, 'f"completions_{self.state.global_step:05d}.parquet"'),
]


def folder_of(package):
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


def source_of(file):
    package, _, inside = file.partition("/")
    return " ".join((folder_of(package) / inside).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("lesson", "file", "text"), STANDS)
def test_what_a_lesson_relies_on_stands_there(lesson, file, text):
    assert re.search(".*?".join(map(re.escape, text.split(" … "))), source_of(file))


def test_what_lessons_say_is_missing_is_missing():
    assert "first_token" not in source_of(TRAINER)  # 04
    assert source_of(TRAINER).count("self.top_p") == 3 and "top_p" not in source_of(UTILS)  # 08: for the two samplers
    assert not re.search(r"(?<!image_)position_ids", source_of(TRAINER))  # 16


@pytest.mark.parametrize("package", ["transformers", "trl", "accelerate"])
def test_no_file_of_the_trainers_sets_the_allocators_variables(package):
    """Lesson 07."""
    texts = {file: file.read_bytes() for file in folder_of(package).rglob("*.py")}
    assert not [file for file, text in texts.items() if b"ALLOC_CONF" in text or b"expandable_segments" in text]


def test_the_defaults_of_trl_and_transformers_are_those_that_lessons_name():
    from transformers import TrainingArguments

    fields = pytest.importorskip("trl").GRPOConfig.__dataclass_fields__
    defaults = {"beta": 0.0, "use_bias_correction_kl": True, "max_grad_norm": 1.0}  # 02, 03, 09, 14
    defaults |= {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "num_iterations": 1}  # 08
    defaults |= {
        "loss_type": "dapo",
        "gradient_checkpointing": True,
        "epsilon": 0.2,
        "epsilon_high": None,
    }  # 07, 10, 11, 14
    assert {name: fields[name].default for name in defaults} == defaults
    fields = TrainingArguments.__dataclass_fields__
    defaults = {"max_grad_norm": 1.0, "logging_nan_inf_filter": True, "average_tokens_across_devices": True}  # 01, 10
    assert {name: fields[name].default for name in defaults} == defaults
    assert {"per_device_train_batch_size", "gradient_accumulation_steps"} <= set(fields)  # 11
