"""Deliberate mistakes in lesson 18, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "no token is a surprise": [("return total.abs() / variance.sqrt()", "return 0 * total / variance.sqrt()")],
    "every token is a surprise": [
        ("return total.abs() / variance.sqrt()", "return total.abs() / variance.sqrt().clamp(max=0.01)")
    ],
    "the whole gradient is taken for the one handed over": [
        ("get_total_norm(look.handed) / get_total_norm(whole)", "get_total_norm(whole) / get_total_norm(whole)")
    ],
    "padding is what stands behind two ends": [("ends.cumsum(1) - ends > 0", "ends.cumsum(1) - ends > 1")],
    "chance draws one token": [("(1 - look.first) ** 8)", "(1 - look.first) ** 1)")],
    "the other grader is the same": [("sum(now != then for", "sum(then != then for")],
    "nobody learns": [('"mu": 2, "lr": 2e-4', '"mu": 2, "lr": 2e-8')],
    "the rollout function reads logits one place late": [("-length - 1 : -1]", "-length:]")],
    "the doctor knows one name": [('if log["reward"][0] > 0.9:  # before', 'if log["reward"][0] > 0:  # before')],
}  # fmt: skip
