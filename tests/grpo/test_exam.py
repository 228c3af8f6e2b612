"""The exam: exact, on prompts that nobody trains on, the same for any model; and its picture."""

import math
import random
from functools import partial

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import labkit
from labkit import events
from labkit.events import Exam, Run, Step
from labkit.grpo import Hooks, Safety, Sampling, exam, grads, policy, rollout, task, train


@pytest.mark.parametrize("name", task.TASKS)
def test_what_is_held_out_is_never_drawn_and_is_spread_over_all_digits(name):
    family = task.get(name)
    held_out = set(family.held_out())
    assert len(held_out) == 150
    assert not held_out & set(family.sample(30_000, random.Random(0)))
    assert {prompt[-2] for prompt in held_out} == set("0123456789") == {prompt[0] for prompt in held_out}


@pytest.mark.parametrize("name", task.TASKS)
def test_the_chance_is_the_share_of_right_answers_among_many_samples(tiny, name):
    family = task.get(name)
    prompts = family.held_out()
    out = rollout.generate(tiny, prompts, num_samples=64, generator=torch.Generator().manual_seed(0))
    right = sum(task.rewards([p for p in prompts for _ in range(64)], out.texts)) / len(out.texts)
    exact = exam.chance(tiny.model, tiny.tokenizer, name)
    spread = (exact * (1 - exact) / len(out.texts)) ** 0.5
    assert abs(right - exact) < 4 * spread + 1e-3


def test_a_row_of_a_batch_has_the_chance_that_it_has_alone(tiny):
    prompts, answers = ["12+34=", "77+88=", "00+05="], ["46", "165", "5"]  # answers of two, three and one digit
    together = exam.paper_of(tiny.tokenizer, prompts, answers).chances(tiny.model)
    for prompt, answer, chance in zip(prompts, answers, together, strict=True):
        alone = exam.paper_of(tiny.tokenizer, [prompt], [answer]).chances(tiny.model)
        ids = torch.tensor([tiny.tokenizer(prompt + answer)["input_ids"] + [1]])
        logp = tiny.model(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[5:].sum()
        torch.testing.assert_close(torch.stack([chance, alone[0]]), logp.exp().expand(2), rtol=1e-4, atol=1e-7)


def test_it_is_sat_without_dropout_and_every_module_keeps_its_mode(tiny):
    config = GPT2Config(vocab_size=16, n_layer=1, n_embd=16, n_head=2, n_positions=16, resid_pdrop=0.5)
    model = GPT2LMHeadModel(config).train()
    model.transformer.h[0].eval()  # frozen by its owner
    before = [module.training for module in model.modules()]
    chances = [exam.chance(model, tiny.tokenizer, "max") for _ in range(2)]
    assert chances[0] == chances[1]
    assert [module.training for module in model.modules()] == before
    assert all(p.grad is None for p in model.parameters())


def test_an_exam_may_ask_some_prompts_alone(tiny):
    asked = ["22+78=", "45+56="]
    rows = exam.paper_of(tiny.tokenizer, asked, ["100", "101"]).chances(tiny.model)
    (before, *_) = train(rounds=1, mu=1, exam=asked)
    assert isinstance(before, Exam) and before.mean == pytest.approx(float(rows.mean()))
    with pytest.raises(ValueError, match="no prompt of the family 'max'"):
        list(train(["add", "max"], rounds=1, exam=asked))


def test_what_cannot_be_examined_is_named(tiny):
    with pytest.raises(ValueError, match="task 'mul'"):
        exam.chance(tiny.model, tiny.tokenizer, "mul")
    with pytest.raises(ValueError, match="shorter"):
        exam.paper_of(tiny.tokenizer, ["1", "2"], ["1"])
    endless = policy.load("tiny", "cpu").tokenizer
    endless.eos_token = None
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        exam.chance(tiny.model, endless, "add")


def test_a_run_sits_it_before_the_first_round_and_after_each_and_asking_changes_nothing():
    settings = {"task": ("add", "max"), "rounds": 2, "mu": 2, "sampling": Sampling(prompts=2), "seed": 3}
    plain, examined = list(train(**settings)), list(train(exam=True, **settings))
    exams = [event for event in examined if isinstance(event, Exam)]
    steps = [event for event in examined if isinstance(event, Step)]
    assert [e.round for e in exams] == [0, 1, 2] and [list(e.chances) for e in exams] == [["add", "max"]] * 3
    assert [type(event) for event in examined] == [Exam, Step, Step, Exam, Step, Step, Exam]
    assert [step.loss for step in steps] == [step.loss for step in plain]


def test_after_a_round_that_broke_the_parameters_the_restored_policy_sits_it():
    def ruin(model, optimizer):
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))
        return grads.Update(1.0)

    restore, ruined = Safety(restore=True), Hooks(update=ruin)
    exams = [e.mean for e in train(rounds=1, mu=1, safety=restore, hooks=ruined, exam=True) if isinstance(e, Exam)]
    assert exams[0] == exams[1] > 0.4


def test_trains_defaults_learn_and_a_run_without_steps_does_not():
    def gain(**settings):
        exams = [e.mean for e in train(seed=100, exam=True, **settings) if isinstance(e, Exam)]
        return exams[-1] - exams[0]

    assert gain() > 0.18
    no_step = Hooks(update=lambda model, optimizer: grads.Update(0.0, skipped=True))
    assert gain(rounds=1, hooks=no_step) == 0


def examined(*chances, signature="ok"):
    exams = [Exam(round_, {"add": chance, "max": 0.5}) for round_, chance in enumerate(chances)]
    return Run(exams, events.Outcome(signature))


def test_a_run_gives_its_exams_by_family_and_they_survive_saving(tmp_path):
    run = examined(0.4, 0.6)
    assert run.exam("add") == [0.4, 0.6] and run.exam() == [0.45, 0.55] and run.exam("max") == [0.5, 0.5]
    assert Run.load(run.save(tmp_path / "run.jsonl")).exam("add") == [0.4, 0.6]
    with pytest.raises(KeyError, match="copy"):
        run.exam("copy")


def test_the_picture_takes_lists_dicts_and_single_runs_and_draws_one_that_died():
    arms = {"bug": [examined(0.4, 0.3, signature="oom")], "fix": {0: examined(0.4, 0.6), 1: examined(0.4, 0.7)}}
    picture = labkit.learning_curves({**arms, "alone": examined(0.4)}, title="fix learns")
    assert picture.png.startswith(b"\x89PNG") and "4 runs" in repr(picture)
    wrong = {"at least one arm": {}, "at least one run": {"bug": []}, "exam=True": {"bug": Run([Step(1)])}}
    for message, runs in wrong.items():
        with pytest.raises(ValueError, match=message):
            labkit.learning_curves(runs)


def test_a_policy_of_nan_gives_no_answer_and_is_drawn_at_0():
    draw = partial(labkit.learning_curves, title="the same title")
    assert draw({"bug": [examined(0.4, math.nan)]}).png == draw({"bug": [examined(0.4, 0.0)]}).png


def test_a_dashboard_has_the_newest_exam_at_every_step_and_counts_steps_alone():
    from labkit.display.tracks import Rows, Track

    track = Track("run", "one", Rows(["kl", "exam", "exam/max"]))
    track.feed([Exam(0, {"add": 0.2, "max": 0.4}), Step(1, kl=0.1), Step(2, kl=0.2), Exam(1, {"add": 0.4, "max": 0.6})])
    assert track.rows.column("step") == [0, 1, 2, 2]
    assert track.rows.column("exam") == pytest.approx([0.3, 0.3, 0.3, 0.5])
    assert track.rows.column("exam/max") == [0.4, 0.4, 0.4, 0.6]
    assert track.rows.column("kl")[1:] == [0.1, 0.2, 0.2] and not track.rows.broken
    assert track.status() == "2 steps"
    unasked = Track("run", "one", Rows(["kl"]))
    unasked.feed([Exam(0, {"add": 0.2}), Step(1, kl=0.1)])
    assert len(unasked.rows) == 1
