"""Mistakes in lesson 15 under which its verdicts must fail."""

MUTANTS = {
    "moments are added up": [
        ("standing + max((one.moment for one in here), default=0)", "standing + sum(one.moment for one in here)")
    ],
    "what stands is counted once": [
        ("standing = sum(one.standing for one in here)", "standing = max([one.standing for one in here], default=0)")
    ],
    "the copies do not share the prompts": [
        ("share = math.ceil(prompts / len(seats[\"policy\"]))", "share = prompts")
    ],
    "the plan takes all cards for the largest": [("/ gib for card, gib in", "/ max(cards) for card, gib in")],
    "the plan takes a full card for an empty one": [("if full < 0.9:", "if full < 2:")],
    "starts and refuses exchanged": [('[0] += row[name] == "starts" and', '[0] += row[name] == "refuses" and')],
    "script and plan exchanged": [
        ('{"script": seats_of_the_script, "plan"', '{"plan": seats_of_the_script, "script"'),
    ],
    "the second pass is left out": [("whole, a, b, c, d),", "whole, a, b, c),")],
    "the passes have two answers": [("whole, a, b, c, d),", "whole, pairs),")],
    "eight answers in place of two": [("batch.part(range(64), 2)", "batch.part(range(64), 8)")],
    "own tokens are the tokens of all": [(", own=True", "")],
    "GPU 2 beside itself": [
        ('row["GPU 2, all answers at once"] / row["GPU 0"]', 'row["GPU 2, all answers at once"] / row["GPU 2"]')
    ],
    "half of the weights": [
        ('copied["GPU 1, weights"] / copied["parameter"]', 'copied["GPU 1, weights"] / copied["parameter"] / 2')
    ],
}  # fmt: skip
