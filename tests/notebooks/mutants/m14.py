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
        ("by(partial(gspo, below=NARROW))", "by(partial(gspo, above=NARROW + 0))"),
        ("by(partial(gspo, above=NARROW))", "by(partial(gspo, below=NARROW))"),
    ],
    "a quarter of the rate is the rate": [("by(gspo, lr=2.5e-5)", "by(gspo, lr=1e-4)")],
    "three times the rate is the rate": [("by(gspo_by_length, lr=3e-4)", "by(gspo_by_length, lr=1e-4)")],
}
