"""The colours that mean something are told apart by every reader, and on paper without colour."""

import itertools

import numpy as np
import pytest

from labkit.display.panels import TONES, tone

MEANING = ("bug", "fix", "healthy", "without", "far")
# Machado, Oliveira and Fernandes (2009), severity 1.0, for linear RGB
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour):
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def cielab(colour, matrix):
    xyz = TO_XYZ @ np.clip(np.array(matrix) @ linear(colour), 0, 1) / WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_with_a_meaning_are_far_apart_with_each_kind_of_colour_blindness(kind):
    for one, other in itertools.combinations(MEANING, 2):
        light, dark = (
            np.linalg.norm(cielab(TONES[one][page], BLINDNESS[kind]) - cielab(TONES[other][page], BLINDNESS[kind]))
            for page in (0, 1)
        )
        assert light > 20, (one, other, light)
        assert dark > 14, (one, other, dark)


def test_on_paper_without_colour_their_greys_differ_and_all_stand_out_from_white():
    lightness = {name: cielab(TONES[name][0], np.eye(3))[0] for name in MEANING}
    for one, other in itertools.combinations(MEANING, 2):
        assert abs(lightness[one] - lightness[other]) > 8, (one, other)
    for name in MEANING:
        luminance = (TO_XYZ @ linear(TONES[name][0]))[1]
        assert 1.05 / (luminance + 0.05) > 3, "WCAG 2.2, 1.4.11: graphics need 3 to 1"


def test_a_label_has_the_colour_of_what_it_means():
    meant = {"bug": "bug", "yours": "fix", "solution": "fix", "fix, seed 1": "fix", "no step": "grey"}
    meant |= {"without the KL term": "without", "healthy: lesson 00": "healthy"}
    assert {label: tone(label) for label in meant} == meant
    assert tone("bug", ["bug"]) == tone("AdamW") == "one"
