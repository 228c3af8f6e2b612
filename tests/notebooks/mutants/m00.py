"""Deliberate mistakes in lesson 00: see tests/notebooks/claims.py."""

MUTANTS = {
    "every check of the machine is a failure": [('check.status == "fail"', 'check.status == "ok"')],
    "the exam is graded against other prompts": [
        ("task.rewards([p for p in prompts for", "task.rewards([p for p in prompts[::-1] for")
    ],
    "every family is the solved one": [
        ("prompts = family.sample(200, random.Random(SEED))", 'prompts = task.get("copy").sample(200, random.Random(SEED))')
    ],
    "seven right in eight": [
        ("one_right = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])", "one_right = torch.tensor([0, 1.0, 1, 1, 1, 1, 1, 1])")
    ],
    "the advantages are not centred": [
        ("up, *down = advantage.group_advantage(one_right, 8).tolist()", "up, *down = (one_right / one_right.std()).tolist()")
    ],
    "tied and mixed exchanged": [("(torch.ones(8), one_right))", "(one_right, torch.ones(8)))")],
    "the reference is the policy": [("ref_logp = torch.full((8, 3), -0.7)", "ref_logp = torch.full((8, 3), -0.5)")],
    "first and later updates exchanged": [
        ("for step in short if step.inner == 1]", "for step in short if step.inner > 1]"),
        ("for step in short if step.inner > 1]\noff", "for step in short if step.inner == 1]\noff"),
    ],
    "the KL of another column": [("start, end = short[0].kl, short[-1].kl", "start, end = short[0].reward, short[-1].reward")],
    "nobody trains": [("labkit.watch(\n    graded,", "labkit.watch(\n    partial(graded, update=no_step),"),
                      ('others["not trained"] = {**sixteen(SEED), "update": no_step}',
                       'others = {name: {**each, "update": no_step} for name, each in others.items()}\n'
                       'others["not trained"] = {**sixteen(SEED), "update": no_step}')],
    "the control trains": [('{**sixteen(SEED), "update": no_step}', "sixteen(SEED)")],
    "the control asks what is solved": [
        ('{**sixteen(SEED), "update": no_step}', '{**sixteen(SEED), "update": no_step, "prompts": ["99:11=", "98:12="]}')
    ],
    "a learning rate a thousand times as high": [('"mu": 2, "lr": 2e-4}', '"mu": 2, "lr": 0.2}')],
    "the run is cut short": [
        ('    yield from train(policy, "max", prompts=prompts, **settings)\n',
         '    yield from train(policy, "max", prompts=prompts, **{**settings, "rounds": 3})\n')
    ],
    "the false claim is true": [('labkit.verdict("two and two is five", 2 + 2 == 5,', 'labkit.verdict("two and two is five", True,')],
    "the check allows the deviation": [("num_samples=4, std=False)", "num_samples=4)")],
    "the check wants the deviation": [("num_samples=4, std=False)", "num_samples=4, std=True)")],
    "bug and fix exchanged in every run": [
        ('runs = {"bug": {**settings, **bug}, "fix": settings}', 'runs = {"fix": {**settings, **bug}, "bug": settings}'),
        ('{"bug": bug, "fix": fix})', '{"bug": fix, "fix": bug})'),
        ('for way, name in {"bug": "PYTORCH_ALLOC_CONF", "fix": "PYTORCH_CUDA_ALLOC_CONF"}',
         'for way, name in {"fix": "PYTORCH_ALLOC_CONF", "bug": "PYTORCH_CUDA_ALLOC_CONF"}'),
        ("= requests(), requests(empty_cache=True)", "= requests(empty_cache=True), requests()"),
    ],
    "no run has its bug": [
        ('runs = {"bug": {**settings, **bug}, "fix": settings}', 'runs = {"bug": settings, "fix": settings}'),
    ],
    "01 and 03 hold the exp": [("return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "return kl.k3_clamped(logp, ref_logp, limit=1.0)")],
    "02 adds": [("p.grad = g.clone()", "p.grad = g.clone() if p.grad is None else p.grad + g")],
    "02 looks at the last task": [('both("kl/max", bug', 'both("kl/copy", bug')],
    "04 draws each": [("return sample(logits).repeat_interleave(num_samples)", "return sample(logits.repeat_interleave(num_samples, 0))")],
    "05 keeps a number": [("graph that hangs on it\n    kept.append(model(ids).logits)", "graph that hangs on it\n    kept.append(model(ids).logits.mean().item())")],
    "05 and 11 on a card without end": [("Tap(48 * MIB)", "Tap(48 * GIB)"), ("total_memory=int(2.5 * GIB)", "total_memory=300 * GIB")],
    "07 asks torch 2.13 every time": [('f"{version}.0").honoured', '"2.13.0").honoured')],
    "15 asks for more than there is": [("[600 * MIB] * 7 + [2 * GIB]", "[600 * MIB] * 7 + [5 * GIB]")],
    "the silent three die as 01 does": [
        ('"y": "KL of the first, nats"}', '"y": "KL of the first, nats", "died": [1]}'),
    ],
}
