"""Deliberate mistakes in lesson 07: see tests/notebooks/claims.py."""

OLD_LINE = '{**inherited, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}'
NEW_LINE = '{**inherited, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}'

MUTANTS = {
    "the bug sets the name that is read": [(NEW_LINE, OLD_LINE)],
    "the fix sets the name that is not read": [(OLD_LINE, NEW_LINE)],
    "the fix keeps the launcher's line": [
        (OLD_LINE, '{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **inherited}')
    ],
    "the launcher exports nothing": [
        ('launcher = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}', "launcher = {}")
    ],
    "the late one is in time": [
        ('"the old name, too late": ({}, {OLD: ON})', '"the old name, too late": ({OLD: ON}, {})')
    ],
    "a card with room": [("CARD_GIB = 4.25", "CARD_GIB = 6.0")],
    "a card too small for both": [("CARD_GIB = 4.25", "CARD_GIB = 3.0")],
    "no state that stays": [("    optimizer.step()\n", "    optimizer.step()\n    optimizer.state.clear()\n")],
    "empty_cache at the end is between scoring and learning": [
        (
            '"empty_cache at the end of each round": {"empty_before": "over"}',
            '"empty_cache at the end of each round": {"empty_before": "learn"}',
        )
    ],
    "the state is made where it was": [
        ('"AdamW\'s state made first": {"make_state_first": True}', '"AdamW\'s state made first": {}')
    ],
    "both is the state alone": [
        ('between": {"make_state_first": True, "empty_before": "learn"}', 'between": {"make_state_first": True}')
    ],
    "expandable segments are off": [('"expandable_segments:True": {"settings": ON}', '"expandable_segments:True": {}')],
    "the leak is none": [("leak = props.leaking(calls)", "leak = calls")],
    "the small card leaks as well": [
        (
            '"a small card": (calls, props.largest_that_dies(calls, ON))',
            '"a small card": (leak, props.largest_that_dies(leak, ON))',
        )
    ],
    "the process that is asked was given nothing back": [
        ('said(plain, "given back") / MIB', "props.unallocated(plain) / MIB")
    ],
}
