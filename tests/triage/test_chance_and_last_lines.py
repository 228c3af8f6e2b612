"""A share of tied groups that chance explains; the last line, explained by a rule that holds; what is no text."""

import gzip
import random

import pytest

from labkit.__main__ import main
from labkit.triage import diagnose
from labkit.triage.courses import by_chance
from labkit.triage.curves import Curve, Point

COLUMNS = "{{'loss': 0.01, 'grad_norm': 2.0, 'reward': {reward}, 'kl': 0.02, 'frac_reward_zero_std': {tied}}}"


def log_of(shares, rewards):
    return "\n".join(COLUMNS.format(reward=reward, tied=tied) for tied, reward in zip(shares, rewards, strict=True))


def test_two_rows_of_eight_groups_differ_by_chance_as_much_as_drawing_them_shows():
    """Against 20,000 draws: two standard errors of the difference of two shares of eight groups."""
    draw = random.Random(0)
    shares = [sum(draw.random() < 0.3 for _ in range(8)) / 8 for _ in range(9)]
    curve = Curve("frac_reward_zero_std", [Point(at, {}, share) for at, share in enumerate(shares)])
    pairs = [[sum(draw.random() < 0.3 for _ in range(24)) / 24 for _ in range(2)] for _ in range(20_000)]
    within = sum(abs(one - other) <= by_chance(curve) for one, other in pairs)
    assert 0.88 < within / len(pairs) < 0.999


MADE = """step,loss,reward,reward_std,frac_reward_zero_std,kl,entropy,grad_norm
1,-0.0401,0.4375,0.4665,0.125,0.0,0.2935,2.467
2,-0.0205,0.3125,0.3943,0.25,2.2e-05,0.2783,3.222
3,3.9e-06,0.46875,0.529,0.0,9.7e-05,0.2374,4.024
4,6.7e-06,0.375,0.25,0.5,0.000166,0.2196,1.335
5,-0.0148,0.25,0.2887,0.5,0.000432,0.2142,2.069
"""  # a healthy run of five rounds, made here: eight groups a round, half of them tied at its end by chance


def test_five_rows_that_end_half_tied_by_chance_are_no_alarm_and_five_tied_ones_are(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text(MADE)
    assert not diagnose(path).findings
    tied = log_of([0.875, 1.0, 0.875, 1.0, 1.0], [0.5, 0.56, 0.6, 0.7, 0.7])
    assert "tied-rewards" in [finding.cause for finding in diagnose(tied).findings]


def test_an_out_of_memory_error_of_a_trainer_is_not_explained_as_an_engines_start():
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.22 GiB. "
    assert "engine" not in diagnose(text + "GPU 0 has a total capacity of 23.69 GiB of which 1.18 GiB is free.").text()


@pytest.mark.parametrize(
    "content", [bytes(range(1, 32)) * 40, b"\0\1\2" * 100, b" \n\n"], ids=["control", "null", "blank"]
)
def test_what_is_no_text_ends_with_one_line_and_status_2(content, tmp_path, capsys):
    path = tmp_path / "run.log"
    path.write_bytes(content)
    assert main(["triage", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_packed_log_is_read_whatever_its_name_and_a_damaged_one_up_to_the_damage(tmp_path):
    text = (
        log_of([0.0] * 12, [0.5] * 12)
        + "\nRuntimeError: probability tensor contains either `inf`, `nan` or element < 0\n"
    )
    whole, torn = tmp_path / "run.log", tmp_path / "torn.gz"
    whole.write_bytes(gzip.compress(text.encode()))
    torn.write_bytes(gzip.compress(text.encode())[:-6])
    assert [one.cause for one in diagnose(whole).findings] == [one.cause for one in diagnose(text).findings]
    assert diagnose(torn).findings is not None
