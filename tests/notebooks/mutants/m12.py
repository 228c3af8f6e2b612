"""Mistakes in lesson 12 under which its verdicts must fail."""

MUTANTS = {
    "four workers in place of eight": [('{"workers 4 → 8": {"workers": 8}}', '{"workers 4 → 8": {"workers": 4}}')],
}  # fmt: skip
