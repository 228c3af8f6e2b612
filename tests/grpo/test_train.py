import copy
import inspect
import math
import subprocess
import sys

import pytest
import torch

from labkit.grpo import Hooks, Safety, Sampling, grads, kl, rollout, train
from labkit.grpo.policy import token_logprobs

FEW = Sampling(prompts=3, num_samples=4)
QUICK = {"rounds": 1, "mu": 2, "sampling": FEW, "device": "cpu"}


def test_the_first_inner_update_of_a_round_has_ratio_one_and_of_the_run_kl_zero():
    sampling = Sampling(prompts=4, num_samples=4, temperature=0.7)
    steps = list(train(seed=0, rounds=2, mu=2, sampling=sampling))
    assert [s.ratio_max for s in steps if s.inner == 1] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert steps[0].kl == 0.0 and steps[-1].kl > 0
    assert [(s.step, s.round, s.inner) for s in steps] == [(1, 1, 1), (2, 1, 2), (3, 2, 1), (4, 2, 2)]


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    runs = [[s.grad_norm for s in train(seed=seed, **QUICK)] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_micro_batches_change_nothing_but_rounding(parts):
    settings = {"seed": 0, "optimizer": "sgd", "lr": 0.01, **QUICK}
    whole, split = (list(train(hooks=Hooks(micro_batches=n), **settings)) for n in (1, parts))
    for a, b in zip(whole, split, strict=True):
        for name in ("loss", "kl", "entropy", "grad_norm", "ratio_max", "clip_fraction"):
            assert a[name] == pytest.approx(b[name], rel=2e-3, abs=1e-6), name


def test_a_scorer_gives_new_old_and_reference_log_probs_and_gets_temperature_and_clamp():
    graded, scaled = [], []

    def scorer(model, ids, attention_mask, length, *, temperature, logit_max):
        graded.append(torch.is_grad_enabled())
        scaled.append((temperature, logit_max))
        wide, mask = (torch.nn.functional.pad(of, (3, 0)) for of in (ids, attention_mask))
        return token_logprobs(model, wide, mask, length, temperature, logit_max)

    sampling = Sampling(prompts=3, num_samples=4, temperature=0.7)
    settings = QUICK | {"seed": 0, "sampling": sampling, "safety": Safety(logit_max=50.0)}
    plain, padded = (list(train(hooks=hooks, **settings)) for hooks in (Hooks(), Hooks(scorer=scorer)))
    assert graded == [False, False, True, True] and set(scaled) == {(0.7, 50.0)}
    for a, b in zip(plain, padded, strict=True):
        for name in ("loss", "kl", "entropy", "grad_norm", "ratio_max", "clip_fraction"):
            assert a[name] == pytest.approx(b[name], rel=2e-3, abs=1e-6), name


def test_the_entropy_is_that_of_the_exact_distribution(tiny):
    sampling = Sampling(prompts=["57+68="], num_samples=64, max_new_tokens=1)
    step = next(train(policy=copy.deepcopy(tiny), rounds=1, mu=1, sampling=sampling))
    ids, mask = tiny.encode(["57+68="])
    with torch.no_grad():
        p = tiny.model(input_ids=ids, attention_mask=mask).logits[0, -1].double().softmax(-1)
    assert step.entropy == pytest.approx(float(-(p * p.log()).sum()), rel=1e-4)


def test_two_objectives_are_two_micro_batches_with_numbers_of_their_own():
    step = list(train(("add", "copy"), seed=0, **QUICK))[-1]
    assert {"kl/add", "kl/copy", "reward/add", "reward/copy"} <= set(step.extra)
    assert step.reward == pytest.approx((step["reward/add"] + step["reward/copy"]) / 2)
    assert step["reward/copy"] > step["reward/add"]


HOT = {"optimizer": "sgd", "lr": 0.02, "mu": 16, "beta": 0.2, "max_norm": None, "device": "cpu"}


def test_without_a_limit_the_run_explodes_and_the_next_rollout_dies_or_the_health_check_restores():
    steps = []
    with pytest.raises(RuntimeError, match="probability tensor"):
        steps.extend(train(seed=0, **HOT))
    assert {s.round for s in steps} == {1} and steps[-1].nonfinite_params > 0
    assert max(s.grad_norm for s in steps if not math.isnan(s.grad_norm)) > 1e3
    restored = list(train(seed=0, rounds=2, safety=Safety(restore=True), **HOT))
    assert {s.round for s in restored} == {1, 2}
    guarded = {"safety": Safety.recommended(), "hooks": Hooks(update=grads.guard())}
    survived = list(train(seed=0, rounds=2, **HOT | guarded))
    assert {s.nonfinite_params for s in survived} == {0} and len(survived) == 32


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": -1e-3}, "lr = -0.001"),
        ({"lr": math.nan}, "lr = nan"),
        ({"sampling": Sampling(num_samples=1)}, "num_samples = 1.*every advantage is zero"),
        ({"max_norm": 0}, "max_norm = 0: must be above 0; None: no limit"),
        ({"max_norm": math.nan}, "max_norm = nan"),
        ({"rounds": 0}, "rounds = 0"),
        ({"mu": 2.5}, "mu = 2.5"),
        ({"sampling": Sampling(prompts=[])}, "prompts: got an empty list"),
        ({"task": "mul"}, "task 'mul'"),
        ({"task": []}, "task: got an empty list"),
        ({"optimizer": "lion"}, "optimizer 'lion'"),
        ({"device": "cuda:7"}, "cuda:7"),
        ({"policy": "nowhere/nothing"}, "nowhere/nothing"),
        ({"sampling": Sampling(prompts=["1234"])}, "expected one of the forms"),
    ],
)
def test_a_setting_that_cannot_be_is_named_before_an_update(setting, message):
    with pytest.raises(ValueError, match=message):
        next(train(**setting))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Sampling(temperature=0), ValueError, "temperature = 0"),
        (lambda: Sampling(num_samples=2.5), ValueError, "num_samples = 2.5"),
        (lambda: Sampling(prompts=0), ValueError, "prompts = 0"),
        (lambda: Sampling(prompts="12+34="), TypeError, "expected a list of prompts"),
        (lambda: Safety(logit_max=-1.0), ValueError, "logit_max = -1.0.*None switches"),
        (lambda: Hooks(micro_batches=0), ValueError, "micro_batches = 0"),
        (lambda: next(train(sampling={"prompts": 3})), TypeError, r"sampling: got a dict.*Sampling\("),
        (lambda: next(train(hooks=kl.k3)), TypeError, r"hooks: got a function.*Hooks\("),
        (lambda: train(num_samples=4), TypeError, "num_samples"),
        (lambda: train(dual_clip=3.0), TypeError, "dual_clip"),
    ],
)
def test_a_group_of_settings_refuses_what_cannot_be_where_it_is_made(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_a_policy_in_the_place_of_the_task_is_named(tiny):
    with pytest.raises(TypeError, match="task: got a Policy.*policy="):
        next(train(tiny))


def test_it_has_sixteen_parameters_at_most_and_the_face_gives_the_function_in_any_order():
    assert len(inspect.signature(train).parameters) <= 16
    code = "import labkit.grpo.train; from labkit.grpo import train; print(callable(train))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


def test_a_probe_sees_the_counted_tokens_and_changes_nothing():
    def probe(part, logp, logits):
        own = logits.log_softmax(-1).gather(-1, part.out.tokens[..., None]).squeeze(-1)
        torch.testing.assert_close(own, logp)
        assert not logp.requires_grad and not logits.requires_grad
        return {"kl_mean": float(kl.masked_mean(kl.k3(logp, part.ref_logp), part.mask))}

    plain, probed = (list(train(seed=0, hooks=Hooks(probe=p), **QUICK)) for p in (None, probe))
    assert [s.loss for s in plain] == [s.loss for s in probed]
    assert [s["kl_mean"] for s in probed] == pytest.approx([s.kl for s in probed], rel=1e-5, abs=1e-9)


def constant(values):
    """A reward function that gives these, whatever the prompts are."""
    return lambda prompts, completions: values[: len(completions)]


def test_a_reward_function_gets_a_prompt_for_each_completion_and_its_rewards_count():
    calls = []

    def reward(prompts, completions):
        calls.append((prompts, completions))
        return [float(len(c)) for c in completions]

    (step,) = train(seed=0, rounds=1, mu=1, sampling=FEW, hooks=Hooks(reward=reward))
    ((prompts, completions),) = calls
    assert len(prompts) == len(completions) == 12 and len(set(prompts)) == 3 and prompts[0] == prompts[3]
    assert step.reward == pytest.approx(sum(map(len, completions)) / 12) and "missing" not in step.extra
    with pytest.raises(ValueError, match="got 7 rewards for 8 completions"):
        hooks = Hooks(reward=constant([1.0] * 7))
        next(train(rounds=1, sampling=Sampling(prompts=2, num_samples=4), hooks=hooks))


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_completion_without_a_reward_is_as_if_it_had_not_been_sampled(missing, fresh):
    values = [1.0, 0.0, missing, 0.5] + [missing] * 3 + [1.0] + [0.0, 1.0, 1.0, 0.0]
    parts = []

    def probe(part, logp, logits):
        parts.append(part)
        return {}

    hooks = Hooks(reward=constant(values), probe=probe)
    (step,) = train(policy=fresh, rounds=1, mu=1, sampling=FEW, hooks=hooks)
    (part,) = parts
    assert part.counts.tolist() == [True, True, False, True] + [False] * 4 + [True] * 4
    assert not part.mask[~part.counts].any() and part.out.mask[~part.counts].any()
    assert part.advantages[:4].tolist() == pytest.approx([1, -1, 0, 0], abs=1e-3)
    assert step["missing"] == pytest.approx(4 / 12) and math.isfinite(step.loss) and step.grad_norm > 0
    assert step.reward == pytest.approx((1 + 0 + 0.5 + 1 + 0 + 1 + 1 + 0) / 8)
    assert step.mean_length == pytest.approx(float(part.out.mask.sum()) / 12)


def test_advantages_and_mask_of_your_own_are_what_is_learned_from():
    calls = []

    def first_of_each_group(rewards, num_samples):
        calls.append((rewards.shape, num_samples))
        mask = torch.arange(len(rewards)) % num_samples == 0
        return mask * 1.0, mask

    seen = []

    def probe(part, logp, logits):
        seen.append((part.advantages.sum(), part.mask.any(1).sum()))
        return {}

    hooks = Hooks(advantage=first_of_each_group, probe=probe)
    list(train(rounds=1, mu=1, sampling=Sampling(prompts=3, num_samples=4), hooks=hooks))
    assert calls == [((12,), 4)] and seen == [(3, 3)]


def test_the_missing_rows_move_nothing_not_even_through_the_kl(fresh):
    """The same update as when those rows' tokens are others."""
    values = [1.0, 0.0, None, 0.5] + [0.0, None, 1.0, 1.0]
    sampling = Sampling(prompts=["12+34=", "50+51="], num_samples=4)
    settings = {"rounds": 1, "mu": 2, "sampling": sampling, "beta": 1.0, "lr": 1e-3}
    settings |= {"optimizer": "sgd", "max_norm": None}

    def others(policy, prompts, **sampling):
        out = rollout.generate(policy, prompts, **sampling)
        out.tokens[[2, 5], 0] = (out.tokens[[2, 5], 0] + 1) % 10 + 2
        return out

    after = []
    for generate in (rollout.generate, others):
        policy = copy.deepcopy(fresh)
        hooks = Hooks(reward=constant(values), generate=generate)
        list(train(policy=policy, hooks=hooks, **settings))
        after.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    torch.testing.assert_close(*after, rtol=0, atol=1e-6)
    assert not torch.allclose(after[0], torch.cat([p.detach().flatten() for p in fresh.model.parameters()]))


def test_a_round_without_any_reward_changes_nothing_and_goes_on(fresh):
    before = copy.deepcopy(fresh.model.state_dict())
    rounds = iter([[None] * 8, [None, 1.0] + [None] * 6])
    reward = lambda prompts, completions: next(rounds)
    hooks, sampling = Hooks(micro_batches=2, reward=reward), Sampling(prompts=2, num_samples=4)
    steps = list(train(policy=fresh, rounds=2, mu=2, sampling=sampling, hooks=hooks))
    assert len(steps) == 4 and all(torch.equal(before[k], v) for k, v in fresh.model.state_dict().items())
    assert all(step.grad_norm == 0 and math.isnan(step.kl) for step in steps)
    assert math.isnan(steps[0].reward) and steps[2].reward == 1.0


def test_a_controller_of_beta_is_updated_after_every_step():
    beta = kl.AdaptiveBeta(0.04)
    steps = list(train(beta=beta, seed=0, **QUICK | {"rounds": 2}))
    assert [step.extra["beta"] for step in steps[:2]] == [0.04, pytest.approx(0.032)]  # the first KL is 0
    assert beta.value != steps[-1].extra["beta"]
