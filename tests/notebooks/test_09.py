"""Lesson 09: its models beside the check, what its exercises refuse, and what it says of TRL and of the assertions."""

import json
import re
import sys
import tempfile

import pytest
import torch
from cut import FOLDER, bug_cells, installed, path_of
from transformers import AutoModelForCausalLM

from labkit import Outcome, sandbox, task
from labkit.checks import token_ids
from labkit.policy import CHECKPOINTS, load
from labkit.train import train

sys.path.append(str(FOLDER))  # as `labkit.warm()` does
from props import lesson_09 as props

TINY = str(CHECKPOINTS / "tiny")
CELLS = json.loads(path_of("09").read_text())["cells"]


def code_of(tag, text=""):
    (source,) = [s for c in CELLS if tag in c["metadata"].get("tags", []) and text in (s := "".join(c["source"]))]
    return source


@pytest.fixture(scope="module")
def load_models():
    return bug_cells("09")["load_models"]


@pytest.fixture(scope="module")
def mended():
    space = {"tempfile": tempfile} | {k: v for k, v in vars(sys.modules["transformers"]).items() if k[:4] == "Auto"}
    exec("from transformers import AutoModelForCausalLM, AutoTokenizer\n" + code_of("fix"), space)
    return space["mended"]


def test_the_check_names_the_reference_of_the_bug_and_passes_both_models_of_the_fix(load_models, mended):
    tokenizer, policy, reference = load_models(TINY)
    assert token_ids(tokenizer, policy)
    report = token_ids(tokenizer, reference)
    assert report.passed is False and (report.seen["table"], report.seen["index"]) == ("input embedding", 16)
    tokenizer, policy, reference = mended(TINY)
    assert token_ids(tokenizer, policy) and token_ids(tokenizer, reference)
    for one, other in zip(policy.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_measures_its_kl_against_the_reference_it_is_given():
    kl = []
    for moved in (0.0, 0.5):
        reference = load("tiny", "cpu").model.requires_grad_(False)
        reference.transformer.ln_f.weight.data += moved
        kl.append(next(train("tiny", device="cpu", rounds=1, mu=1, prompts=2, reference=reference)).kl)
    assert kl[0] < 1e-6 < 1e-4 < kl[1]


EACH = "for r, row in enumerate(ids.tolist()) for c, i in enumerate(row)"
WRONG = {
    "no sign": f"bad = [(r, c) {EACH} if i >= rows]",
    "one too many": f"bad = [(r, c) {EACH} if not 0 <= i <= rows]",
    "the last": f"bad = [(r, c) {EACH} if not 0 <= i < rows][::-1]",
    "by column": f"bad = sorted([(r, c) {EACH} if not 0 <= i < rows], key=lambda place: place[::-1])",
    "no positions": f"bad = [(r, c) {EACH} if not 0 <= i < rows]",
    "config": f"rows = model.config.vocab_size\n    bad = [(r, c) {EACH} if not 0 <= i < rows]",
}


@pytest.mark.parametrize("seed", range(3))
def test_exercise_a_takes_the_solution_and_refuses_common_mistakes(load_models, seed):
    space = {}
    exec(code_of("solution", "found_first"), space)
    cases = props.batches_to_judge(load_models, "tiny", seed)
    assert all(space["found_first"](ids, model) == right for _, ids, model, right in cases)
    for name, line in WRONG.items():
        body = f"def wrong(ids, model):\n    rows = model.get_input_embeddings().num_embeddings\n    {line}\n"
        exec(body + "    return ('tokens', *bad[0]) if bad else None", space)
        assert any(space["wrong"](ids, model) != right for _, ids, model, right in cases), name


# The texts -------------------------------------------------------------------------------------------------------


def test_the_assertions_of_its_table_are_known_to_the_sandbox():
    """As an index assertion, the last three rows of the printed kind apart: cross-entropy's is another kind."""
    prose = "".join("".join(c["source"]) for c in CELLS if c["cell_type"] == "markdown")
    rows = re.findall(r"^\| .*?(`[^`]*(?:<|>=)[^`]*`)", prose, re.MULTILINE)
    assert len(rows) == 6
    kinds = []
    for row in rows:
        line = f"Indexing.cu:1: kernel: block: [0,0,0], thread: [0,0,0] Assertion {row} failed."
        kinds.append(sandbox.is_index_assert(Outcome("exit:1", exit_code=1, stderr=line)))
    assert kinds == [True, True, True, True, False, True]


# TRL -------------------------------------------------------------------------------------------------------------


def test_trl_refuses_several_gpus_in_one_process_and_asks_no_reference_by_default():
    source = installed("trl", "trainer/grpo_trainer.py")
    assert re.search(r"if args\.n_gpu > 1:\n\s+raise ValueError\(\n.*does not support `nn\.DataParallel`", source)
    assert "create_model_from_path(get_config_model_id(self.model.config)" in source
    assert re.search(r"beta: float = field\(\n\s+default=0\.0", installed("trl", "trainer/grpo_config.py"))


def one_step(policy, tokenizer, beta, folder):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def right(completions, prompts, **_):
        return [task.of_prompt(p).reward(p, c) for p, c in zip(prompts, completions, strict=True)]

    settings = GRPOConfig(
        output_dir=str(folder), beta=beta, use_cpu=True, per_device_train_batch_size=16, num_generations=8, max_steps=1,
        max_completion_length=4, report_to="none", save_strategy="no", bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": prompt} for prompt in ("47+52=", "02+03=")])
    trainer = GRPOTrainer(
        model=policy, reward_funcs=right, args=settings, train_dataset=data, processing_class=tokenizer
    )
    trainer.train()
    return trainer.ref_model


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # trl's own
@pytest.mark.timeout(170)
def test_trl_takes_the_reference_from_the_folder_and_dies_where_that_was_not_resized(load_models, tmp_path):
    pytest.importorskip("trl")
    tokenizer, policy, _ = load_models(TINY)
    assert one_step(policy, tokenizer, 0.0, tmp_path) is None
    tokenizer, policy, _ = load_models(TINY)
    with pytest.raises(IndexError, match="index out of range in self"):
        one_step(policy, tokenizer, 0.04, tmp_path)
    policy.save_pretrained(tmp_path / "resized")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "resized")
    assert one_step(saved, tokenizer, 0.04, tmp_path).get_input_embeddings().num_embeddings == 17
