import pytest
import torch
from torch import nn

from labkit import checks
from labkit.memory import eval_scope

X = torch.ones(32, 64)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 8))


def restoring(body):
    """`body` under inference mode, with each module's own flag put back."""

    def evaluate(model):
        flags = [(m, m.training) for m in model.modules()]
        model.eval()
        try:
            with torch.inference_mode():
                return body(model)
        finally:
            for module, was in flags:
                module.training = was

    return evaluate


def scoped(model):
    with eval_scope(model) as scope:
        return scope.keep(model(X))


GOOD = {
    "a number": restoring(lambda m: m(X).mean().item()),
    "a host copy": restoring(lambda m: m(X).cpu()),
    "to the host by name": restoring(lambda m: m(X).to(device="cpu")),
    "nothing": restoring(lambda m: print(end=str(m(X).shape)[:0])),
    "eval_scope": scoped,
}


@pytest.mark.parametrize("name", GOOD)
def test_an_evaluation_that_cleans_up_passes(name):
    report = checks.leaves_nothing(GOOD[name], network())
    assert report and not report.hint, report


HISTORY = []
LAST = {}


def last_only(model):
    LAST["logits"] = model(X)


def graph_held_by_a_host_loss(model):
    with torch.enable_grad():
        HISTORY.append(model(X).mean().cpu())


def blanket_train(model):
    model.eval()
    with torch.inference_mode():
        score = model(X).mean().item()
    model.train()
    return score


def gradients_on(model):
    return model(X).mean().item()


def grad_mode_left_off(model):
    flags = [(m, m.training) for m in model.modules()]
    torch.set_grad_enabled(False)
    score = model(X).mean().item()
    for module, was in flags:
        module.training = was
    return score


def attribute(model):
    model.last = model(X).detach()


BAD = {
    "a list outside": (restoring(lambda m: HISTORY.append(m(X))), "Every call leaves more"),
    "the last logits": (restoring(last_only), "still holds"),
    "an attribute of the model": (restoring(attribute), "holds"),
    "the result": (restoring(lambda m: m(X)), "result is on the device"),
    "a view of the result": (restoring(lambda m: {"row": [m(X)[0]]}), "result is on the device"),
    "a graph": (graph_held_by_a_host_loss, "graph"),
    "gradients on": (gradients_on, "gradients on"),
    "blanket train()": (blanket_train, "model.train()"),
    "grad mode": (grad_mode_left_off, "Grad mode"),
    "no model": (lambda m: 0.0, "did not run"),
    "a raise": (lambda m: 1 / 0, "raised"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_evaluation_that_leaves_something_fails_and_says_what(name):
    evaluate, words = BAD[name]
    HISTORY.clear(), LAST.clear()
    report = checks.leaves_nothing(evaluate, network())
    assert not report and words in report.hint, report
    assert torch.is_grad_enabled()


def test_the_models_own_flags_survive_a_bad_evaluation():
    model = network()
    model[1].eval()
    before = [m.training for m in model.modules()]
    checks.leaves_nothing(blanket_train, model)
    assert [m.training for m in model.modules()] == before
    assert not model._forward_pre_hooks


def test_what_is_no_model_is_named():
    with pytest.raises(TypeError, match="expected a torch module as model, got int"):
        checks.leaves_nothing(scoped, 3)
    assert not checks.leaves_nothing(None, network())
