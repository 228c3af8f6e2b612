"""Deliberate mistakes in lesson 00: see tests/notebooks/claims.py."""

MUTANTS = {
    "every check of the machine is a failure": [('check.status == "fail"', 'check.status == "ok"')],
    "every family is the solved one": [("in task.TASKS.values():", 'in [task.get("copy")] * 3:')],
    "the advantages are not centred": [
        ("up, *down = advantage.group_advantage(one_right, 8).tolist()", "up, *down = (one_right * 2.5).tolist()")
    ],
    "tied and mixed exchanged, and the reference is the policy": [
        ("(torch.ones(8), one_right))", "(one_right, torch.ones(8)))"),
        ("ref_logp = torch.full((8, 3), -0.7)", "ref_logp = torch.full((8, 3), -0.5)"),
    ],
    "first and later updates exchanged, and another column for the KL": [
        ("for step in short if step.inner == 1]", "for step in short if step.inner > 1]"),
        ("for step in short if step.inner > 1]\noff", "for step in short if step.inner == 1]\noff"),
        ("short[0].kl, short[-1].kl", "short[0].reward, short[-1].reward"),
    ],
    "nobody trains": [
        ("labkit.watch(\n    graded,", "labkit.watch(\n    partial(graded, update=no_step),"),
        ("for seed in (SEED + 1, SEED + 2)}", 'for seed in ()} | {"seed 1": {**sixteen(1), "update": no_step}}'),
    ],
    "the control trains": [('{**sixteen(SEED), "update": no_step}', "sixteen(SEED)")],
    "of the control's rewards only one round": [
        ("for step in ghost.steps if step.inner == 1]", "for step in ghost.steps if step.round == 1]")
    ],
    "a learning rate out of the world, and no guard": [
        ('"mu": 2, "lr": 2e-4}', '"mu": 2, "lr": 2e9, "update": grads.plain_step, "check": "off"}')
    ],
    "the claim in the other process is true": [("2 + 2 == 5,", "2 + 3 == 5,")],
    "the check wants the deviation": [("num_samples=4, std=False)", "num_samples=4, std=True)")],
    "bug and fix exchanged in every run": [
        ('{"bug": {**settings, **bug}, "fix": settings}', '{"fix": {**settings, **bug}, "bug": settings}'),
        ('{"bug": bug, "fix": fix})', '{"bug": fix, "fix": bug})'),
        ('"bug": "PYTORCH_ALLOC_CONF", "fix": "PYTORCH_CUDA', '"fix": "PYTORCH_ALLOC_CONF", "bug": "PYTORCH_CUDA'),
    ],
    "the bugs of 01 to 05 are none": [
        ("torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "kl.k3_clamped(logp, ref_logp, limit=1.0)"),
        ("p.grad = g.clone()", "p.grad = g.clone() if p.grad is None else p.grad + g"),
        ("sample(logits).repeat_interleave(num_samples)", "sample(logits.repeat_interleave(num_samples, 0))"),
        ("kept.append(model(ids).logits)", "kept.append(model(ids).logits.mean().item())"),
    ],
    "cards without end": [
        ("Tap(48 * MIB)", "Tap(48 * GIB)"),
        ("total_memory=int(2.5 * GIB)", "total_memory=300 * GIB"),
        ("Allocator(8 * GIB, settings)", "Allocator(800 * GIB, settings)"),
    ],
    "07 asks the newest torch every time, 15 asks for more than there is": [
        ('f"{version}.0").honoured', '"2.13.0").honoured'),
        ("[600 * MIB] * 7 + [2 * GIB]", "[600 * MIB] * 7 + [5 * GIB]"),
    ],
    "who died is exchanged": [('died = [] if runs["bug"].outcome else', 'died = [] if not runs["bug"].outcome else')],
    "09, 10 and 12 without their bug": [
        ('if name == "fix":\n            model.resize', "if name:\n            model.resize"),
        ("own = each[:32].mean() + each[32:].mean()", "own = each.sum()"),
        ('look["bug"].append(sum(marks) / len(rows))', 'look["bug"].append(mean(marks))'),
    ],
    "10 without its fix": [('"fix": each.mean()}', '"fix": own}')],
    "06, 08 and 13 without their bug": [
        ('"bug": (k * cos[:tokens]).dtype', '"bug": k.dtype'),
        ('{"bug": {}, "fix": {"do_sample": True}}', '{"bug": {"do_sample": True}, "fix": {"do_sample": True}}'),
        ('kl = load() if name == "fix" else kl', "kl = load()"),
    ],
    "06, 08 and 13 without their fix": [
        ('"fix": k.dtype}', '"fix": torch.float32}'),
        ('{"bug": {}, "fix": {"do_sample": True}}', '{"bug": {}, "fix": {}}'),
        ('kl = load() if name == "fix" else kl', "pass"),
    ],
}
