"""Deliberate mistakes in the clinic, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the usual reading looks for others": [
        (
            'return "fragments" if numbers["unallocated"] > numbers["asked"] else "tensors"',
            'ours = numbers["allocated"] + numbers["unallocated"] + numbers["free"]\n'
            '    return "another owner" if ours < numbers["total"] / 2 else "tensors"',
        )
    ],
    "the map forgets the others": [
        ("    if others > others_limit * total and others > asked - free:", "    if others > 2 * total:")
    ],
    "any scrap is a piece": [
        (
            "    if asked <= free + unallocated and unallocated > pieces_limit * total:",
            "    if asked <= free + unallocated and unallocated > 0:",
        )
    ],
    "the other order hardly asks for pieces": [
        ('[reading_by(0.2, 0.1, one["numbers"]) ==', '[reading_by(0.2, 0.9, one["numbers"]) ==')
    ],
    "the solution asks for pieces first": [
        (
            '    if held and held[-1] - owned >= short:\n        return "a leak"\n'
            '    if asked <= free + unallocated and unallocated > 0.1 * total:\n        return "fragments"\n'
            "    if not held:",
            '    if asked <= free + unallocated and unallocated > 0.1 * total:\n        return "fragments"\n'
            '    if held and held[-1] - owned >= short:\n        return "a leak"\n'
            "    if not held:",
        )
    ],
    "the solution calls every size a longer batch": [
        ('    return "too big at once" if len(held) <= 2 else "a longer batch"', '    return "a longer batch"')
    ],
    "the solution sees others everywhere": [
        ("    if others > 0.2 * total and others > short:", "    if others > -total:")
    ],
    "the solution forgets the others": [
        ("    if others > 0.2 * total and others > short:", "    if others > 2 * total and others > short:")
    ],
    "growth is given what is owned": [
        (
            'memory.owner(one["message"], one["held"]).verdict',
            'memory.owner(one["message"], one["held"], one["owned"]).verdict',
        )
    ],
}
