"""Deliberate mistakes in more/00, the playground, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the large rate is the untouched one": [
        ('"lr 0.01, no limit": pressed(NO_LIMIT, lr=1e-2)', '"lr 0.01, no limit": pressed(NO_LIMIT)')
    ],
    "the large beta is small": [
        ('"beta 5, clip": pressed(CLIP, beta=5.0)', '"beta 5, clip": pressed(CLIP, beta=0.04)')
    ],
    "what drops does not drop": [("    return 10.0", "    return 1e9")],
    "sixteen updates are one": [("pressed(CLIP, lr=5e-4, mu=16)", "pressed(CLIP, lr=5e-4, mu=1)")],
    "one update is sixteen": [("pressed(CLIP, lr=5e-4, mu=1)", "pressed(CLIP, lr=5e-4, mu=16)")],
    "sixteen updates at the large rate as the control": [
        ('"mu 16, clip": pressed(CLIP, mu=16)', '"mu 16, clip": pressed(CLIP, mu=16, lr=5e-4)')
    ],
    "the solution forgets the batch's first update": [
        ("    return 3 * max(made) if made else inf", "    return 3 * made[-1] if made else inf")
    ],
    "the solution limits nothing": [("    return 3 * max(made) if made else inf", "    return inf")],
}
