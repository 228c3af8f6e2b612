import inspect
import json
import re
from functools import partial

import pytest
import torch
from cut import bug_cells, path_of

from labkit import advantage, checks, loss, rollout

OPEN = "16+01="  # the policy wavers between several first tokens here


def test_the_check_that_passes_on_the_fix_fails_on_the_bug_cut_out_of_the_lesson(tiny):
    broadcast = bug_cells("04")["broadcast"]
    assert checks.first_token(lambda n: rollout.generate(tiny, [OPEN], num_samples=n).tokens)
    report = checks.first_token(lambda n: broadcast(tiny, [OPEN], num_samples=n).tokens, calls=16)
    assert not report and "drawn once and copied" in report.hint, report


def test_the_lessons_bug_shares_the_draw_and_nothing_else(tiny):
    """Rows of a prompt stay together, and one row of each group is distributed as the fix's rows are."""
    bug = bug_cells("04")
    assert bug["one_for_all"](torch.eye(3), 2, lambda z: z.argmax(-1)).tolist() == [0, 0, 1, 1, 2, 2]
    dice = torch.Generator().manual_seed(0)
    out = bug["broadcast"](tiny, [OPEN] * 3000, num_samples=2, max_new_tokens=1, generator=dice)
    ids, mask = tiny.encode([OPEN])
    p = tiny.model(input_ids=ids, attention_mask=mask).logits[0, -1].softmax(-1)
    seen = torch.bincount(out.tokens[::2, 0], minlength=len(p))
    keep = p * 3000 > 5
    chi2 = ((seen[keep] - 3000 * p[keep]).square() / (3000 * p[keep])).sum()
    assert keep.sum() >= 4 and chi2 < 40  # at most 16 symbols: 1e-3 tail is 37.7


def pull(shift, clip=0.2, weights=None):
    """The gradient in the log-prob of a token that four rows share, after it moved by `shift` since it was drawn."""
    advantages = advantage.group_advantage(torch.tensor([1.0, 0.0, 0.0, 1.0]), 4)
    shared = torch.zeros((), requires_grad=True)
    per_row = loss.grpo(shared.expand(4, 1), torch.full((4, 1), -shift), advantages, clip=clip).loss[:, 0]
    (per_row * (1.0 if weights is None else weights)).sum().backward()
    return shared.grad.item()


def test_the_zero_has_the_three_conditions_that_the_lesson_names_and_the_signs_that_it_says():
    assert pull(0.0) == pytest.approx(0, abs=1e-6)
    assert pull(0.15) == pytest.approx(0, abs=1e-6)  # a ratio of 1.16 is not clipped
    assert pull(0.3) > 0.5 and pull(-0.3) < -0.5  # the loss falls towards the old policy, from above and from below
    assert pull(0.3, clip=1e9) == pytest.approx(0, abs=1e-6)
    assert abs(pull(0.0, weights=torch.tensor([1 / 3, 1 / 4, 1 / 3, 1 / 3]))) > 0.05


# The exercise ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exercise(tiny):
    """The lesson's judge and solution, with what they need of the cells above."""
    cells = ["".join(c["source"]) for c in json.loads(path_of("04").read_text())["cells"] if c["cell_type"] == "code"]
    space = {**bug_cells("04"), "POLICY": tiny}
    (looks,) = [c for c in cells if "def seeded_rows" in c]
    (judge,) = [c for c in cells if "def judge(" in c]
    (asked,) = [c for c in cells if "labkit.exercise(" in c]
    for source in (looks, judge, re.search(r"```python\n(.*?)```", asked, re.DOTALL)[1]):
        exec(source, space)
    return space


def test_the_solution_can_be_pasted_and_passes(exercise):
    assert exercise["judge"](exercise["my_first_token"])


def wrong_order(logits, num_samples, sample):  # p0 p1 p0 p1: the wrong rows for the cache
    return sample(logits.repeat(num_samples, 1))


def all_but_one(logits, num_samples, sample):
    rows = sample(logits.repeat_interleave(num_samples, 0)).view(-1, num_samples)
    rows[:, 1:-1] = rows[:, :1]
    return rows.flatten()


def forced_apart(logits, num_samples, sample):  # draws without replacement: diversity at the price of fair draws
    few = min(num_samples, logits.shape[1])
    drawn = torch.multinomial(logits.softmax(-1) + 1e-9, few)
    return drawn.repeat(1, -(-num_samples // few))[:, :num_samples].flatten()


def uniform(logits, num_samples, sample):
    return sample(torch.zeros_like(logits).repeat_interleave(num_samples, 0))


def nothing(logits, num_samples, sample): ...


@pytest.mark.parametrize("wrong", [wrong_order, all_but_one, forced_apart, uniform, nothing], ids=lambda f: f.__name__)
def test_the_exercise_refuses_what_it_forbids(exercise, wrong):
    assert not exercise["judge"](wrong)


def test_the_exercise_refuses_the_bug(exercise):
    assert not exercise["judge"](exercise["one_for_all"])


# What the lesson says of the frameworks --------------------------------------------------------------------


def test_trls_defaults_are_the_lessons_settings():
    fields = pytest.importorskip("trl").GRPOConfig.__dataclass_fields__
    settings = {name: fields[name].default for name in ("beta", "num_iterations", "loss_type", "log_completions")}
    assert settings == {"beta": 0.0, "num_iterations": 1, "loss_type": "dapo", "log_completions": False}


def test_trl_logs_tied_groups_and_no_first_tokens_and_repeats_each_prompt_before_it_samples():
    trl = pytest.importorskip("trl")
    source = inspect.getsource(inspect.getmodule(trl.GRPOTrainer))
    assert '"frac_reward_zero_std"' in source and "first_token" not in source
    assert "mini_repeat_count=self.num_generations" in source


def rows_of_each_pass(model, call):
    seen = []
    hook = model.register_forward_pre_hook(lambda m, a, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True)
    call(16)
    hook.remove()
    return seen


def test_transformers_prefills_every_row_and_labkit_one(tiny):
    ids, mask = tiny.encode([OPEN])
    settings = {"attention_mask": mask, "do_sample": True, "max_new_tokens": 2}

    def theirs(n):
        return tiny.model.generate(ids, num_return_sequences=n, **settings)

    assert rows_of_each_pass(tiny.model, theirs)[0] == 16
    ours = partial(rollout.generate, tiny, [OPEN])
    assert rows_of_each_pass(tiny.model, lambda n: ours(num_samples=n))[:2] == [1, 16]
    assert checks.first_token(theirs, prompt_length=ids.shape[1], calls=16)
