"""Deliberate mistakes in lesson 07, each of which must break a verdict: see tests/notebooks/claims.py."""

OLD_LINE = '{**inherited, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}'
NEW_LINE = '{**inherited, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}'

MUTANTS = {
    "the bug sets the name that is read": [(NEW_LINE, OLD_LINE)],
    "the solution sets the name that is not read": [(OLD_LINE, NEW_LINE)],
    "the launcher's line wins": [(OLD_LINE, '{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **inherited}')],
    "the late one is in time": [("lab.start({}, later={OLD: ON}, **play)", "lab.start({OLD: ON}, **play)")],
    "a card too small for both": [("CARD_GIB = 4.25", "CARD_GIB = 3.0")],
    "the state is made where it was": [
        ('"AdamW\'s state made first": lab.state_first', '"AdamW\'s state made first": lambda calls: calls')
    ],
    "both is the state alone": [('lab.emptied(lab.state_first(calls), "learn")', "lab.state_first(calls)")],
    "empty_cache between is at the end": [
        (
            '"empty_cache between scoring and learning": lambda calls: lab.emptied(calls, "learn")',
            '"empty_cache between scoring and learning": lambda calls: lab.emptied(calls, "over")',
        )
    ],
    "the other program gives back as well": [("    if empty_first:\n", "    if True:\n")],
    "nobody gives back": [("    if empty_first:\n", "    if False:\n")],
    "PyTorch asks the driver": [('    if by == "another program":\n', "    if True:\n")],
    "in force is not": [('expandable segments in force": (True, ON)}', 'expandable segments in force": (True, "")}')],
    "unallocated is called given back": [
        ('lab.value(bug, "given back") / MIB, "=="', 'longest_free(moment["segments"]) / MIB, "=="')
    ],
    "the chart's fix is the default": [("[seed[arm] for seed in seeds]", '[seed["default"] for seed in seeds]')],
}
