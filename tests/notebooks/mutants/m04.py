"""Deliberate mistakes in lesson 04, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug is the fix": [
        (
            "    return sample(logits).repeat_interleave(num_samples)",
            "    return rollout.each_row(logits, num_samples, sample)",
        )
    ],
    "the fix is the bug; look-alikes are healthy; the heated samplers exchanged": [
        ("title=TITLE, **WATCH)\nfixes", "title=TITLE, generate=broadcast, **WATCH)\nfixes"),
        ("examined, OTHERS, **RUN)", "examined, OTHERS, generate=broadcast, **RUN)"),
        ("sampler(OPEN, temperature=1e-4)", "sampler(OPEN)"),
        ('"each row seeded anew": seeded_rows', '"each row seeded anew": sampler(OPEN)'),
        ("sampler(SURE, top_p=0.85)", "sampler(OPEN, top_p=0.85)"),
        ("exact_pass(8, True, 1.6), exact_pass(8, False, 1.6)", "exact_pass(8, False, 1.6), exact_pass(8, True, 1.6)"),
    ],
    "own and copied exchanged in the groups; healthy is sure; two runs stop early; AdamW does not train": [
        ("fair, same = groups(", "same, fair = groups("),
        ('LOOKS = {"healthy": sampler(OPEN)', 'LOOKS = {"healthy": sampler(SURE, top_p=0.85)'),
        ('{seed: {"seed": seed} for seed in SEEDS[1:]}', '{s: {"seed": s, "rounds": ROUNDS - 1} for s in SEEDS[1:]}'),
        ('"optimizer": "adamw", "lr": 2e-4', '"optimizer": "adamw", "lr": 1e-9'),
    ],
    "one sampler is hotter; pass@k with replacement, and for k - 1; the third token is cut off": [
        ("groups(rollout.generate), groups", "groups(rollout.generate, temperature=1.6), groups"),
        ("1 - comb(n - right, k) / comb(n, k)", "1 - (1 - right / n) ** k"),
        ("1 - (1 - f * r) ** k)", "1 - (1 - f * r) ** (k - 1))"),
        ('{"token": 1, "generate": broadcast, "seed": SEED}', '{"token": 2, "seed": SEED}'),
        ('{"token": 0, "seed": seed}', '{"token": 2, "seed": seed}'),
        ('fix["reward"], fix["reward"][1:]', 'fix["reward"][1:], fix["reward"][1:]'),
    ],
    "exact formulas exchanged; the random way is longer, the way not gone backwards": [
        ("(f * (1 - (1 - r) ** k) if copied else", "(f * (1 - (1 - r) ** k) if not copied else"),
        ("r**n) if copied else own)", "r**n) if not copied else own)"),
        ("e.norm() / e.numel() ** 0.5", "20 * e.norm() / e.numel() ** 0.5"),
        ("[s + x * w for", "[s + max(x, 0) * w for"),
    ],
    "conditions and their controls exchanged": [
        ("for w in (True, False)", "for w in (False, True)"),
        ("(signal(moved, fresh, old)[0],)", "(signal(moved, fresh, old, clip=1e9)[0],)"),
    ],
    "the KL term stays in its control; no second token; 8 rows for 32, own ones": [
        ("for b in (0.04, 0.0)", "for b in (0.04, 0.04)"),
        ("advantages, clip=clip).loss +", "advantages, clip=clip).loss * (out.mask.cumsum(1) == 1) +"),
        ('"copied, 32 rows": (32, True, 1.0)', '"copied, 32 rows": (8, True, 1.0)'),
        ("batch_of(POLICY, broadcast, n=32)", "batch_of(POLICY, rollout.generate, n=32)"),
    ],
    "nothing is trained; few rows are copied; one row fewer": [
        ('"optimizer": "sgd", "lr": 0.15}', '"optimizer": "sgd", "lr": 1e-6}'),
        ("rows[:, 1:-1] = rows[:, :1]", "rows[:, 1:2] = rows[:, :1]"),
        ("vocab ** (1 - n), torch", "vocab ** (-n), torch"),
    ],
}
