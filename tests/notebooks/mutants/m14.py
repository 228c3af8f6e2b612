"""Deliberate mistakes in lesson 14: see tests/notebooks/claims.py."""

MUTANTS = {
    "the fix has the bug's range": [("below=0.2 / LENGTH, above=0.2 / LENGTH)", "below=0.2, above=0.2)")],
    "the bug has the fix's range": [
        ("below=0.2, above=0.2):  # logp", "below=0.2 / LENGTH, above=0.2 / LENGTH):  # logp")
    ],
    "bug and fix are exchanged in the comparison": [
        ('fix["last exam"] - bug["last exam"]', 'bug["last exam"] - fix["last exam"]')
    ],
    "GRPO has a ratio for the completion": [
        ("return loss.grpo(logp, part.old_logp, part.advantages, clip=0.2)", "return gspo(logp, part)")
    ],
    "the bug's share is taken for the fix's": [
        ('fix["clipped tokens"] - bug["clipped tokens"]', 'bug["clipped tokens"] - fix["clipped tokens"]')
    ],
    "the fall of the bug is compared with itself": [("bug[falls] / fix[falls]", "bug[falls] / bug[falls]")],
    "the ratio is of each token": [(".mean(1, keepdim=True)  # [B, 1]", "")],
    "a quarter of the rate is the rate": [('"lr": 5e-5', '"lr": 2e-4')],
    "twice the rate is the rate": [('"lr": 4e-4', '"lr": 2e-4')],
}
