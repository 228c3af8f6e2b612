"""Mistakes in lesson 05 under which its verdicts must fail."""

ORDER = "[meter.empty_cache, gc.collect, lambda: remedy(kept)]"

MUTANTS = {
    "the bug keeps only numbers": [
        ("kept.append(model(input_ids=ids, labels=ids))", "kept.append(model(input_ids=ids, labels=ids).loss.detach())")
    ],
    "the evaluation is too big by itself": [("rounds=ROUNDS, rows=2)", "rounds=ROUNDS, rows=40)")],
    "the steps vary in length": [("ids = tokens(model, 8, 512)", "ids = tokens(model, 8, random.randrange(256, 512))")],
    "the rule looks at no others": [("if 0 < tried - free < others and others > total / 10:", "if False:")],
    "the rule counts only the cache": [("PIECES if tried <= free + unallocated", "PIECES if tried <= unallocated")],
    "the tidy evaluation leaves 64 MiB": [
        (
            "def evaluate_tidy(model, batches, kept):\n    model.eval()",
            "def evaluate_tidy(model, batches, kept):\n    kept.append(torch.empty(2**24))\n    model.eval()",
        )
    ],
    "expandable segments on a card of 20 GiB": [
        ("leak.replay(RUNS[name].total_memory, ON)", "leak.replay(20 * GIB, ON)")
    ],
    "too big is not too big": [("tidy.replay(int(3.5 * GIB))", "tidy.replay(5 * GIB)")],
    "only the last logits are kept": [
        ("kept.append(model(input_ids=ids).logits)", "kept[:] = [model(input_ids=ids).logits]")
    ],
    "the remedy before empty_cache": [(ORDER, "[lambda: remedy(kept), gc.collect, meter.empty_cache]")],
    "gc.collect and the remedy exchanged": [(ORDER, "[meter.empty_cache, lambda: remedy(kept), gc.collect]")],
    "no remedy": [(ORDER, "[meter.empty_cache, gc.collect, lambda: None]")],
    "losses without their graph": [
        (
            "kept.append(model(input_ids=ids, labels=ids).loss)",
            "kept.append(model(input_ids=ids, labels=ids).loss.detach())",
        )
    ],
    "nothing was shown, and no error raised": [
        ('"logits", "del logits"', '"logits.shape", "del logits"'),
        ('"grade(model(ids).logits)"', '"model(ids).logits.shape"'),
    ],
    "neither is let go": [('"3", "%reset -f out"]', '"3", "%reset -f in"]'), ("1 / 0", "1 + 0")],
    "the fix is the bug": [("labkit.watch(train, evaluate_in_scope,", "labkit.watch(train, evaluate,")],
    "the check is shown the solution for a mistake": [
        ("(the_bug, no_eval, blanket, made_up)", "(the_bug, no_eval, blanket, solution)")
    ],
    "the solution wakes every submodule": [("module.training = training", "module.training = True")],
    "an option that is not there": [('options = {"eval_accumulation_steps"', 'options = {"eval_accumulate_steps"')],
}
