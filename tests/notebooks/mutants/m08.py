"""Deliberate mistakes in lesson 08, each of which must break a verdict: see tests/notebooks/claims.py."""

GREEDY = "return model.generate(ids, max_new_tokens=4, temperature=temperature)"

MUTANTS = {
    "the bug draws": [(GREEDY, GREEDY.replace("temperature=temperature", "temperature=temperature, do_sample=True"))],
    "the solution does not draw": [("do_sample=True, **everything", "do_sample=False, **everything")],
    "the four changes are run on what draws": [
        ('changed = chart.runs("all four at once", "bug")', 'changed = chart.runs("all four at once", "healthy")')
    ],
    "the runs are one round": [('"rounds": 6', '"rounds": 1')],
    "the judge has no noise": [("right + noise.gauss(0.0, 0.05)", "right")],
    "the noisy judge scores what draws": [
        (
            "noisy_runs = side_by_side(both,",
            'noisy_runs = side_by_side({"bug": arms["healthy"], "healthy": arms["healthy"]},',
        )
    ],
    "half of the probability is nearly all": [("temperature, top_p=0.5)", "temperature, top_p=0.99)")],
    "cold is warm": [("lab.drawn_with(model, ids, 0.1)", "lab.drawn_with(model, ids, 0.7)")],
    "one seed is greedy": [
        ("lab.drawn_with(model, ids[place::8], temperature)", "from_generate(model, ids[place::8], temperature)")
    ],
    "the solved task is sums": [('"family": "copy"}', '"family": "add"}')],
    "the likeliest are counted": [("(tokens != likeliest)", "(tokens == likeliest)")],
    "the range is for a temperature of 0.2": [("(logits, tokens, 0.7)", "(logits, tokens, 0.2)")],
}
