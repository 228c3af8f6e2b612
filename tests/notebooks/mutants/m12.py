"""Mistakes in lesson 12 under which its verdicts must fail."""

MUTANTS = {
    "the bug leaves the reward out": [("rewards.append(0.0)", "rewards.append(None)")],
    "every judge has time": [("        if seconds > self.timeout:", "        if seconds > 60:")],
    "no judge has time": [('"judge": Judge(timeout=timeout)}', '"judge": Judge(timeout=min(timeout, 10))}')],
    "the zeros stay with the long": [
        (
            "judge.chance.sample(range(len(answers)), late)",
            "sorted(range(len(answers)), key=lambda at: -len(answers[at]))[:late]",
        )
    ],
    "the solution's sign is turned": [
        ("rows - rows.nanmean(1, keepdim=True), 0.0)", "rows.nanmean(1, keepdim=True) - rows, 0.0)")
    ],
    "left out is zeros": [('LEFT_OUT = {"score": score_or_none', 'LEFT_OUT = {"score": score')],
    "marks of 0 and 1 are graded": [("Judge(mark=right_or_wrong)", "Judge()")],
    "0.5 is left out": [("[0.5 if mark is None", "[None if mark is None")],
    "a digit costs nothing": [("0.3 * len(pair[1])", "0.0 * len(pair[1])")],
    "nothing is learned": [('"mu": 2, "lr": 1e-4}', '"mu": 2, "lr": 1e-9}')],
}
