"""Deliberate mistakes in the clinic, each of which must break a verdict: see tests/notebooks/claims.py."""

LEAK = '    if held and short > 0 and grown(held, owned) >= max(short, 64 * MIB):\n        return "a leak"\n'
PIECES = '    if asked <= free + unallocated and unallocated > 0.1 * total:\n        return "fragments"\n'

MUTANTS = {
    "the solution sees others everywhere": [
        ("    if others > 0.2 * total and others > short:", "    if others > -total:")
    ],
    "the solution gives one name": [
        ('    return "too big at once" if len(held) <= 2 else "a longer batch"', '    return "a longer batch"'),
        (LEAK, ""),
        (PIECES, ""),
    ],
    "the solution asks for pieces first": [(LEAK + PIECES, PIECES + LEAK)],
    "the solution's growth is what is there at the end": [
        ("grown(held, owned) >= max(short, 64 * MIB)", "held[-1] - owned[-1] >= max(short, 64 * MIB)")
    ],
    "growth counts from the first step": [
        ("    return beside[-1] - beside[len(beside) // 2]", "    return beside[-1]")
    ],
    "nothing stays beside the runs": [
        (
            'return (death["held"][-1] - death["owned"][-1]) / scores.short(death)',
            'return (death["held"][-1] - death["held"][0]) / scores.short(death) / 9',
        )
    ],
    "the other order hardly asks for pieces": [
        ('if reading_by(0.2, 0.1, one["numbers"]) ==', 'if reading_by(0.2, 0.9, one["numbers"]) ==')
    ],
    "the column without the fragments question is the step's number": [
        ("no_pieces = scores.without_fragments(both, names)", "no_pieces = scores.by_the_step(both)")
    ],
}
