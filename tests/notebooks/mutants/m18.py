"""Mistakes in lesson 18 under which its verdicts must fail."""

MUTANTS = {
    "the mystery is a run that never moves": [
        ('"mystery": {"name": name_of_the_bug,', '"mystery": {"name": "the optimizer steps a copy of the model",')
    ],
    "bug and fix exchanged": [("bug_gains, fix_gains =", "fix_gains, bug_gains =")],
    "an ordinary epsilon": [("-off / (right + 1e-8))", "-off / (right + 1.0))")],
    "the fix is the bug": [('("fix", bounded_error, seed, True, {})', '("fix", relative_error, seed, True, {})')],
    "the run without that prompt has it": [
        ('00+00=", relative_error, SEED, False, {})', '00+00=", relative_error, SEED, True, {})')
    ],
    "the run with TRL's default is not scaled": [('{"scale_rewards": "group"}', '{"scale_rewards": "none"}')],
    "a bound that leaves one value": [("[max(reward, -1.0) for", "[max(reward, 0.0) for")],
    "the last yes is the name": [("for number, relation, limit, cause in QUESTIONS:",
                                  "for number, relation, limit, cause in QUESTIONS[::-1][:5]:")],
    "a question that is always yes": [('("reward", "==", 0,', '("reward", ">=", 0,')],
    "the exams compared the wrong way round": [
        ('row["exam"] > row["sound run\'s exam"] - 0.05', 'row["exam"] > row["sound run\'s exam"] + 0.05')
    ],
    "the two exams exchanged": [("lost, kind = (", "kind, lost = (")],
}  # fmt: skip
