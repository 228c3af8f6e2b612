"""Lesson 11's exercises refuse the near misses, and what it says of other people's code is still so."""

import dataclasses
import inspect
import sys

import pytest
import torch
from cut import FOLDER, bug_cells, installed

sys.path.append(str(FOLDER))  # as `labkit.warm()` does
from props import lesson_11 as props


def in_one_piece(head, hidden, answers):
    return head(hidden).log_softmax(-1).gather(-1, answers[..., None]).squeeze(-1)


def chunks_that_stay(head, hidden, answers):
    pairs = zip(hidden.split(64, 1), answers.split(64, 1), strict=True)
    return torch.cat([in_one_piece(head, *pair) for pair in pairs], 1)


def without_gradient(head, hidden, answers):
    return in_one_piece(head, hidden.detach(), answers).requires_grad_()


@pytest.mark.parametrize(
    "wrong, words",
    [
        (in_one_piece, "Too much is held"),
        (chunks_that_stay, "Too much is held"),
        (without_gradient, "not those of the formula"),
        (lambda head, hidden, answers: in_one_piece(head, hidden, answers).mean(1), "one log-prob for each token"),
    ],
)
def test_log_probs_that_hold_the_logits_or_lose_the_gradient_are_refused(wrong, words):
    report = props.holds_few_logits(wrong)
    assert not report and words in report.hint, report


def test_two_refusals_of_one_size_are_two_tensors():
    row = {"rows": 32, "prompt": 64, "new": 192, "tried to allocate": "1.15 GiB"}
    other = {"rows": 8, "prompt": 512, "new": 256, "tried to allocate": "1.15 GiB"}
    assert (props.tensor_of(row), props.tensor_of(other)) == ("answer logits", "all logits")


def test_a_split_keeps_every_row_once():
    rows = props.rows_without_data(8, 3, 2)
    parts = rows.split(4)
    assert [len(part.ids) for part in parts] == [2, 2, 2, 2] and all(part.new == 2 for part in parts)
    assert torch.equal(torch.cat([part.advantages for part in parts]), rows.advantages)


def test_the_lesson_s_log_probs_are_the_policy_s(tiny):
    from labkit.policy import token_logprobs

    loss = bug_cells("11")["grpo_loss"]
    rows = props.rows_of(tiny, seed=0)
    logp, _ = token_logprobs(tiny.model, rows.ids, rows.attention_mask, rows.new)
    expected = -((logp - rows.old_logp).exp() * rows.advantages * rows.counted).sum()  # the ratio is 1
    torch.testing.assert_close(loss(tiny.model, rows), expected, rtol=1e-4, atol=1e-5)


def test_what_the_lesson_says_about_the_options_of_transformers_and_trl():
    from transformers import TrainingArguments

    fields = {f.name: f for f in dataclasses.fields(TrainingArguments)}
    assert {"per_device_train_batch_size", "gradient_accumulation_steps"} <= set(fields)
    trl = pytest.importorskip("trl")
    fields = {f.name: f for f in dataclasses.fields(trl.GRPOConfig)}
    assert fields["gradient_checkpointing"].default is True
    trainer = installed("trl", "trainer/grpo_trainer.py")
    assert "add_fused_lm_head(" in trainer and "labels=labels, fused_lm_head=True)" in trainer
    head = inspect.getsource(pytest.importorskip("trl.trainer.utils").add_fused_lm_head)
    assert "without materializing the `(batch, seq_len, vocab)` logits" in head
