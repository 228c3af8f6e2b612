"""Lesson 09: its tables, its second exercise, and what it says of TRL and of the assertions."""

import importlib
import re

import pytest
import torch
from cut import Page, prose
from props import lesson_09 as props

from labkit import Outcome, sandbox
from labkit.grpo import task
from labkit.grpo.policy import CHECKPOINTS, load

TINY = str(CHECKPOINTS / "tiny")


@pytest.fixture(scope="module")
def page():
    return Page("09")


@pytest.fixture(scope="module")
def load_models(page):
    return page["load_models"]


def test_two_resizes_give_two_rows_where_the_row_is_drawn_and_a_resize_down_cuts_spare_rows_off():
    """By default a new row is the mean of the old ones, so that *both resized* is as good as the fix."""
    for mean, alike in ((True, True), (False, False)):
        models = [load("tiny", "cpu").model for _ in range(2)]
        for model in models:
            model.resize_token_embeddings(17, mean_resizing=mean)
        rows = [model.get_input_embeddings().weight[16] for model in models]
        assert torch.allclose(*rows, atol=1e-4) is alike
    model.resize_token_embeddings(24)
    model.resize_token_embeddings(17)
    assert model.get_input_embeddings().num_embeddings == 17


def test_each_death_of_exercise_b_can_be_told_from_its_row(load_models):
    """By the sizes: what was asked for lies beyond the table that is named, and beyond no other."""
    for row in props.five_deaths(load_models, "tiny", "cpu"):
        rows = {"policy": row["rows: policy"], "reference": row["reference"], "reward model": row["reward model"]}
        beyond = {name for name in rows if row["largest id"] >= rows[name]}
        beyond |= {"positions"} if row["longest row"] > row["positions, each"] else set()
        beyond |= {"label as id"} if row["smallest id"] < 0 else set()
        if not row["what it said"].startswith("IndexError: index out of range"):
            beyond |= {"gathered label"}
        assert (beyond or {"none of these tables"}) == {props.DEATHS[row["run"]]}


def test_in_the_first_round_of_the_run_id_16_is_padding_alone(page, load_models, monkeypatch):
    """In front of prompts and behind answers; nobody sampled it, and no mask counts it."""
    met = {}

    def score(policy, reference, out, *rest, **named):
        ids, mask = out.ids == 16, out.attention_mask.bool()
        length = out.tokens.shape[1]
        met.update(before=ids[:, :-length].sum().item(), counted=(ids & mask).sum().item())
        drawn, counts = ids[:, -length:], out.mask.bool()
        met.update(behind=(drawn & ~counts).sum().item(), sampled=(drawn & counts).sum().item())
        return scored(policy, reference, out, *rest, **named)

    trainer = importlib.import_module("labkit.grpo.train")
    scored = trainer.score
    monkeypatch.setattr(trainer, "score", score)
    with pytest.raises(IndexError):
        list(props.learn(load_models, 0, device="cpu"))
    assert met["before"] > 0 < met["behind"] and met["counted"] == met["sampled"] == 0, met


def test_the_assertions_of_its_table_are_known_to_the_sandbox():
    """As an index assertion; cross-entropy's, the last, is another kind."""
    kinds = []
    for row in re.findall(r"^\| .*?(`[^`]*(?:<|>=)[^`]*`)", prose("09"), re.MULTILINE):
        line = f"Indexing.cu:1: kernel: block: [0,0,0], thread: [0,0,0] Assertion {row} failed."
        kinds.append(sandbox.is_index_assert(Outcome("exit:1", exit_code=1, stderr=line)))
    assert kinds == [True, True, True, True, False]


def reference_after_one_step(policy, tokenizer, folder, beta=0.04):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def right(completions, prompts, **_):
        return [task.of_prompt(p).reward(p, c) for p, c in zip(prompts, completions, strict=True)]

    settings = GRPOConfig(
        output_dir=str(folder), beta=beta, use_cpu=True, per_device_train_batch_size=16, num_generations=8, max_steps=1,
        max_completion_length=4, report_to="none", save_strategy="no", bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": prompt} for prompt in ("47+52=", "02+03=")])
    trainer = GRPOTrainer(policy, right, settings, data, processing_class=tokenizer)
    trainer.train()
    return trainer.ref_model


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")  # trl's own
@pytest.mark.timeout(170)
def test_trl_takes_the_reference_from_the_folder_and_dies_where_that_was_not_resized(page, load_models, tmp_path):
    pytest.importorskip("trl")
    tokenizer, policy, _ = load_models(TINY)
    with pytest.raises(IndexError, match="index out of range in self"):
        reference_after_one_step(policy, tokenizer, tmp_path)
    assert reference_after_one_step(*load_models(TINY)[1::-1], tmp_path, beta=0.0) is None
    page["prepare"](TINY, str(tmp_path / "prepared"))
    tokenizer, policy, _ = page["load_prepared"](str(tmp_path / "prepared"))
    assert reference_after_one_step(policy, tokenizer, tmp_path).get_input_embeddings().num_embeddings == 17
