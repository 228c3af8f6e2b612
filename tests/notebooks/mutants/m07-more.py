"""Deliberate mistakes in more/07, when empty_cache helps: see tests/notebooks/claims.py."""

MUTANTS = {
    "the cache is not emptied": [
        ("reserved = card.reserved_bytes\ncard.empty_cache()", "reserved = card.reserved_bytes")
    ],
    "the card has done nothing yet": [
        (
            "card = more.card_after_round_1(calls, card_gib=6)\nrows",
            "card = more.card_after_round_1([], card_gib=6)\nrows",
        )
    ],
    "the other program gives back as well": [("    if empty_first:\n", "    if True:\n")],
    "nobody gives back": [("    if empty_first:\n", "    if False:\n")],
    "PyTorch asks the driver": [('    if by == "another program":\n', "    if True:\n")],
    "before the learning is at the end": [
        ('"before the learning": ("", "learn")', '"before the learning": ("", "over")')
    ],
    "at the end is before the learning": [
        ('"at the end of the round": ("", "over")', '"at the end of the round": ("", "learn")')
    ],
    "the cache is emptied in either row": [
        ('{"never": "", "before the learning": "learn"}', '{"never": "learn", "before the learning": "learn"}')
    ],
    "the leak is none": [("leak = props.leaking(calls)", "leak = calls")],
}
