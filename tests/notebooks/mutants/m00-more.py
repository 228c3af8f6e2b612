"""Deliberate mistakes in more/00, the playground, each of which must break a verdict: see tests/notebooks/claims.py."""

MUTANTS = {
    "the large rate is the untouched one": [('"lr 0.01": {"lr": 1e-2}', '"lr 0.01": {"lr": 5e-5}')],
    "the large rate is a temperature of 0.2": [('"lr 0.01": {"lr": 1e-2}', '"lr 0.01": {"temperature": 0.2}')],
    "without the guard the rate is untouched": [
        ('"lr 0.01, no guard": {"lr": 1e-2, "update": unguarded}', '"lr 0.01, no guard": {"update": unguarded}')
    ],
    "the large beta is small": [('"beta 5": {"beta": 5.0}', '"beta 5": {"beta": 0.04}')],
    "the low temperature is 1": [
        ('"temperature 0.2": {"temperature": 0.2}', '"temperature 0.2": {"temperature": 1.0}')
    ],
    "no guard is the guard": [
        (
            '"temperature 0.2, no guard": {"temperature": 0.2, "update": unguarded}',
            '"temperature 0.2, no guard": {"temperature": 0.2}',
        )
    ],
    "sixteen updates are one": [
        ('"lr 5e-4, mu 16": {"lr": 5e-4, "mu": 16}', '"lr 5e-4, mu 16": {"lr": 5e-4, "mu": 1}')
    ],
    "one update is sixteen": [('"lr 5e-4, mu 1": {"lr": 5e-4, "mu": 1}', '"lr 5e-4, mu 1": {"lr": 5e-4, "mu": 16}')],
    "sixteen updates at the large rate as the control": [
        ('    "mu 16": {"mu": 16}', '    "mu 16": {"mu": 16, "lr": 5e-4}')
    ],
}
