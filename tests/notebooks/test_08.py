"""What lesson 08 leaves out of its page: transformers' rules, a KL term, rounding; its first checks on look-alikes."""

import logging
import random
from functools import partial

import pytest
import torch
import transformers
from cut import Page
from props import lesson_08 as lab
from transformers import GenerationConfig

from labkit import checks
from labkit.grpo import Hooks, Sampling, advantage, loss, task, train


@pytest.fixture(scope="module")
def page():
    return Page("08", DEVICE="cpu")


def test_copies_have_a_gradient_of_exactly_zero_with_a_kl_term_too(fresh, page):
    before = torch.cat([parameter.detach().flatten() for parameter in fresh.model.parameters()])
    settings = {"rounds": 2, "sampling": Sampling(temperature=0.7), "beta": 0.04, "mu": 2}
    steps = list(train("add", policy=fresh, hooks=Hooks(generate=page["of_bug"]), **settings))
    assert {step.grad_norm for step in steps} == {0.0}
    after = torch.cat([parameter.detach().flatten() for parameter in fresh.model.parameters()])
    assert torch.equal(before, after)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_what_noise_leaves_of_the_gradient_of_copies_is_rounding(fresh, page, dtype, most):
    prompts = task.get("add").sample(8, random.Random(0))
    out = lab.ask(page["of_bug"], fresh, prompts, seed=0)
    rewards = page["noisy_judge"](0)(fresh.decode(out.prompt_tokens), out.texts)
    advantages = advantage.group_advantage(torch.tensor(rewards, dtype=dtype), 8)
    assert advantages.abs().mean() > 0.5
    model = fresh.model.to(dtype)
    position = (out.attention_mask.cumsum(-1) - 1).clamp_min(0)
    answer = model(out.ids, attention_mask=out.attention_mask, position_ids=position)
    logits = answer.logits[:, -out.tokens.shape[1] - 1 : -1] / 0.7
    logp = logits.log_softmax(-1).gather(-1, out.tokens[..., None]).squeeze(-1)  # [B, T], in this dtype
    per_token = loss.grpo(logp, logp.detach(), advantages).loss
    ((per_token * out.mask).sum() / out.mask.sum()).backward()
    assert torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]) < most


def test_the_range_is_four_deviations_of_what_chance_does(page):
    torch.manual_seed(0)
    count_of, logits, by_deviation = page["not_the_likeliest"], 2 * torch.randn(300, 16), []
    probabilities = (logits / 0.7).softmax(-1)
    for _ in range(400):
        tokens = probabilities.multinomial(1).squeeze(1)
        count, low, high = count_of(logits, tokens, 0.7)
        by_deviation.append((count - (low + high) / 2) / ((high - low) / 8))
    assert torch.tensor(by_deviation).mean().abs() < 0.2
    assert torch.tensor(by_deviation).std() == pytest.approx(1, abs=0.15)


def test_the_range_is_summed_over_the_tokens_that_this_sampler_drew(tiny, page):
    """Samplers with other answers print nearly the same range. Here one answer, token by token, is followed by hand."""

    def answering(text):
        def sample(model, ids, temperature):
            new = tiny.tokenizer(text, return_tensors="pt").input_ids[:, :3]
            end = torch.full((1, 1), tiny.tokenizer.eos_token_id)
            return torch.cat([ids, torch.cat([new, end], 1).expand(len(ids), -1)], 1)

        return sample

    middles = []
    for text in ("136", "146", "999"):
        answers = lab.ask(partial(page["answers_by"], answering(text)), tiny, ["49+97="], seed=0)
        assert set(answers.texts) == {text}
        _, low, high = page["not_the_likeliest"](*lab.first_of_each_group(tiny, answers), 0.7)
        by_hand = [lab.chances_after(tiny, "49+97=" + text[:place], 0.7) for place in range(4)]
        assert (low + high) / 2 == pytest.approx(sum(1 - max(after.values()) for after in by_hand), abs=1e-3)
        middles.append((low + high) / 2)
    assert abs(middles[0] - middles[1]) < 0.01 < abs(middles[0] - middles[2])


def test_the_check_that_the_lesson_names_fails_on_the_bug_and_sees_the_filters_that_the_count_does_not(tiny):
    def checked(**flags):
        return checks.temperature(lambda ids, t: lab.drawn_with(tiny.model, ids, t, **flags), tiny.model)

    assert checked().passed
    assert checked(do_sample=False).passed is False and checked(top_k=2).passed is False
    assert checked(top_p=0.5).passed is False and checked(top_p=0.55).passed is False
    assert checked(repetition_penalty=1.5).passed is False


def test_the_line_in_the_log_comes_below_and_above_a_temperature_of_1_and_not_at_it(tiny, page, caplog):
    ids, _ = tiny.encode(["49+97="])

    def lines_at(temperature):
        transformers.utils.logging.warning_once.cache_clear()  # it remembers what it wrote
        caplog.clear()
        page["from_generate"](tiny.model, ids, temperature)
        return {record.getMessage() for record in caplog.records if "generation flags" in record.getMessage()}

    logger = logging.getLogger("transformers")
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    logger.addHandler(caplog.handler)
    try:
        counted = [len(lines_at(temperature)) for temperature in (0.7, 1.0, 1.6)]
    finally:
        logger.removeHandler(caplog.handler)
        transformers.logging.set_verbosity(level)
    assert counted == [1, 0, 1]


def test_the_three_checks_of_the_first_cell_tell_look_alikes_from_each_other(tiny, page):
    def at(temperature, sampler, family):
        sample = partial(page["answers_by"], sampler)
        prompts = task.get(family).sample(40, random.Random(3))
        return lab.groups_of(lab.ask(sample, tiny, prompts, seed=1, temperature=temperature))

    def named(sampler, family="add"):
        before, hot = at(0.7, sampler, family), at(3.0, sampler, family)
        if sum(len(set(group)) == 1 for group in before) < 0.9 * len(before):
            return "not this page"
        if sum(len(set(group)) > 1 for group in hot) > 0.9 * len(hot):
            return "it draws"
        same = sum(old == new for old, new in zip(before, hot, strict=True))
        return "nothing is drawn, or without the temperature" if same > 0.9 * len(hot) else "one draw is copied"

    def deaf_and_cold(model, ids, _):
        return lab.drawn_with(model, ids, 0.01)

    assert named(page["from_generate"]) == named(page["from_generate"], "copy") == named(deaf_and_cold)
    assert named(deaf_and_cold) == "nothing is drawn, or without the temperature"
    assert named(page["one_seed"]) == named(lab.one_row_repeated) == "one draw is copied"
    assert named(page["of_half"]) == named(lab.drawn_with, "copy") == "it draws"
    assert named(lab.drawn_with) == named(page["cold"]) == "not this page"


def test_what_is_left_out_comes_from_the_model_and_then_from_the_defaults(fresh):
    assert GenerationConfig._get_default_generation_params()["top_k"] == 50
    fresh.model.generation_config = GenerationConfig(do_sample=True, temperature=0.3, min_p=0.2, **lab.SPECIAL)
    config, _ = fresh.model._prepare_generation_config(None, temperature=1.0)
    assert (config.do_sample, config.temperature, config.min_p, config.top_k) == (True, 1.0, 0.2, 50)


@torch.no_grad()
def test_a_top_k_that_is_left_out_draws_from_fifty_tokens():
    model, flags = lab.model_of_exercise(), {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0}
    torch.manual_seed(0)
    ids = torch.randint(2, 200, (1000, 4))
    probabilities = model(input_ids=ids).logits[:, -1].softmax(-1)  # [N, 200]

    def share_outside_of_fifty(**flags):
        rows = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, **flags)
        likelier = (probabilities > probabilities.gather(1, rows[:, -1:])).sum(1)
        return float((likelier >= 50).float().mean())

    expected = float(probabilities.sort(-1, descending=True).values[:, 50:].sum(1).mean())
    assert share_outside_of_fifty(**flags, top_k=0) == pytest.approx(expected, abs=0.05) and expected > 0.1
    assert share_outside_of_fifty(**flags) == 0


def drawn_by_hand(model, ids, temperature):
    for _ in range(4):
        logits = model(input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, torch.multinomial((logits / temperature).softmax(-1), 1)], 1)
    return ids


def without_prompts(model, ids, temperature):
    return drawn_by_hand(model, ids, temperature)[:, 4:]


def as_lists(model, ids, temperature):
    return drawn_by_hand(model, ids, temperature).tolist()


def in_one_row(model, ids, temperature):
    return drawn_by_hand(model, ids[:1], temperature).expand(len(ids), -1)


def test_a_loop_of_ones_own_passes_and_what_the_next_cells_cannot_use_is_refused():
    assert lab.judge_generate(drawn_by_hand)
    for wrong, words in ((without_prompts, "the prompts in front"), (as_lists, "A tensor is expected")):
        report = lab.judge_generate(wrong)
        assert not report and words in report.hint
    assert not lab.judge_generate(in_one_row)


def test_what_stands_behind_an_end_is_padding_for_the_trainer(tiny):
    ids, mask = tiny.encode(["49+97="])
    end = tiny.tokenizer.eos_token_id
    rows = torch.cat([ids, torch.tensor([[ids[0, 0], end, ids[0, 1], ids[0, 2]]])], 1)
    out = lab.completions(tiny, rows, ids, mask, 1)
    assert out.mask.tolist() == [[1, 1, 0, 0]] and out.texts == ["4"]
    assert out.tokens[0, 2:].tolist() == [tiny.tokenizer.pad_token_id] * 2


def test_the_solution_names_every_unseen_rollout(page):
    from props.diagnosis import judge

    unseen = lab.unseen_rollouts(page["look"], 71)
    assert judge(page["diagnosis"], unseen), judge(page["diagnosis"], unseen)
    assert len(unseen) == 10 and {cause for cause, _ in unseen} == {
        "nothing drawn, or hardly", "one draw, copied", "draws, not as asked", "cannot tell", "it draws"
    }  # fmt: skip


def test_a_large_batch_of_mostly_solved_prompts_looks_like_one_draw_copied_though_it_draws(tiny, page):
    def drawn(family, groups, seed):
        prompts = task.get(family).sample(groups, random.Random(seed))
        return lab.ask(partial(page["answers_by"], lab.drawn_with), tiny, prompts, seed)

    solved, open_ = drawn("copy", 1400, 0), drawn("add", 60, 1)
    parts = [lab.first_of_each_group(tiny, answers) for answers in (solved, open_)]
    logits, tokens = (torch.cat(part) for part in zip(*parts, strict=True))
    count, low, high = page["not_the_likeliest"](logits, tokens, 0.7)
    copies = sum(len(set(group)) == 1 for answers in (solved, open_) for group in lab.groups_of(answers))
    log = {"groups": 1460, "copies": copies, "count": count, "low": low, "high": high}
    assert page["diagnosis"](log) == "one draw, copied"
