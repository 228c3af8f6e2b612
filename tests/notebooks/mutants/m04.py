"""Deliberate mistakes in lesson 04, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug is the fix": [
        (
            "    return sample(logits).repeat_interleave(num_samples)",
            "    return rollout.each_row(logits, num_samples, sample)",
        )
    ],
    "the fix is the bug": [
        (
            'fix = await labkit.watch(examined, label="fix",',
            'fix = await labkit.watch(examined, label="fix", generate=broadcast,',
        ),
        (
            "fixes = [fix, *sandbox.run_all(examined, OTHERS, **RUN)",
            "fixes = [fix, *sandbox.run_all(examined, OTHERS, generate=broadcast, **RUN)",
        ),
    ],
    "nothing is trained": [('"optimizer": "sgd", "lr": 0.15}', '"optimizer": "sgd", "lr": 1e-6}')],
    "the usual settings train nothing, the runs stop early": [
        ('"optimizer": "adamw", "lr": 2e-4', '"optimizer": "adamw", "lr": 1e-9'),
        (
            "for step in train(policy, device=device, rounds=rounds, **settings):",
            "for step in train(policy, device=device, rounds=rounds - 1, **settings):",
        ),
    ],
    "own and copied exchanged in the groups": [
        (
            "fair, same = groups(rollout.generate), groups(broadcast)",
            "same, fair = groups(rollout.generate), groups(broadcast)",
        )
    ],
    "another temperature for one sampler": [
        (
            "fair, same = groups(rollout.generate), groups(broadcast)",
            "fair, same = groups(rollout.generate, temperature=1.6), groups(broadcast)",
        )
    ],
    "pass@k for k - 1, and with replacement": [
        ("1 - comb(n - right, k) / comb(n, k)", "1 - (1 - right / n) ** k"),
        ("1 - (1 - f * r) ** k)", "1 - (1 - f * r) ** (k - 1))"),
    ],
    "exact formulas exchanged": [
        ("(f * (1 - (1 - r) ** k) if copied else", "(f * (1 - (1 - r) ** k) if not copied else"),
        (
            "(1 - f + f * ((1 - r) ** n + r**n) if copied else own)",
            "(1 - f + f * ((1 - r) ** n + r**n) if not copied else own)",
        ),
    ],
    "the controls are exchanged with what they control": [
        (
            "per_row=w, temperature=2.0)[0] for w in (True, False)",
            "per_row=w, temperature=2.0)[0] for w in (False, True)",
        ),
        ("signal(moved, fresh, old)[0]", "signal(moved, fresh, old, clip=1e9)[0]"),
    ],
    "the controls keep what they should take away": [("for b in (0.04, 0.0)", "for b in (0.04, 0.04)")],
    "the second token is silent": [
        (
            "loss.grpo(logp, old, advantages, clip=clip).loss",
            "loss.grpo(logp, old, advantages, clip=clip).loss * (out.mask.cumsum(1) == 1)",
        )
    ],
    "other tokens are cut off": [
        ('{"token": 1, "generate": broadcast, "seed": SEED}', '{"token": 2, "generate": broadcast, "seed": SEED}'),
        ('{"token": 0, "seed": seed}', '{"token": 2, "seed": seed}'),
    ],
    "the random way is twenty times as long, the way not gone backwards": [
        ("e.norm() / e.numel() ** 0.5", "20 * e.norm() / e.numel() ** 0.5"),
        ("[s + x * w for s, w in zip(start, way)]", "[s + max(x, 0) * w for s, w in zip(start, way)]"),
    ],
    "look-alikes are healthy": [
        ("sampler(OPEN, temperature=1e-4)", "sampler(OPEN)"),
        ("manual_seed(seed) for _ in range(n)]", "manual_seed(seed + i) for i in range(n)]"),
        ("sampler(SURE, top_p=0.85)", "sampler(OPEN, top_p=0.85)"),
    ],
    "the healthy sampler is sure": [
        ('LOOKS = {"healthy": sampler(OPEN)', 'LOOKS = {"healthy": sampler(SURE, top_p=0.85)')
    ],
    "eight rows for 32, wider groups with own tokens": [
        ('"copied, 32 rows": (32, True, 1.0)', '"copied, 32 rows": (8, True, 1.0)'),
        ("batch_of(POLICY, broadcast, n=32)", "batch_of(POLICY, rollout.generate, n=32)"),
        ("exact_pass(8, True, 1.6), exact_pass(8, False, 1.6)", "exact_pass(8, False, 1.6), exact_pass(8, True, 1.6)"),
    ],
    "half the rows are copied, one row fewer": [
        ("rows[:, 1:-1] = rows[:, :1]", "rows[:, 1:2] = rows[:, :1]"),
        ("chance, logits = vocab ** (1 - n)", "chance, logits = vocab ** -n"),
    ],
    "the reward of one batch for all rounds": [
        (
            'jump = mean(abs(a - b) for a, b in zip(fix["reward"], fix["reward"][1:]',
            'jump = mean(abs(a - b) for a, b in zip(fix["reward"], fix["reward"]',
        )
    ],
}
