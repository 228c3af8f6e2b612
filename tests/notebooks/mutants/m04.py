"""Deliberate mistakes in lesson 04: see tests/notebooks/claims.py."""

MUTANTS = {
    "the bug is the fix": [
        (
            "    token = sample(logits)  # [P]\n    return token.repeat_interleave(num_samples)",
            "    return sample(logits.repeat_interleave(num_samples, 0))",
        )
    ],
    "the solution is the bug": [
        (
            "    return sample(rows)  # was: sample(logits), then the copies",
            "    return sample(logits).repeat_interleave(num_samples)",
        )
    ],
    "the healthy sampler copies, too": [
        (
            '    "healthy": {},\n    "healthy, no push',
            '    "healthy": {"hooks": hooks(first_token)},\n    "healthy, no push',
        )
    ],
    "nobody learns": [('"rounds": 8, "every": 8} | WHERE', '"rounds": 8, "every": 8, "lr": 1e-7} | WHERE')],
    "the two kinds exchanged": [
        ("props.lesson_04 import FIRST, SECOND, gain", "props.lesson_04 import SECOND as FIRST, FIRST as SECOND, gain")
    ],
    "the push stays": [
        ("kept = torch.cat([logp[:, :1].detach(), logp[:, 1:]], 1)", "kept = torch.cat([logp[:, :1], logp[:, 1:]], 1)")
    ],
    "the gradient of all tokens": [
        ("kept = torch.cat([logp[:, :1], logp[:, 1:].detach()], 1)", "kept = torch.cat([logp[:, :1], logp[:, 1:]], 1)")
    ],
    "two draws are one": [("partial(lab.several_draws, draws=2)", "partial(lab.several_draws, draws=1)")],
    "eight rows of one call": [
        ("ask(first_token, lab.SUMS[FIRST], calls=8,", "ask(first_token, lab.SUMS[FIRST], calls=1,")
    ],
    "the settings are run with own draws alone": [
        ('"bug": {"hooks": hooks(first_token, reward=reward)}', '"bug": {"hooks": hooks(each_row, reward=reward)}')
    ],
}
