"""Lesson 16: what its text says of the libraries, its loop held against labkit's, and what its exercises refuse."""

import importlib.util
import json
import re
from functools import partial

import pytest
import torch
from cut import FOLDER, bug_cells, installed, path_of

from labkit import events
from labkit.train import train

CELLS = json.loads(path_of("16").read_text())["cells"]


def code_of(tag):
    found = ["".join(cell["source"]) for cell in CELLS if tag in cell["metadata"].get("tags", [])]
    return [source for source in found if "labkit.predict(" not in source]


def executed(source, **space):
    exec(source, {"torch": torch} | space, space)
    return space


@pytest.fixture(scope="module")
def props():
    spec = importlib.util.spec_from_file_location("props_of_lesson_16", FOLDER / "props" / "lesson_16.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scorers():
    """The bug and the fix, as the notebook has them."""
    return {"bug": executed(code_of("bug")[0])["score"], "fix": executed(code_of("fix")[0])["mended"]}


def apart(one, other):
    return float((one - other).detach().abs().max())


# The loop and the scorers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pads", [0, 4])
def test_with_a_sound_scorer_the_loop_learns_what_labkit_learns_however_the_rows_are_padded(props, pads):
    mine = props.learn(props.sound, 3, device="cpu", rounds=2, pads=pads)
    labkits = train("tiny", seed=3, device="cpu", rounds=2, exam=True)
    exams = [[e.mean for e in run if isinstance(e, events.Exam)] for run in (mine, labkits)]
    assert exams[0] == pytest.approx(exams[1], abs=1e-4)


def test_the_fix_is_labkits_own_scorer(tiny, props, scorers):
    out = props.answers(tiny, 0)
    rows = *props.left(out.ids, out.attention_mask), out.tokens.shape[1]
    assert apart(scorers["fix"](tiny.model, *rows), props.sound(tiny.model, *rows)) < 1e-6


def test_the_snippet_to_paste_finds_the_bug_and_passes_the_fix(tiny, props, scorers, capsys):
    """Also where the row with the longest prompt has the fewest tokens that count: its answer is short."""
    (snippet,) = re.findall(r"```python\n(.*?)```", "".join(CELLS[-1]["source"]), re.DOTALL)
    ids = torch.full((2, 12), 5)
    mask = torch.ones(2, 12, dtype=torch.long)
    ids[0, :2], mask[0, :2] = 0, 0  # a short prompt, 6 of 8, and an answer of 4
    ids[1, 9:], mask[1, 9:] = 0, 0  # a long prompt, and an answer of 1
    assert mask.sum(1).tolist() == [10, 9]
    tiny.model.train()
    for name, low, high in (("bug", 0.1, 100), ("fix", 0, 1e-3)):

        def of_all(model, ids, mask, score=scorers[name]):
            assert not model.training
            return score(model, ids, mask, ids.shape[1] - 1)

        executed(snippet, my_logprobs=of_all, model=tiny.model, ids=ids, mask=mask)
        said = re.findall(r"(\d+) pads on the left, off by (\S+)", capsys.readouterr().out)
        off = {int(pads): float(nats) for pads, nats in said}
        assert low <= off[2] < high and off[0] < 1e-3, name


def test_rows_padded_on_the_right_need_neither_mask_nor_positions(tiny, props):
    def without(model, ids, mask, length):
        logp = model(input_ids=ids).logits[:, -length - 1 : -1].log_softmax(-1)
        return logp.gather(-1, ids[:, -length:, None])[..., 0]

    out = props.answers(tiny, 0, prompts=2)
    assert props.furthest(without, tiny.model, out, props.right) < 1e-4
    assert props.furthest(without, tiny.model, out, props.left) > 1


# What the lesson says of the libraries ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_trls_own_scorer_is_wrong_for_a_table_of_positions_and_right_for_rotary_ones(tmp_path, fresh, props):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    given = {"per_device_train_batch_size": 2, "num_generations": 2, "report_to": [], "use_cpu": True, "bf16": False}
    config = trl.GRPOConfig(output_dir=str(tmp_path), activation_checkpointing=False, **given)
    data = datasets.Dataset.from_dict({"prompt": ["12+34="] * 2})
    out = props.answers(fresh, 0, prompts=2)
    length = out.tokens.shape[1]
    off = {}
    for name, model in {"table": fresh.model, "rotary": props.rotary(0, fresh.device)}.items():
        trainer = trl.GRPOTrainer(
            model,
            lambda completions, **_: [0.0] * len(completions),
            config,
            train_dataset=data,
            processing_class=fresh.tokenizer,
        )
        score = partial(trainer._get_per_token_logps_and_entropies, trainer.model, logits_to_keep=length)
        with torch.no_grad():
            padded, alone = (
                score(input_ids=ids, attention_mask=mask)[0]
                for ids, mask in (props.left(out.ids, out.attention_mask), (out.ids, out.attention_mask))
            )
        off[name] = apart(padded * out.mask, alone * out.mask)
    assert off["table"] > 1 and off["rotary"] < 1e-3


def test_trl_pads_prompts_on_the_left_and_logs_the_trainer_against_the_sampler():
    source = installed("trl", "trainer/grpo_trainer.py")
    assert 'padding_side="left"' in source and "sampling/sampling_logp_difference/mean" in source
    assert not re.search(r"(?<!image_)position_ids", source)


def test_generate_makes_positions_from_the_mask_and_a_plain_forward_does_not(tiny, props):
    seen = []
    hook = tiny.model.transformer.wpe.register_forward_pre_hook(lambda module, given: seen.append(given[0].tolist()))
    ids, mask = props.left(*tiny.encode(["12+34="]))
    tiny.model.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False)
    tiny.model(input_ids=ids, attention_mask=mask)
    hook.remove()
    assert seen[0][0][4:] == [0, 1, 2, 3, 4, 5] and seen[1][0] == list(range(10))


def test_positions_without_any_mask_are_read_as_packed_rows(tiny, props, scorers):
    """transformers 5.23: each pad, at position 0 again, is a row of its own. So a forgotten mask does no harm there."""
    out = props.answers(tiny, 0)
    ids, mask = props.left(out.ids, out.attention_mask)
    length = out.tokens.shape[1]
    with torch.no_grad():
        sound = scorers["fix"](tiny.model, ids, mask, length)
        logits = tiny.model(input_ids=ids, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False).logits
    logp = logits[:, -length - 1 : -1].log_softmax(-1).gather(-1, ids[:, -length:, None])[..., 0]
    assert apart(logp * out.mask, sound * out.mask) < 1e-3


def test_transformers_warns_of_pads_without_a_mask_and_not_of_a_mask_of_ones(tiny, props, monkeypatch):
    warned = []
    ids, mask = props.left(*tiny.encode(["12+34="]))
    monkeypatch.setattr("transformers.modeling_utils.logger.warning_once", warned.append)
    tiny.model(input_ids=ids, attention_mask=mask)
    tiny.model(input_ids=ids, attention_mask=torch.ones_like(mask))
    assert not warned
    tiny.model(input_ids=ids)
    assert "passing in an `attention_mask`" in warned[0]


def test_a_qwen2_that_no_launcher_started_is_causal(props):
    model = props.rotary(0, torch.device("cpu"))
    ids = torch.randint(2, 16, (4, 10), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % 16
    with torch.no_grad():
        assert torch.equal(model(ids).logits[:, :-1], model(changed).logits[:, :-1])


# The exercises ----------------------------------------------------------------------------------------------

SOLUTIONS = executed("\n".join(code_of("solution")))


def by_ids(ids, prompt_lengths, width, eos):
    return (ids != eos).long()


def first_end_of_the_whole_row(ids, prompt_lengths, width, eos):
    ends = (ids == eos).long()
    return ((ends.cumsum(1) - ends) == 0).long()


def without_the_end_token(ids, prompt_lengths, width, eos):
    mask = SOLUTIONS["made_mask"](ids, prompt_lengths, width, eos)
    mask[:, width:] *= ids[:, width:] != eos
    return mask


WRONG = {
    "ids": (by_ids, "does not say which"),
    "first end": (first_end_of_the_whole_row, "up to its first end token"),
    "end left out": (without_the_end_token, ""),
    "two tensors": (lambda *given: (SOLUTIONS["made_mask"](*given),) * 2, "one tensor"),
    "the answers alone": (lambda *given: SOLUTIONS["made_mask"](*given)[:, given[2] :], "as large as ids"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_check_refuses_these_masks(props, name):
    answer, hint = WRONG[name]
    report = props.marks_what_counts(answer)
    assert not report and hint in report.hint


def test_the_check_takes_the_solution_also_as_booleans(props):
    assert props.marks_what_counts(SOLUTIONS["made_mask"])
    assert props.marks_what_counts(lambda *given: SOLUTIONS["made_mask"](*given).bool())


@pytest.mark.parametrize("seed", range(3))
def test_six_scorers_are_named_by_the_solution_and_by_nobody_who_says_the_same_of_all(tiny, props, seed):
    cause = executed("\n".join(code_of("solution")), left=props.left)["cause"]
    assert props.names_each_cause(cause, tiny, seed)
    for word in props.CAUSES:
        assert not props.names_each_cause(lambda *given, word=word: word, tiny, seed)


def test_who_looks_at_a_padded_row_alone_does_not_tell_a_forgotten_mask_from_wrong_positions(tiny, props):
    def cause(score, ids, mask, length):
        return "positions" if apart(score(*props.left(ids, mask), length), score(ids, mask, length)) > 1e-3 else "sound"

    assert not props.names_each_cause(cause, tiny, 0)


def test_the_bug_stands_alone():
    assert "position_ids" not in code_of("bug")[0] and callable(bug_cells("16")["score"])
