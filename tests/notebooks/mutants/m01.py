"""Deliberate mistakes in lesson 01, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug has a guard": [
        ("    optimizer.step()\n    return grads.Update(norm)", "    return grads.guard()(model, optimizer)")
    ],
    "the bug's KL is k2": [("return d.exp() - d - 1", "return d.square() / 2")],
    "the KL term stays": [('"beta": 0.04 if kl_term else 0.0', '"beta": 0.04')],
    "the rate is not lowered": [('changes[rate, kl_term] = {"lr": rate,', 'changes[rate, kl_term] = {"lr": 0.05,')],
    "the solution skips everything": [("if not norm <= 10:", "if not norm <= 0:")],
    "the solution lets NaN through": [("if not norm <= 10:", "if norm > 10:")],
    "the solution does not limit": [("if norm > 0.3:", "if False:")],
    "the fix is the bug": [('update.whose: {"hooks": mine}}', 'update.whose: {"hooks": plain}}')],
    "no 0 / 0": [("Hooks(**parts, policy_loss=zero_by_zero)", "Hooks(**parts)")],
    "the skip alone limits, too": [("grads.guard(max_norm=1e9)", "grads.guard()")],
    "one update a round is eight": [('ONCE = {"mu": 1, "rounds": 8}', 'ONCE = {"rounds": 3}')],
    "one update a round is limited": [("SEEDS, **SGD | ONCE)", 'SEEDS, **SGD | ONCE | {"lr": 0.005})')],
    "AdamW at 1e-3 is slow": [('ADAMW | {"lr": 1e-3}', "ADAMW")],
}  # fmt: skip
