"""`holders`: which Python objects keep tensors alive, against what is set free when they let go."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from labkit.memory import holders, owned

MIB = 2**20


class Trainer:
    def __init__(self):
        self.history, self.metrics = [], {}


@pytest.fixture(autouse=True)
def small_heap():
    gc.collect()
    gc.freeze()  # what other tests left is not looked at
    yield
    gc.unfreeze()


def network():
    return nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1024))


def loss_of(model):
    return model(torch.ones(512, 1024)).square().mean()  # each activation takes 2 MiB


def mine(found):
    return [one for one in found if "Trainer" in one.way]


def test_a_loss_in_a_list_is_named_with_the_bytes_that_its_graph_has_saved():
    model, trainer = network(), Trainer()
    trainer.history += [torch.zeros(3), {"loss": loss_of(model)}]
    (one,) = mine(holders(model))
    # the input, the first layer's Tanh and the output; the weights are the model's
    assert one.way == "Trainer.history[1]['loss']" and one.graph
    assert one.nbytes == 3 * 2 * MIB + 4
    assert str(one) == "6.00 MiB with its graph  Trainer.history[1]['loss']"
    trainer.history.clear()
    assert not mine(holders(model))


def test_two_outputs_of_one_graph_are_counted_once_and_the_larger_comes_first():
    model, trainer = network(), Trainer()
    out = model(torch.ones(512, 1024))
    trainer.metrics = {"eval": {"loss": out.square().mean(), "logits": out.detach().clone()}}
    trainer.history.append(trainer.metrics["eval"]["loss"] * 2)  # the same graph, a few bytes more
    del out
    found = mine(holders(model))
    assert sum(one.nbytes for one in found) == pytest.approx(4 * 2 * MIB, abs=100)
    assert [one.graph for one in found] == [True, False] and found[1].way == "Trainer.metrics['eval']['logits']"


def test_after_backward_a_kept_loss_holds_nothing():
    model, trainer = network(), Trainer()
    trainer.history.append(loss_of(model))
    assert mine(holders(model))
    trainer.history[0].backward()
    assert not mine(holders(model))


def test_what_model_and_optimizer_own_is_not_listed():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model).backward()
    optimizer.step()
    before = {one.way for one in holders(model, optimizer)}
    assert owned(model, optimizer) > 4 * 8 * MIB and not before
    assert sum(one.nbytes for one in holders(model)) >= 2 * 8 * MIB, "without the optimizer, its state is nobody's"


def test_an_attribute_a_closure_and_a_suspended_generator_are_named():
    model = network()

    def generator():
        kept = [loss_of(model)]
        yield kept
        kept.clear()

    def closure():
        loss = loss_of(model)
        return lambda: loss

    running, function = generator(), closure()
    next(running)
    model.last_loss = loss_of(model)
    ways = [one.way for one in holders(model)]
    assert "generator.kept[0]" in ways and "Sequential.last_loss" in ways
    assert "<lambda>.__closure__[0].cell_contents" in ways
    del function
