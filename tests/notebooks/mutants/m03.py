"""Deliberate mistakes in lesson 03, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug is a gentle k2": [("    return d.exp() - d - 1  # [B, T], nats", "    return d.square() / 2")],
    "the solution keeps k3": [
        ("    return d.square() / 2  # was: d.exp()", "    return d.clamp(max=10).exp() - d - 1  # was: d.exp()")
    ],
    "the bounded solution is not bounded": [
        ("    return torch.where(d < 0.5, d.square() / 2, d / 2 - 0.125)", "    return d.square() / 2")
    ],
    "the far tokens keep their KL": [
        ("return torch.where(ref_logp - logp > lab.FAR_FROM, 0.0, k3(logp, ref_logp))", "return k3(logp, ref_logp)")
    ],
    "the limit limits nothing": [
        ('"SGD, norm limited to 1": {"max_norm": 1.0}', '"SGD, norm limited to 1": {"max_norm": None}')
    ],
    "k2 is bounded, too": [
        ("    return d.square() / 2  # was: d.exp()", "    return d.abs().clamp(max=0.5) * d.abs()  # was: d.exp()")
    ],
    "AdamW at 1e-3 is slow": [('{"optimizer": "adamw", "lr": 1e-3}', '{"optimizer": "adamw", "lr": 1e-5}')],
}
