"""Mistakes in lesson 18 under which its verdicts must fail."""

MUTANTS = {
    "the mystery is a run that never moves": [
        ('"mystery": {"name": name_of_the_bug,', '"mystery": {"name": "the optimizer steps a copy of the model",')
    ],
    "bug and fix exchanged": [("bug_gains, fix_gains =", "fix_gains, bug_gains =")],
    "the bug's prompts have no answer 0": [
        ('("bug", relative_error, seed, True) for seed', '("bug", relative_error, seed, False) for seed')
    ],
    "an ordinary epsilon": [("-off / (right + 1e-8))", "-off / (right + 1.0))")],
    "the fix is the bug": [('("fix", bounded_error, seed, True)', '("fix", relative_error, seed, True)')],
    "the run without that prompt has it": [
        ('answer 0", relative_error, SEED, False)', 'answer 0", relative_error, SEED, True)')
    ],
    "a reward of one value": [
        ("rewards.append(-min(off / max(right, 1.0), 1.0))", "rewards.append(-min(1.0 + off / max(right, 1.0), 1.0))")
    ],
    "the last yes is the name": [("for number, relation, limit, cause in QUESTIONS:",
                                  "for number, relation, limit, cause in QUESTIONS[::-1][:5]:")],
    "a question that is always yes": [('("reward", "==", 0,', '("reward", ">=", 0,')],
    "what was not named counts as named": [
        ('if row["named"] == "nothing found"]', 'if row["named"] == "healthy"]')
    ],
    "the exams compared the wrong way round": [
        ('if row["exam at the end"] > sound["exam at the end"] - 0.1]',
         'if row["exam at the end"] > sound["exam at the end"] + 0.1]')
    ],
}  # fmt: skip
