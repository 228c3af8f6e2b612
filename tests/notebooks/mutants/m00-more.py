"""Deliberate mistakes in more/00, the playground, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "task 1 at the untouched rate": [('"task 1": {"lr": 1e-2}', '"task 1": {"lr": 5e-5}')],
    "task 1 at a temperature of 0.2": [('"task 1": {"lr": 1e-2}', '"task 1": {"temperature": 0.2}')],
    "task 2 with a small beta": [('"task 2": {"beta": 5.0}', '"task 2": {"beta": 0.04}')],
    "task 3 at temperature 1": [('"task 3": {"temperature": 0.2}', '"task 3": {"temperature": 1.0}')],
    "task 4 with four updates and the untouched rate": [('"task 4": {"lr": 5e-4, "mu": 16}', '"task 4": {"mu": 4}')],
}
