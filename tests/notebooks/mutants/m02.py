"""Deliberate mistakes in lesson 02, each of which must break a verdict: see tests/notebooks/claims.py."""

INSIDE = "    for loss in losses:\n        optimizer.zero_grad()\n        loss.backward()\n"

MUTANTS = {
    "the bug adds": [
        (
            "strict=True):\n        parameter.grad = gradient\n",
            "strict=True):\n        parameter.grad = gradient + (0 if parameter.grad is None else parameter.grad)\n",
        )
    ],
    "the solution overwrites": [("parameter.grad.add_(gradient)", "parameter.grad.copy_(gradient)")],
    "the solution adds the first gradient twice": [("parameter.grad.add_(gradient)", "parameter.grad.mul_(2)")],
    "bug and sum exchanged where max comes first": [
        (
            '{"bug": with_bug[LAST_NOT_SOLVED], "sum": sum_of_max}',
            '{"bug": sum_of_max, "sum": with_bug[LAST_NOT_SOLVED]}',
        )
    ],
    "the wanted gradient is the last loss's": [("batch.losses[first] + batch.losses[second]", "batch.losses[second]")],
    "the box's second gradient is not written": [("        write(parameters, gradients[second])\n", "")],
    "a step for each loss is a step behind the loop": [
        ("Hooks(inner_update=a_step_for_each_loss)", "Hooks(inner_update=partial(update_with, write))")
    ],
    "zero_grad stands before the loop": [
        (INSIDE, "    optimizer.zero_grad()\n    for loss in losses:\n        loss.backward()\n")
    ],
}
