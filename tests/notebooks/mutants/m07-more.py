"""Deliberate mistakes in more/07, when empty_cache helps: see tests/notebooks/claims.py."""

ONCE = '"before the learning, round 1 only": {"empty_before": "learn", "in_rounds": [1]}'

MUTANTS = {
    "the cache is not emptied": [
        ("reserved = card.reserved_bytes\ncard.empty_cache()", "reserved = card.reserved_bytes")
    ],
    "all that is reserved is called whole": [
        (
            'whole = sum(s["total_size"] for s in card.snapshot() if s["active_size"] == 0)',
            'whole = sum(s["total_size"] for s in card.snapshot())',
        )
    ],
    "the other program gives back as well": [("    if empty_first:\n", "    if True:\n")],
    "nobody gives back": [("    if empty_first:\n", "    if False:\n")],
    "PyTorch asks the driver": [('    if by == "another program":\n', "    if True:\n")],
    "before the learning is at the end": [
        ('"before the learning": {"empty_before": "learn"}', '"before the learning": {"empty_before": "over"}')
    ],
    "at the end is before the learning": [
        ('"at the end of the round": {"empty_before": "over"}', '"at the end of the round": {"empty_before": "learn"}')
    ],
    "the one call comes in round 2": [(ONCE, ONCE.replace("[1]", "[2]"))],
    "each round is never": [('each_round = props.emptied(calls, "learn")', "each_round = calls")],
    "the leak is none": [
        (
            "leak = props.leaking(props.record(grpo_round, SEED, rounds))",
            "leak = props.record(grpo_round, SEED, rounds)",
        )
    ],
}
