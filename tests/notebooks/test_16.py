"""Lesson 16: what its text says of the libraries, and its loop held against labkit's."""

import re
from functools import partial

import pytest
import torch
from cut import Page, prose
from props import lesson_16 as props

from labkit.train import train


@pytest.fixture(scope="module")
def page():
    return Page("16", DEVICE="cpu")


def apart(one, other):
    return float((one - other).detach().abs().max())


def test_with_a_sound_scorer_the_loop_learns_what_labkit_learns_however_the_rows_are_padded():
    mine = props.learn(props.sound, 3, device="cpu", rounds=2, pads=4)
    labkits = train("tiny", seed=3, device="cpu", rounds=2, exam=True)
    exams = [[event.mean for event in run if hasattr(event, "chances")] for run in (mine, labkits)]
    assert exams[0] == pytest.approx(exams[1], abs=1e-4)


def test_the_snippet_to_paste_finds_the_bug_and_passes_the_fix(tiny, page, capsys):
    """Also where the row with the longest prompt has the fewest tokens that count: its answer is short."""
    (snippet,) = re.findall(r"```python\n(.*?)```", prose("16"), re.DOTALL)
    ids = torch.full((2, 12), 5)
    mask = torch.ones(2, 12, dtype=torch.long)
    ids[0, :2], mask[0, :2] = 0, 0  # a short prompt, 6 of 8, and an answer of 4
    ids[1, 9:], mask[1, 9:] = 0, 0  # a long prompt, and an answer of 1
    tiny.model.train()
    for name, low, high in (("score", 0.1, 100), ("mended", 0, 1e-3)):

        def of_all(model, ids, mask, score=page[name]):
            assert not model.training
            return score(model, ids, mask, ids.shape[1] - 1)

        exec(snippet, {"torch": torch, "my_logprobs": of_all, "model": tiny.model, "ids": ids, "mask": mask})
        lines = re.findall(r"(\d+) pads on the left, off by (\S+)", capsys.readouterr().out)
        off = {int(pads): float(nats) for pads, nats in lines}
        assert low <= off[2] < high and off[0] < 1e-3, name


def test_rows_padded_on_the_right_need_neither_mask_nor_positions(tiny, page):
    out = props.answers(tiny, 0, prompts=2)
    assert props.furthest(page["neither"], tiny.model, out, props.right) < 1e-4
    assert props.furthest(page["neither"], tiny.model, out, props.left) > 1


@pytest.mark.filterwarnings("ignore")
def test_trls_own_scorer_is_wrong_for_a_table_of_positions_and_right_for_rotary_ones(tmp_path, fresh):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    settings = {"per_device_train_batch_size": 2, "num_generations": 2, "report_to": [], "use_cpu": True, "bf16": False}
    config = trl.GRPOConfig(str(tmp_path), activation_checkpointing=False, **settings)
    rows = datasets.Dataset.from_dict({"prompt": ["12+34="] * 2})
    out = props.answers(fresh, 0, prompts=2)
    off = {}
    for name, model in {"table": fresh.model, "rotary": props.rotary(0, fresh.device)}.items():
        reward = lambda completions, **_: [0.0] * len(completions)
        trainer = trl.GRPOTrainer(model, reward, config, rows, processing_class=fresh.tokenizer)
        score = partial(trainer._get_per_token_logps_and_entropies, trainer.model, logits_to_keep=out.tokens.shape[1])
        with torch.no_grad():
            alone = score(input_ids=out.ids, attention_mask=out.attention_mask)[0]
            ids, mask = props.left(out.ids, out.attention_mask)
            padded = score(input_ids=ids, attention_mask=mask)[0]
        off[name] = apart(padded * out.mask, alone * out.mask)
    assert off["table"] > 1 and off["rotary"] < 1e-3


def test_generate_makes_positions_from_the_mask_and_a_plain_forward_does_not(tiny):
    positions = []
    hook = tiny.model.transformer.wpe.register_forward_pre_hook(lambda module, args: positions.append(args[0].tolist()))
    ids, mask = props.left(*tiny.encode(["12+34="]))
    tiny.model.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False)
    tiny.model(input_ids=ids, attention_mask=mask)
    hook.remove()
    assert positions[0][0][4:] == [0, 1, 2, 3, 4, 5] and positions[1][0] == list(range(10))


def test_transformers_warns_of_pads_without_a_mask_and_not_of_a_mask_of_ones(tiny, monkeypatch):
    warnings = []
    ids, mask = props.left(*tiny.encode(["12+34="]))
    monkeypatch.setattr("transformers.modeling_utils.logger.warning_once", warnings.append)
    tiny.model(input_ids=ids, attention_mask=mask)
    tiny.model(input_ids=ids, attention_mask=torch.ones_like(mask))
    assert not warnings
    tiny.model(input_ids=ids)
    assert "passing in an `attention_mask`" in warnings[0]
