"""Deliberate mistakes in lesson 14, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the solution keeps 0.2": [
        (
            "    one_tokens_share = 0.2 / mask.sum(1, keepdim=True)  # was: 0.2",
            "    one_tokens_share = 0.2 + 0.0 * mask.sum(1, keepdim=True)",
        )
    ],
    "the bug is narrow": [("below=0.2, above=0.2):  # logp", "below=0.013, above=0.013):  # logp")],
    "the ratio is that of the sum": [(" / part.mask.sum(1, keepdim=True)).exp()  # [B, 1]", ").exp()  # [B, 1]")],
    "the narrow end is the other one": [
        ("partial(gspo, below=NARROW)", "partial(gspo, above=NARROW + 0)"),
        ("partial(gspo, above=NARROW)", "partial(gspo, below=NARROW)"),
    ],
    "one update is eight": [("mu=1, rounds=16", "mu=8, rounds=5")],
    "the paper's range is wide": [('"3e-4": (3e-4, 4e-4)', '"3e-4": (0.2, 0.2)')],
    "three times the rate is the rate": [("lr=3e-4)", "lr=1e-4)")],
}
