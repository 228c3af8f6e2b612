"""Deliberate mistakes in lesson 07, each of which must break a verdict: see tests/notebooks/claims.py."""

OLD_LINE = '{**inherited, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}'
NEW_LINE = '{**inherited, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}'

MUTANTS = {
    "the solution sets the name that is not read": [(OLD_LINE, NEW_LINE)],
    "the launcher's line wins": [(OLD_LINE, '{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **inherited}')],
    "the late one is in time": [("lab.start({}, later={OLD: ON}, **play)", "lab.start({OLD: ON}, **play)")],
    "no tensor is followed": [("calls = recording.follow(recorded[0], TOKEN_TABLE)", "calls = recorded[0]")],
    "the state is made where it was": [
        ('"AdamW\'s state made first": recording.state_first', '"AdamW\'s state made first": lambda calls: calls')
    ],
    "both is the state alone": [('recording.state_first(calls), "learn"', 'recording.state_first(calls), "none"')],
    "empty_cache between is at the end": [
        (
            '"empty_cache between scoring and learning": lambda calls: recording.emptied(calls, "learn")',
            '"empty_cache between scoring and learning": lambda calls: recording.emptied(calls, "over")',
        )
    ],
    "the other program gives back as well": [("    if empty_first:\n", "    if True:\n")],
    "nobody gives back": [("    if empty_first:\n", "    if False:\n")],
    "PyTorch asks the driver": [('    if by == "another program":\n', "    if True:\n")],
    "in force is not": [("served(by, gib, False, ON)", "served(by, gib, False)")],
    "a free piece is called given back": [
        ('lab.value(bug, "given back") / MIB, "=="', 'longest_free(moments[refused]["segments"]) / MIB, "=="')
    ],
    "in the chart in force is not": [
        ('ARMS = {"default": "", "in force": ON}', 'ARMS = {"default": "", "in force": ""}')
    ],
}
