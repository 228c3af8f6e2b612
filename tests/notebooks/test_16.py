"""Lesson 16: the function to paste, its judges, and what its text says of the libraries."""

import dataclasses
from functools import partial

import pytest
import torch
from cut import Page
from props import lesson_16 as lab
from props import lesson_16_judges as judges
from props import lesson_16_pictures as pictures
from props.scorers import (
    SCORERS,
    counted,
    counted_in_every_second_group,
    of_three,
    pad_left,
    rotary,
    same,
    scorer_with,
    unseen,
    with_pads,
)

from labkit import sandbox
from labkit.grpo.policy import token_logprobs


@pytest.fixture(scope="module")
def page():
    return Page("16", DEVICE="cpu")


def test_the_function_to_paste_finds_the_bug_where_the_longest_prompt_has_the_fewest_tokens_that_count(tiny, page):
    ids = torch.full((2, 12), 5)
    mask = torch.ones(2, 12, dtype=torch.long)
    ids[0, :2], mask[0, :2] = 0, 0  # a short prompt, 6 of 8, and an answer of 4
    ids[1, 9:], mask[1, 9:] = 0, 0  # a long prompt, and an answer of 1
    tiny.model.train()
    for scorer, low, high in ((page["score"], 0.1, 100), (page["mended"], 0, 1e-3)):

        def of_all(model, ids, mask, scorer=scorer):
            assert not model.training
            return page["of_all_tokens"](scorer)(model, ids, mask)

        padded, not_padded = page["padded_against_alone"](of_all, tiny.model, ids, mask)
        assert low <= padded < high and not_padded < 1e-3


def test_with_positions_a_scorer_gives_labkits_log_probs_and_logits(tiny, page):
    out, _ = lab.answers(tiny, 0)
    ids, mask = pad_left(out.ids, out.attention_mask, 4)
    counts = out.mask.bool()
    wanted, logits = token_logprobs(tiny.model, ids, mask, counts.shape[1])
    for scorer in (page["mended"], SCORERS["mask + positions"]):
        logp, own = scorer(tiny.model, ids, mask, counts.shape[1], temperature=1.0, logit_max=None)
        torch.testing.assert_close(logp[counts], wanted[counts], rtol=0, atol=1e-5)
        torch.testing.assert_close(own[counts], logits[counts], rtol=0, atol=1e-4)


def test_each_of_the_three_log_probs_of_a_run_comes_from_its_own_scorer(tiny):
    used = []
    scorers = {name: lambda model, name=name: used.append(name) for name in ("new", "old", "reference")}
    scorer = of_three(**scorers)
    frozen = torch.nn.Linear(1, 1).requires_grad_(False)
    with torch.no_grad():
        scorer(tiny.model)
        scorer(frozen)
    scorer(tiny.model)
    assert used == ["old", "reference", "new"]


def test_in_every_second_group_the_rows_are_those_of_the_bug_and_the_others_are_right(tiny):
    ids = torch.full((20, 8), 5)
    rows = tiny.model, *pad_left(ids, torch.ones_like(ids), 3), 2
    bug, right = SCORERS["mask"], SCORERS["mask + positions"]
    mixed, _ = scorer_with(attention_mask=same, position_ids=counted_in_every_second_group)(*rows)
    for at in range(20):
        scorer, other = (right, bug) if 8 <= at < 16 else (bug, right)
        torch.testing.assert_close(mixed[at], scorer(*rows)[0][at], rtol=0, atol=1e-5)
        assert (mixed[at] - other(*rows)[0][at]).abs().max() > 0.01


WRONG = {
    "[-1, -1, 0, 1, 2]. A pad's position": lambda mask: mask.long().cumsum(1) - 1,
    "[0, 1, 2, 3, 4]. The tokens that count": lambda mask: torch.arange(mask.shape[1]).expand(mask.shape),
    "torch.float32": lambda mask: counted(mask).float(),
    "It returned NoneType": lambda mask: None,
    "It returned (4,)": lambda mask: counted(mask)[0],
    "changed the mask": lambda mask: counted(mask.logical_not_().logical_not()),
}


@pytest.mark.parametrize("words", WRONG)
def test_positions_are_judged_on_every_row_and_kind_of_mask(words):
    assert judges.judge_positions(counted)
    report = judges.judge_positions(WRONG[words])
    assert not report and words in report.hint, report.hint


def test_a_wrong_cause_hears_which_scorer_it_was_and_the_seed_decides_the_order(tiny, page):
    assert judges.judge_cause(page["cause_of"], tiny, 5)
    report = judges.judge_cause(lambda *row: "sound", tiny, 5)
    assert not report and report.seen == {"right": "2 of 6"} and "it says 'sound', and it was" in report.hint
    orders = {tuple(cause for cause, _ in unseen(tiny, seed)) for seed in range(6)}
    assert len(orders) > 3


def test_qwen2_uses_its_positions_doubled_distances_move_its_log_probs(tiny):
    out, _ = lab.answers(tiny, 0)
    rows = rotary(0, "cpu"), out.ids, out.attention_mask, out.tokens.shape[1]
    right, _ = SCORERS["mask + positions"](*rows)
    moved, _ = scorer_with(attention_mask=same, position_ids=lambda mask: counted(mask) + 4)(*rows)
    doubled, _ = scorer_with(attention_mask=same, position_ids=lambda mask: 2 * counted(mask))(*rows)
    counts = out.mask.bool()
    assert (moved - right)[counts].abs().max() < 1e-4 < 1 < (doubled - right)[counts].abs().max()


def test_no_earlier_logit_of_qwen2_moves_by_a_bit_when_the_last_token_is_another(tiny):
    out, _ = lab.answers(tiny, 0)
    other = out.ids.clone()
    other[:, -1] = (other[:, -1] + 1) % 16
    model = rotary(0, "cpu")
    with torch.no_grad():
        before, after = (model(input_ids=ids).logits for ids in (out.ids, other))
    assert torch.equal(before[:, :-1], after[:, :-1]) and not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.filterwarnings("ignore")
def test_trls_own_scorer_is_wrong_for_a_table_of_positions_and_right_for_rotary_ones(tmp_path, fresh):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    settings = {"per_device_train_batch_size": 2, "num_generations": 2, "report_to": [], "use_cpu": True, "bf16": False}
    config = trl.GRPOConfig(str(tmp_path), activation_checkpointing=False, **settings)
    rows = datasets.Dataset.from_dict({"prompt": ["12+34="] * 2})
    out, _ = lab.answers(fresh, 0)
    off = {}
    for name, model in {"table": fresh.model, "rotary": rotary(0, fresh.device)}.items():
        reward = lambda completions, **_: [0.0] * len(completions)
        trainer = trl.GRPOTrainer(model, reward, config, rows, processing_class=fresh.tokenizer)
        score = partial(trainer._get_per_token_logps_and_entropies, trainer.model, logits_to_keep=out.tokens.shape[1])
        with torch.no_grad():
            alone = score(input_ids=out.ids, attention_mask=out.attention_mask)[0]
            ids, mask = pad_left(out.ids, out.attention_mask, 4)
            padded = score(input_ids=ids, attention_mask=mask)[0]
        off[name] = ((padded - alone) * out.mask).abs().max()
    assert off["table"] > 1 and off["rotary"] < 1e-3


def test_generate_makes_positions_from_the_mask_and_a_plain_forward_does_not(tiny):
    positions = []
    hook = tiny.model.transformer.wpe.register_forward_pre_hook(lambda module, args: positions.append(args[0].tolist()))
    ids, mask = pad_left(*tiny.encode(["12+34="]), 4)
    tiny.model.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False)
    tiny.model(input_ids=ids, attention_mask=mask)
    hook.remove()
    assert positions[0][0][4:] == [0, 1, 2, 3, 4, 5] and positions[1][0] == list(range(10))


def test_transformers_warns_of_pads_without_a_mask_and_not_of_a_mask_of_ones(tiny, monkeypatch):
    warnings = []
    ids, mask = pad_left(*tiny.encode(["12+34="]), 4)
    monkeypatch.setattr("transformers.modeling_utils.logger.warning_once", warnings.append)
    tiny.model(input_ids=ids, attention_mask=mask)
    tiny.model(input_ids=ids, attention_mask=torch.ones_like(mask))
    assert not warnings
    tiny.model(input_ids=ids)
    assert "passing in an `attention_mask`" in warnings[0]


def test_without_any_mask_transformers_takes_the_pads_among_positions_for_packed_rows(tiny):
    """So "positions" on the page has a mask of ones: without one, and without a cache, the log-probs are right."""
    out, _ = lab.answers(tiny, 0)
    ids, mask = pad_left(out.ids, out.attention_mask, 4)
    length = out.tokens.shape[1]
    packed, _ = scorer_with(position_ids=counted)(tiny.model, ids, mask, length)
    right, _ = SCORERS["mask + positions"](tiny.model, ids, mask, length)
    assert ((packed - right) * out.mask).abs().max() < 1e-4


def test_the_row_is_that_of_the_page_and_its_pads_are_on_the_left(tiny):
    ids, mask = lab.row(4, tiny)
    assert tiny.decode(ids) == [lab.PROMPT + lab.ANSWER] and mask.sum() == 10 and not mask[0, :4].any()
    out, _ = lab.answers(tiny, 0)
    padded = with_pads(out, 2)
    assert padded.ids.shape[1] == out.ids.shape[1] + 2 and torch.equal(padded.tokens, out.tokens)
    assert dataclasses.replace(padded, prompt_tokens=out.prompt_tokens).texts == out.texts


def test_the_title_of_the_mended_row_has_the_largest_difference_over_all_pads_or_the_error_of_its_run():
    alone = torch.tensor(next(lab.row_in_a_batch(SCORERS["mask + positions"]))["logp"])
    one_too_low = lambda mask: mask.cumsum(1) - 1
    titles = {}
    for name, positions in {"yours": one_too_low, "solution": counted}.items():
        run = sandbox.run(lab.row_in_a_batch, scorer_with(attention_mask=same, position_ids=positions))
        titles[name] = pictures.how_far(name, run, alone)
    assert titles["yours"] == "With your positions the run ended by an error (IndexError)"
    words = titles["solution"].split()
    assert words[:3] == ["With", "the", "solution's"] and float(words[words.index("nats") - 1]) < 1e-4


def test_the_row_is_drawn_with_a_figure_for_every_bar_and_the_bugs_bars_empty_and_no_others_without_a_run():
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    frame = {"pads": 1, "logp": [-0.001, -20.0, float("nan")], "positions": list(range(11))}
    pictures.draw_row(axes, frame, [-0.01, -1.0, -2.0], "fix", [-3.0, -4.0, -5.0])
    bars = axes[1].patches
    assert [text.get_text() for text in axes[1].texts] == ["0", "-1.0", "-2.0", "0", "-20.0", "nan"]
    assert [bar.get_height() for bar in bars if not bar.get_facecolor()[3]] == [-3.0, -4.0, -5.0] and len(bars) == 9
    axes = Figure().subplots(1, 2)
    pictures.draw_row(axes, None, [-1.0])
    assert not axes[1].patches and axes[0].texts[0].get_text() == "ended by an error"


def test_positions_of_one_row_for_all_reach_the_picture_as_those_of_each_row():
    scorer = scorer_with(attention_mask=same, position_ids=lambda mask: torch.arange(mask.shape[1]))
    for frame in lab.row_in_a_batch(scorer):
        assert frame["positions"] == list(range(frame["pads"] + 10))
