import copy
import functools
import gc

import pytest
import torch
from torch import nn

from labkit import checks
from labkit.memory import eval_scope

X = torch.ones(32, 64)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 8))


HOST = []


def restoring(body, eval_mode=lambda model: model.eval()):
    """`body` under inference mode, with each module's own flag put back."""

    def evaluate(model):
        flags = [(m, m.training) for m in model.modules()]
        eval_mode(model)
        try:
            with torch.inference_mode():
                return body(model)
        finally:
            for module, was in flags:
                module.training = was

    return evaluate


ROWS = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
LABELS = network().eval()(ROWS).argmax(-1)


def scoped(model):
    with eval_scope(model) as scope:
        return scope.keep(model(X))


GOOD = {
    "a number": restoring(lambda m: m(X).mean().item()),
    "a host copy": restoring(lambda m: m(X).cpu()),
    "nothing": restoring(lambda m: print(end=str(m(X).shape)[:0])),
    "eval_scope": scoped,
    # Host tensors of every kind: what a trainer makes of a result once it is off the device.
    "host copies, converted": restoring(lambda m: torch.cat([m(X).cpu().double(), m(X).to("cpu").double()])),
    "to a device object": restoring(lambda m: m(X).to(torch.device("cpu"), torch.float64)),
    "to where another one is": restoring(lambda m: m(X).to(torch.zeros(1))),
    "a numpy array": restoring(lambda m: m(X).cpu().numpy().mean(0)),
    "numpy at once": restoring(lambda m: {"logits": m(X).numpy()}),
    "a buffer on the host": restoring(lambda m: torch.zeros(2, 32, 8).copy_(m(X))),
    "a history on the host": restoring(lambda m: HOST.append(m(X).cpu())),
    "the model moved first": restoring(lambda m: m.to("cpu")(X).mean().item()),
    "metrics of every type": restoring(lambda m: {"eval_loss": m(X).mean().item(), "name": "dev", "n": (32, None)}),
    "an accuracy": restoring(lambda m: (m(ROWS).argmax(-1) == LABELS).float().mean().item()),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_evaluation_that_cleans_up_passes(name):
    report = checks.leaves_nothing(GOOD[name], network())
    assert report and not report.caution, report


HISTORY = []
LAST = {}


def graph_held_by_a_host_loss(model):
    with torch.enable_grad():
        HISTORY.append(model(X).mean().cpu())


def blanket_train(model):
    model.eval()
    with torch.inference_mode():
        score = model(X).mean().item()
    model.train()
    return score


def grad_mode_left_off(model):
    torch.set_grad_enabled(False)
    return model(X).mean().item()


def without_finally(model):
    flags = [(m, m.training) for m in model.modules()]
    model.eval()
    with torch.no_grad():
        score = model(X).mean().item()
    for module, was in flags:
        module.training = was
    return score


BAD = {
    "a list outside": (restoring(lambda m: HISTORY.append(m(X))), "Every call leaves more"),
    "an attribute of the model": (restoring(lambda m: setattr(m, "last", m(X).detach())), "holds"),
    "the result": (restoring(lambda m: m(X)), "result is on the device"),
    "a view of the result": (restoring(lambda m: {"row": [m(X)[0]]}), "result is on the device"),
    "a matrix of the weights": (restoring(lambda m: (m(X), m[0].weight @ m[0].weight)[1]), "result is on the device"),
    "a graph": (graph_held_by_a_host_loss, "graph"),
    "gradients on": (lambda m: m(X).mean().item(), "gradients on"),
    "blanket train()": (blanket_train, "model.train()"),
    "grad mode": (grad_mode_left_off, "Grad mode"),
    "averaged weights": (restoring(lambda m: (m[0].weight.data.mul_(0.99), m(X).mean().item())[1]), "weights are not"),
    "frozen": (restoring(lambda m: (m.requires_grad_(False), m(X).mean().item())[1]), "not trained any more"),
    "checkpointing": (restoring(lambda m: (vars(m).update(gradient_checkpointing=1), m(X))[0]), "put each value back"),
    "cast": (restoring(lambda m: (m.bfloat16(), m(X.bfloat16()).mean().item())[1]), "another dtype"),
    "no model": (lambda m: 0.0, "did not run"),
    "a cached answer": (functools.cache(GOOD["a number"]), "its answer is cached"),
    "never in eval mode": (restoring(lambda m: m(X).mean().item(), lambda m: None), "training mode (the model, 0, 1)"),
    "eval mode for a part": (restoring(lambda m: m(X).mean().item(), lambda m: m[0].eval()), "in training mode"),
    "eval mode too late": (restoring(lambda m: (m(X), m.eval())[0].mean().item(), lambda m: None), "in training mode"),
    "converted on the device": (restoring(lambda m: [m(X).half()]), "result is on the device"),
    "a cache of device rows": (restoring(lambda m: LAST.update(rows=list(m(X)))), "still holds"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_evaluation_that_leaves_something_fails_and_says_what(name):
    evaluate, words = BAD[name]
    HISTORY.clear(), LAST.clear(), HOST.clear()
    report = checks.leaves_nothing(evaluate, network())
    assert not report and words in report.hint, report
    assert torch.is_grad_enabled()


def test_a_loop_over_the_children_misses_a_nested_module():
    model = nn.Sequential(
        nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Sequential(nn.Tanh()))
    )

    def children_put_back(m):
        flags = [child.training for child in m]
        m.eval()
        with torch.inference_mode():
            score = m(X).mean().item()
        m.training = True
        for child, was in zip(m, flags, strict=True):
            child.train(was)
        return score

    report = checks.leaves_nothing(children_put_back, model)
    assert not report and "1.2.0" in report.hint, report


def test_the_losses_can_be_given():
    model = network().eval()
    with torch.no_grad():
        true = [model(x).mean().item() for x in (X, 2 * X)]
    both = restoring(lambda m: [m(x).mean().item() for x in (X, 2 * X)])
    assert checks.leaves_nothing(both, network(), losses=true)
    for wrong, why in (
        (restoring(lambda m: [m(X).mean().item()]), "1 numbers where 2 were expected"),
        (restoring(lambda m: [0.0, m(X).mean().item()]), "number 1 is 0"),
        (restoring(lambda m: None if m(X) is None else None), "0 numbers where 2"),
        (restoring(lambda m: [m(X).mean().item() for _ in range(2)]), "number 2 is"),
    ):
        report = checks.leaves_nothing(wrong, network(), losses=true)
        assert report.passed is False and why in report.hint, report


@pytest.mark.parametrize("name", ["averaged weights", "frozen", "cast", "blanket train()", "a list outside"])
def test_the_model_and_the_collector_are_put_back(name):
    model, frozen = network(), gc.get_freeze_count()
    model[1].eval()
    flags = [m.training for m in model.modules()]
    before = {name: t.clone() for name, t in model.state_dict().items()}
    assert not checks.leaves_nothing(BAD[name][0], model)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert [m.training for m in model.modules()] == flags and not model._forward_pre_hooks
    assert gc.get_freeze_count() == frozen


def test_a_real_model_and_a_cache(tiny):
    model = copy.deepcopy(tiny.model)
    ids = tiny.encode(["12<34=", "98<25="])[0]
    sampled = restoring(lambda m: m.generate(ids, max_new_tokens=3, do_sample=False).cpu().tolist())
    assert checks.leaves_nothing(sampled, model)
    kept = restoring(lambda m: LAST.update(cache=m(input_ids=ids).past_key_values))
    report = checks.leaves_nothing(kept, model)
    assert not report and "still holds" in report.hint, report


def test_flags_that_stay_when_the_model_raises_are_a_caution():
    report = checks.leaves_nothing(without_finally, network())
    assert report and "in a `finally`" in report.caution, report


def test_what_is_no_model_is_named():
    with pytest.raises(TypeError, match="expected a torch module as model, got int"):
        checks.leaves_nothing(scoped, 3)
    assert not checks.leaves_nothing(None, network())


def test_a_result_on_the_device_is_not_all_that_is_said_when_dropout_was_on_and_each_module_once():
    report = checks.leaves_nothing(lambda model: model(X).detach(), network())
    assert "result is on the device" in report.hint and "in training mode" in report.hint
    assert report.hint.count("the model, 0, 1") == 1
