"""Deliberate mistakes in lesson 03, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug is a gentle k2": [("    return delta.exp() - delta - 1", "    return delta**2 / 2")],
    "the fix is the bug": [("kl=RatioK3(), **WATCH", "kl=k3_as_written, **WATCH")],
    "the controls are not controls: KL term left on, frozen β off, old tokens, no training": [
        ("BetaUntil(kick, 0)", "BetaUntil(kick, 1)"),
        ("BetaUntil(calm, 1)", "BetaUntil(calm, 0.0)"),
        ('{"mu": 1, "rounds": 2 * ROUNDS}', '{"mu": 4}'),
        ('{"beta": BetaUntil(calm, 0)}', '{"beta": BetaUntil(calm, 0), "lr": 1e-6}'),
    ],
    "the look-alikes are healthy runs": [
        ("ref_logp.roll(1, 1)", "ref_logp"),
        ('{"lr": 0.2, "beta": 0.0', '{"beta": 0.0'),
    ],
    "columns exchanged, slopes sorted upwards": [
        ('noisy["k3"]', 'noisy["k3 × ratio"]'),
        ('pull, reward_pull = bug["pull"]', 'reward_pull, pull = bug["pull"]'),
        ("sort(descending=True)", "sort()"),
    ],
    "before and after the loss exchanged": [
        ('max(bug["d_max"][:lost])', 'max(bug["d_max"][lost:])'),
        ('min(bug["exact_kl"][lost:])', 'min(bug["exact_kl"][:lost])'),
    ],
    "the two forms exchanged, the digits not lost": [
        ("off(lambda d: d.exp() - d - 1, 1e-4)", "off(lambda d: torch.expm1(d) - d, 1e-4)"),
        ("for d in (1e-4, 1e-6))", "for d in (1e-4, 1e-4))"),
    ],
    "tokens drawn from the reference": [("logits.detach().softmax(-1)", "REF.softmax(-1)")],
    "the mean for the noise": [("moments(f, shift)[1]", "moments(f, shift)[0]")],
    "fresh tokens in the small run": [("(HOME.exp() * kl(", "(logits.detach().softmax(-1) * kl(")],
    "the output clamp clamps the input": [
        ("return k3_as_written(logp, ref_logp).clamp(max=10)", "return k3_clamped(logp, ref_logp)")
    ],
    "the input is clamped at 1": [("INPUT: k3_clamped}", "INPUT: partial(k3_clamped, limit=1.0)}")],
    "nothing is clipped": [("grads.guard(1.0, skip_above=1e9)", "grads.guard(1e9, skip_above=1e9)")],
    "the report's clamp is k2": [("(ref_logp - logp).clamp(-10, 10).clamp(0, 10)", "(ref_logp - logp).square() / 2")],
    "pull for value, and the wrong side of d": [
        ('at(k3, 3, "value")', "at(k3, 3)"),
        ("at(k3, -9) / at(k1, -9)", "at(k3, 9) / at(k1, 9)"),
    ],
    "fresh and old tokens exchanged, k1 and the ratio exchanged": [
        ('read("k3", 1)', 'read("k3", 2)'),
        ('[read("k3", inner) for inner in (2, 3, 4)]', '[read("k3", 1)]'),
        ('for name in ("k1", "k3 × ratio"))', 'for name in ("k3 × ratio", "k1"))'),
    ],
    "value and loss exchanged": [
        ("as_value = {name: checks.kl_estimator(kl)", 'as_value = {name: checks.kl_estimator(kl, role="loss")'),
        ('as_loss = {name: checks.kl_estimator(kl, role="loss")', "as_loss = {name: checks.kl_estimator(kl)"),
    ],
}
