"""What `checks.grpo_step` says of the house's own losses: lesson 00's loop, `labkit.grpo`'s parts, the bugs of pages.

A bug that is none of the loss (a sampler, an allocator, a reward) is not here. The cells are the pages' own; where a
page has no such cell any more, its test is skipped.
"""

from types import SimpleNamespace

import pytest
import step_losses as own
import torch
from cut import Page, cells, path_of, tags, used

from labkit import grads, kl, loss
from labkit.checks import grpo_step
from labkit.grpo.advantage import group_advantage
from labkit.grpo.policy import token_logprobs


def bug_of(number, *names):
    """Names of the page's cells that have the tag `bug`, as those cells define them."""
    page = Page(number)
    tagged = {at for at, cell in enumerate(cells(path_of(number))) if "bug" in tags(cell)}
    for index, (cell, _, node) in enumerate(page.rows):
        if cell in tagged:
            page.define(used(node), index)
            page.run(index)
    if not all(name in page.space for name in names):
        pytest.skip(f"the bug cells of page {number} define no {', '.join(names)}")
    return [page.space[name] for name in names]


def unpadded(batch):
    """Each row's own tokens [1, L], and how many of them are the completion's."""
    for at, mask in enumerate(batch["attention_mask"].bool()):
        yield batch["input_ids"][at][mask][None], int(batch["completion_mask"][at].sum())


def row_by_row(log_probs, model, batch):
    """For a page whose prompts are all equally long, and which therefore pads none."""
    width = batch["completion_ids"].shape[1]
    rows = [log_probs(model, ids, length)[0] for ids, length in unpadded(batch)]
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])


def test_lesson_00s_loop_is_dapo_of_one_batch_with_k3():
    page = Page("00")
    log_probs, loss_of = page["log_probs"], page["loss_of"]

    def lesson(model, batch):
        logp = row_by_row(log_probs, model, batch)
        gain = group_advantage(batch["rewards"], 4)
        given = batch["old_logps"], batch["ref_logps"], gain, batch["completion_mask"]
        return loss_of(logp, *given, beta=0.04)

    report = grpo_step(lesson, expect="DAPO", beta=0.04)
    assert report and report.parts["kl"] == "0.04 × k3" and report.parts["divisor"] == "tokens", report
    assert report.parts["advantage"] == "group, divided by its deviation"


def test_the_parts_of_labkit_grpo_are_dapo_with_k2_in_one_batch_and_in_two():
    def step(model, optimizer, batch):
        total = float(batch["completion_mask"].sum())
        optimizer.zero_grad()
        for part in own.split(batch, 2):
            mask = part["completion_mask"]
            given = part["input_ids"], part["attention_mask"], mask.shape[1]
            logp, _ = token_logprobs(model, *given, temperature=0.7)
            policy = loss.grpo(logp, part["old_logps"], part["advantages"], log_ratio_max=5.0)
            per_token = policy.loss + 0.04 * kl.k2(logp, part["ref_logps"])
            loss.token_mean(per_token, mask, total).backward()
        grads.guard()(model, optimizer)

    report = grpo_step(update=step, expect="DAPO", beta=0.04, temperature=0.7)
    assert report and report.parts["kl"] == "0.04 × k2" and not report.caution, report


def test_the_gspo_of_labkit_is_gspo_at_the_papers_range():
    def gspo(model, batch):
        mask = batch["completion_mask"]
        policy = loss.gspo(own.score(model, batch), batch["old_logps"], batch["advantages"], mask)
        return loss.sequence_mean(policy.loss, mask, len(mask))

    assert grpo_step(gspo, expect="GSPO", clip=(3e-4, 4e-4))


def test_page_01s_k3_has_its_name_and_its_fault_is_beyond_the_batch():
    kl_of_page, update = bug_of("01", "k3", "plain_step")

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        own.grpo(kl=kl_of_page, reduce=own.tokens)(model, batch).backward()
        update(model, optimizer)

    report = grpo_step(update=step, beta=0.04)
    assert report and report.parts["kl"] == "0.04 × k3", report


def test_page_02s_overwritten_gradients_are_named():
    write, update_with = bug_of("02", "write", "update_with")

    def step(model, optimizer, batch):
        shares = (own.grpo()(model, part) / 2 for part in own.split(batch, 2))
        update_with(write, model, optimizer, shares, grads.plain_step)

    report = grpo_step(update=step)
    assert report.passed is False and "Only the last micro-batch" in report.hint, report


def test_page_03s_clamped_k3_is_k3_where_the_batch_is():
    (kl_of_page,) = bug_of("03", "k3")
    report = grpo_step(own.grpo(kl=kl_of_page), beta=0.04)
    assert report and report.parts["kl"] == "0.04 × k3", report


def test_page_10s_mean_over_a_processs_own_tokens_is_bnpos_and_none_of_dapos():
    (local_mean,) = bug_of("10", "local_mean")
    step = own.update(own.grpo(reduce=lambda per_token, mask, batch: local_mean(per_token, mask, None, 1)))
    assert grpo_step(update=step).variant == "BNPO"
    report = grpo_step(update=step, expect="DAPO")
    assert report.passed is False and "tokens of each micro-batch" in report.hint


def test_page_11s_loss_is_right_and_only_too_large():
    (grpo_loss,) = bug_of("11", "grpo_loss")

    def page(model, batch):
        rows = SimpleNamespace(
            ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            positions=own.positions(batch["attention_mask"]),
            new=batch["completion_ids"].shape[1],
            answers=batch["completion_ids"],
            old_logp=batch["old_logps"],
            advantages=batch["advantages"][:, None],
            counted=batch["completion_mask"],
        )
        return grpo_loss(model, rows) / rows.counted.sum()

    report = grpo_step(page, expect="DAPO")
    assert report and report.parts["ratio"] == "clip", report


def test_page_14s_gspo_clips_far_from_where_gspo_does():
    (gspo,) = bug_of("14", "gspo")

    def page(model, batch):
        rows = []  # there every token counts: row by row, without what is behind the end
        for at, (_, length) in enumerate(unpadded(batch)):
            part = SimpleNamespace(
                old_logp=batch["old_logps"][at : at + 1, :length],
                advantages=batch["advantages"][at : at + 1],
                mask=batch["completion_mask"][at : at + 1, :length],
            )
            logp = own.score(model, {name: v[at : at + 1] for name, v in batch.items() if v.dim()})
            rows.append(gspo(logp[:, :length], part).loss.mean())
        return torch.stack(rows).mean()

    report = grpo_step(page, expect="GSPO", clip=(3e-4, 4e-4))
    assert report.passed is None and "No lower bound acts: down to a ratio of 0.99" in report.hint, report


def test_page_16s_scores_without_positions_are_a_caution():
    (score,) = bug_of("16", "score")

    def scoring(model, batch):
        width = batch["completion_ids"].shape[1]
        return score(model, batch["input_ids"], batch["attention_mask"], width)[0]

    report = grpo_step(own.grpo(scoring=scoring))
    assert report and "GPT-2" in report.caution, report
