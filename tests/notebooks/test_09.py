"""Lesson 09: its models beside the check, what its exercises refuse, and what it says of TRL and of the assertions."""

import json
import re
import sys

import pytest
import torch
from cut import FOLDER, bug_cells, installed, path_of
from transformers import AutoModelForCausalLM, AutoTokenizer

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
def fix(tmp_path_factory):
    """(the folder that the fix prepared, its `load_prepared`)."""
    space = {"AutoModelForCausalLM": AutoModelForCausalLM, "AutoTokenizer": AutoTokenizer}
    exec(code_of("fix"), space)
    folder = str(tmp_path_factory.mktemp("prepared"))
    space["prepare"](TINY, folder)
    return folder, space["load_prepared"]


def test_the_check_names_the_reference_of_the_bug_and_passes_both_models_of_the_fix(load_models, fix):
    tokenizer, policy, reference = load_models(TINY)
    assert token_ids(tokenizer, policy)
    report = token_ids(tokenizer, reference)
    assert report.passed is False and (report.seen["table"], report.seen["index"]) == ("input embedding", 16)
    folder, load_prepared = fix
    tokenizer, policy, reference = load_prepared(folder)
    assert (tokenizer.pad_token, tokenizer.padding_side, len(tokenizer)) == ("[PAD]", "left", 17)
    assert token_ids(tokenizer, policy) and token_ids(tokenizer, reference)
    for one, other in zip(policy.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)


def test_two_resizes_give_two_rows_where_the_row_is_drawn():
    """By default a new row is the mean of the old ones, so that *both resized* is as good as the fix."""
    for mean, alike in ((True, True), (False, False)):
        rows = []
        for _ in range(2):
            model = load("tiny", "cpu").model
            model.resize_token_embeddings(17, mean_resizing=mean)
            rows.append(model.get_input_embeddings().weight[16])
        assert torch.allclose(*rows, atol=1e-4) is alike


def test_a_resize_to_the_tokenizer_cuts_spare_rows_off():
    model = load("tiny", "cpu").model
    model.resize_token_embeddings(24)
    model.resize_token_embeddings(17)
    assert model.get_input_embeddings().num_embeddings == 17


def test_a_run_measures_its_kl_against_the_reference_it_is_given():
    kl = []
    for moved in (0.0, 0.5):
        reference = load("tiny", "cpu").model.requires_grad_(False)
        reference.transformer.ln_f.weight.data += moved
        kl.append(next(train("tiny", device="cpu", rounds=1, mu=1, prompts=2, reference=reference)).kl)
    assert kl[0] < 1e-6 < 1e-4 < kl[1]


EACH = [
    "    for name, model in models.items():",
    "        rows, places = model.get_input_embeddings().num_embeddings, model.transformer.wpe.num_embeddings",
]
WRONG = {
    "no sign": ("ids.max() >= rows", "ids.shape[1] > places"),
    "one too many": ("ids.min() < 0 or ids.max() > rows", "ids.shape[1] > places"),
    "config": ("ids.min() < 0 or ids.max() >= model.config.vocab_size", "ids.shape[1] > places"),
    "no positions": ("ids.min() < 0 or ids.max() >= rows", "False"),
    "positions too early": ("ids.min() < 0 or ids.max() >= rows", "ids.shape[1] >= places"),
    "the first row alone": ("ids[0].min() < 0 or ids[0].max() >= rows", "ids.shape[1] > places"),
    "one table a model": ("ids.min() < 0 or ids.max() >= rows", "ids.shape[1] > places and ids.max() < rows"),
}


@pytest.mark.parametrize("seed", range(3))
def test_exercise_a_takes_the_solution_and_refuses_common_mistakes(load_models, seed):
    space = {}
    exec(code_of("solution", "found_missing"), space)
    cases = props.batches_to_judge(load_models, "tiny", seed)
    assert all(space["found_missing"](models, ids) == right for _, models, ids, right in cases)
    for name, (tokens, positions) in WRONG.items():
        lines = [f"        found += [(name, 'tokens')] if {tokens} else []"]
        lines += [f"        found += [(name, 'positions')] if {positions} else []"]
        exec("\n".join(["def wrong(models, ids):", "    found = []", *EACH, *lines, "    return found"]), space)
        missed = [sorted(space["wrong"](models, ids)) != sorted(right) for _, models, ids, right in cases]
        assert any(missed) or (name == "the first row alone" and seed != 0), name


def test_each_death_of_exercise_b_can_be_told_from_its_row(load_models):
    """By the sizes: what was asked for lies beyond the table that is named, and beyond no other."""
    for row in props.five_deaths(load_models, "tiny", "cpu"):
        beyond = {name for name in ("policy", "reference", "reward model") if row["largest id"] >= rows_of(row, name)}
        beyond |= {"positions"} if row["longest row"] > row["positions, each"] else set()
        beyond |= {"label as id"} if row["smallest id"] < 0 else set()
        if not row["what it said"].startswith("IndexError: index out of range"):
            beyond |= {"gathered label"}
        assert (beyond or {"none of these tables"}) == {props.DEATHS[row["run"]]}


def rows_of(row, name):
    return row["rows: policy" if name == "policy" else name]


# The texts -------------------------------------------------------------------------------------------------------


def test_the_assertions_of_its_table_are_known_to_the_sandbox():
    """As an index assertion; cross-entropy's, the last, is another kind."""
    prose = "".join("".join(c["source"]) for c in CELLS if c["cell_type"] == "markdown")
    rows = re.findall(r"^\| .*?(`[^`]*(?:<|>=)[^`]*`)", prose, re.MULTILINE)
    assert len(rows) == 5
    kinds = []
    for row in rows:
        line = f"Indexing.cu:1: kernel: block: [0,0,0], thread: [0,0,0] Assertion {row} failed."
        kinds.append(sandbox.is_index_assert(Outcome("exit:1", exit_code=1, stderr=line)))
    assert kinds == [True, True, True, True, False]


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
def test_trl_takes_the_reference_from_the_folder_and_dies_where_that_was_not_resized(load_models, fix, tmp_path):
    pytest.importorskip("trl")
    tokenizer, policy, _ = load_models(TINY)
    assert one_step(policy, tokenizer, 0.0, tmp_path) is None
    tokenizer, policy, _ = load_models(TINY)
    with pytest.raises(IndexError, match="index out of range in self"):
        one_step(policy, tokenizer, 0.04, tmp_path)
    folder, load_prepared = fix
    tokenizer, policy, _ = load_prepared(folder)
    assert one_step(policy, tokenizer, 0.04, tmp_path).get_input_embeddings().num_embeddings == 17
