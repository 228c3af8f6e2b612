"""Deliberate mistakes in lesson 02: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug run adds": [("panels=PANELS, inner_update=copy_, **RUN\n", "panels=PANELS, **RUN\n")],
    "the fix run overwrites": [
        (
            'title="add_: H trains", panels=PANELS, **RUN',
            'title="add_: H trains", panels=PANELS, inner_update=copy_, **RUN',
        )
    ],
    "the fix run steps inside the loop": [
        (
            'title="add_: H trains", panels=PANELS, **RUN',
            'title="add_: H trains", panels=PANELS, inner_update=step_inside, **RUN',
        )
    ],
    "the bug run has its objectives exchanged": [
        (
            "panels=PANELS, inner_update=copy_, **RUN\n",
            'panels=PANELS, inner_update=copy_, **{**RUN, "task": ("copy", "max")}\n',
        )
    ],
    "zero_grad inside is step inside, and the other way round": [
        (
            '{"zero_grad inside": zero_inside, "zero_grad, step inside": step_inside}',
            '{"zero_grad inside": step_inside, "zero_grad, step inside": zero_inside}',
        )
    ],
    "the swapped run is not swapped": [
        ('{"inner_update": copy_, "task": ("copy", "max")}', '{"inner_update": copy_, "task": ("max", "copy")}')
    ],
    "both bugs is copy_ alone": [("functools.partial(step_inside, accumulate=overwrite)", "copy_")],
    "the exact run adds, the other overwrites": [
        ("    inner_update=copy_, **EXACT,\n", "    **EXACT,\n"),
        ("moving = sandbox.run(compared, **EXACT)", "moving = sandbox.run(compared, inner_update=copy_, **EXACT)"),
    ],
    "the last objective is not solved": [('"temperature": 0.3', '"temperature": 2.0')],
    "the first objective is solved too": [
        ('"prompts": ASKED + SOLVED', '"prompts": ["11<99=", "12<98=", "10<97=", "13<99="] + SOLVED')
    ],
    "every look-alike is the sound first step": [
        ('{"overwritten": probe(tiny(), inner_update=copy_)', '{"overwritten": probe(tiny())'),
        ("probe(tiny(), update=steps_a_copy)", "probe(tiny())"),
        ('probe(tiny(), task="copy", prompts=SOLVED)', "probe(tiny())"),
        ("half.model.bfloat16()", "half.model.float()"),
    ],
    "the first step is the tied one": [
        ('"first step": probe(tiny())', '"first step": probe(tiny(), task="copy", prompts=SOLVED)')
    ],
    "a look-alike starts away from its reference": [
        ('CASES["frozen"] = probe(tiny(), update=steps_a_copy)', 'CASES["frozen"] = {**CASES["first step"], "KL": 0.2}')
    ],
    "the frozen model is not frozen": [("policy.model.requires_grad_(False)", "policy.model.requires_grad_(True)")],
    "a missing kl is read as 0": [("absent = Step.from_log(log).kl", 'absent = Step.from_log({"kl": 0.0, **log}).kl')],
    "mean of means and whole batch exchanged": [
        ("part.sum() * n,", "whole.sum(),"),
        ("whole.sum(),  # the tokens", "part.sum() * n,  # the tokens"),
    ],
    "all completions are equally long": [("-out.mask.sum(1).float(), 8", "-out.mask.sum(1).float().fill_(1), 8")],
    "without accelerator.accumulate": [("with accelerator.accumulate(model):", "if True:")],
    "the remedies come without the bug": [('{"inner_update": copy_, **remedy}', "remedy")],
    "the checks judge the bug as the fix": [
        ("fixed = checks.accumulated_step(a_step())", "fixed = checks.accumulated_step(a_step(copy_))"),
        ("written = checks.accumulation(grads.accumulate)", "written = checks.accumulation(overwrite)"),
    ],
    "sound functions among the bugs": [
        ('"copy_": a_step(copy_)', '"copy_": a_step()'),
        ('{"copy_": overwrite,', '{"copy_": grads.accumulate,'),
    ],
}
