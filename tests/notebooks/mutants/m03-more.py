"""Deliberate mistakes in the KL laboratory, each of which must break a verdict: see tests/notebooks/claims.py."""

K3 = "    d = ref_logp - logp\n    return d.exp() - d - 1\n\n\ndef k3_times_ratio"

MUTANTS = {
    "k1 is k3": [("    return logp - ref_logp\n", "    return k3(logp, ref_logp, old_logp)\n")],
    "k1 has its sign turned": [("    return logp - ref_logp\n", "    return ref_logp - logp\n")],
    "k3 is k2": [(K3, K3.replace("d.exp() - d - 1", "d.square() / 2"))],
    "the ratio is left out": [("    return (logp - old_logp).exp() * k3(", "    return k3(")],
    "the solution is k3": [
        ("    return ratio * (logp - ref_logp)", "    return k3(logp, ref_logp, old_logp) + 0 * ratio")
    ],
    "old draws are fresh": [("lab.of_each(measure, COMPARED, old)", "lab.of_each(measure, COMPARED, policy)")],
    "the step goes up the gradient": [("exact_kl(policy - step)", "exact_kl(policy + step)")],
    "no limit is a limit": [('{"max_norm": None}', '{"max_norm": 1.0}')],
    "the limit of 4 is left out": [('{"max_norm": 4.0}', '{"max_norm": None}')],
    "no KL is k1": [("    return 0 * logp\n", "    return logp - ref_logp\n")],
    "the KL is not in the loss": [("penalty = beta * estimator(", "penalty = 0 * estimator(")],
    "the log's k3 has the ratio": [('LOGGED = {"k3": k3,', 'LOGGED = {"k3": k3_times_ratio,')],
}
