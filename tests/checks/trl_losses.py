"""TRL's own `GRPOTrainer._compute_loss` and `RLOOTrainer._compute_loss` as functions for `checks.grpo_step`."""

import functools
import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.trainer.utils import add_fused_lm_head

from labkit.grpo.policy import load

QUIET = {"use_cpu": True, "bf16": False, "report_to": [], "per_device_train_batch_size": 8, "num_generations": 4}


@functools.cache
def tiny():
    return load("tiny", "cpu")


def trainer_of(trainer, config, **options):
    """A real trainer, of the tiny policy, that has not trained."""
    args = config(output_dir=tempfile.mkdtemp(), **QUIET, **options)
    data = Dataset.from_dict({"prompt": ["1+1="] * 8})
    made = trainer(load("tiny", "cpu").model, lambda **_: [0.0], args, data, processing_class=tiny().tokenizer)
    made.current_gradient_accumulation_steps = 1
    return made


def grpo(**options):
    trainer = trainer_of(GRPOTrainer, GRPOConfig, **options)

    def loss(model, batch):
        add_fused_lm_head(model, temperature=trainer.temperature, outputs=("log_probs", "entropy"))
        named = {"old_per_token_logps": batch["old_logps"], "ref_per_token_logps": batch["ref_logps"]}
        return trainer._compute_loss(model, batch | named)

    return loss


def rloo(**options):
    trainer = trainer_of(RLOOTrainer, RLOOConfig, **options)

    def loss(model, batch):
        add_fused_lm_head(model, temperature=trainer.temperature, outputs=("log_probs", "entropy"))
        of_rows = (batch["old_logps"] * batch["completion_mask"]).sum(1)
        return trainer._compute_loss(model, batch | {"old_logps": of_rows})

    return loss


SEQUENCE = {"importance_sampling_level": "sequence"}
# The trainer's options, what is said to the check, and its answer: passed, variant, a part of it.
TABLE = [
    ({}, {}, True, "DAPO", "clip"),
    ({"loss_type": "grpo"}, {}, True, "GRPO", "sequences"),
    ({"loss_type": "bnpo"}, {}, True, "BNPO", "tokens"),
    ({"loss_type": "dr_grpo"}, {}, True, "Dr. GRPO", "constant"),
    ({"loss_type": "luspo"} | SEQUENCE, {}, True, "LUSPO", "sequence ratio (GSPO)"),
    ({"loss_type": "cispo", "epsilon_high": 5.0}, {"clip": (0.2, 5.0)}, True, "CISPO", "capped at epsilon_high"),
    ({"loss_type": "cispo", "epsilon_high": 2.0}, {}, True, "REINFORCE", "truncated at 2"),
    ({"loss_type": "cispo"}, {}, True, "REINFORCE", "none: log-probs"),
    ({"loss_type": "sapo"}, {}, True, "SAPO", "SAPO's gate"),
    ({"loss_type": "vespo"}, {}, True, "VESPO", "VESPO's weight"),
    ({"loss_type": "grpo"} | SEQUENCE, {}, True, "GSPO", "sequences"),
    (SEQUENCE, {}, True, "GSPO", "tokens"),
    ({"epsilon_high": 0.28}, {"clip": (0.2, 0.28)}, True, "DAPO", "clip"),
    ({"epsilon_high": 0.28}, {}, True, "DAPO", "clip"),
    ({"delta": 3.0}, {}, True, "DAPO", "dual clip at 3"),
    ({"delta": 2.0}, {}, True, "DAPO", "dual clip at 2"),
    ({"beta": 0.04}, {"beta": 0.04}, True, "DAPO", "0.04 × k3 × ratio"),
    ({"beta": 0.04, "use_bias_correction_kl": False}, {"beta": 0.04}, True, "DAPO", "0.04 × k3"),
    ({"beta": 0.04, "loss_type": "grpo"} | SEQUENCE, {"beta": 0.04}, True, "GSPO", "k3 × sequence ratio"),
    ({"beta": 0.04, "loss_type": "sapo"}, {"beta": 0.04}, True, "SAPO", "0.04 × k3 × ratio"),
    ({"beta": 0.04}, {}, True, "DAPO", "0.04 × k3 × ratio"),
    ({}, {"beta": 0.04}, False, "DAPO", "none"),
    ({"entropy_coef": 0.01}, {}, True, "DAPO", "clip"),
    ({"temperature": 0.7}, {"temperature": 0.7}, True, "DAPO", "clip"),
    ({"temperature": 0.7}, {}, None, "DAPO", "clip"),
    ({"top_entropy_quantile": 0.5}, {}, None, "", "tokens of other rows"),
    ({"off_policy_mask_threshold": 0.1}, {}, None, "", "without row 4"),
]
