"""Pictures are checked by their pixels: an area stands for its bytes."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from labkit.display import segments
from labkit.display.segments import COLOURS, draw
from labkit.memory.allocator import Allocator

MIB, GIB = 2**20, 2**30


def pixels(picture):
    return np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB")).astype(int)


def area(image, colour):
    """Pixels of this colour, blended edges left out."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(image - wanted).max(-1) <= 4).sum())


def map_only(image):
    return image[22:-30, 108:]  # without the titles, the row names and the legend


@pytest.fixture
def no_sizes(monkeypatch):
    """Blocks without the sizes that are written into them."""
    monkeypatch.setattr(segments, "_NAMED", 2.0)


@pytest.mark.usefixtures("no_sizes")
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_the_coloured_area_is_proportional_to_the_bytes(settings):
    rng = random.Random(3)
    card, live, held = Allocator(100 * GIB, settings), [], {}
    for _ in range(60):
        tag = rng.choice(["parameter", "gradient", "activation"])
        live.append(card.malloc(rng.randrange(40, 400) * MIB, tag=tag))
        if rng.random() < 0.4:
            card.free(live.pop(rng.randrange(len(live))))
    for block in live:
        held[block.tag] = held.get(block.tag, 0) + block.size
    image = map_only(pixels(draw(card)))
    areas = {tag: area(image, COLOURS[tag]) for tag in held}
    areas["free"], held["free"] = area(image, "#F4F4F4"), card.reserved_bytes - card.allocated_bytes
    scale = sum(held.values()) / sum(areas.values())
    # edges cost a block a pixel or two, and a free one, which has no colour, more
    for tag, size in held.items():
        assert areas[tag] * scale == pytest.approx(size, rel=0.15 if tag == "free" else 0.05), tag


@pytest.mark.usefixtures("no_sizes")
def test_two_maps_share_one_scale():
    small, large = Allocator(8 * GIB), Allocator(8 * GIB)
    small.malloc(500 * MIB, tag="parameter")
    large.malloc(500 * MIB, tag="gradient")
    large.malloc(2000 * MIB, tag="activation")
    image = map_only(pixels(draw({"small": small, "large": large})))
    blue, red, green = (area(image, COLOURS[t]) for t in ("parameter", "gradient", "activation"))
    assert blue == pytest.approx(red, rel=0.1)
    assert green == pytest.approx(4 * red, rel=0.15)


@pytest.mark.usefixtures("no_sizes")
def test_a_snapshot_as_torch_gives_it_is_coloured_by_state():
    card = Allocator(8 * GIB)
    blocks = [card.malloc(100 * MIB) for _ in range(3)]
    card.free(blocks[1])
    segments = card.snapshot()
    for segment in segments:
        for block in segment["blocks"]:
            del block["tag"]
    segments[2]["blocks"][0]["state"] = "active_awaiting_free"
    image = map_only(pixels(draw({"segments": segments, "device_traces": []})))
    used, waiting, free = (
        area(image, COLOURS["in use"]),
        area(image, COLOURS["waiting for a stream"]),
        area(image, "#F4F4F4"),
    )
    assert used == pytest.approx(waiting, rel=0.1) and used == pytest.approx(free, rel=0.15)


def test_tags_of_ones_own_get_colours_of_their_own():
    card = Allocator(GIB)
    for name in ("eval", "adam"):
        card.malloc(20 * MIB, tag=name)
    image = map_only(pixels(draw(card)))
    colours = {tuple(c) for c in image.reshape(-1, 3)[::7] if max(c) - min(c) > 60}
    assert len(colours) >= 2


def test_a_picture_is_small_and_its_text_is_the_same_for_every_content():
    card = Allocator(80 * GIB)
    for i in range(900):
        card.malloc((i * 7919 % 5000 + 100) * 1024, tag="parameter")
    first, second = draw(card), draw(Allocator(GIB), title="nothing reserved yet")
    assert repr(first) == repr(second) == "<segment map: 1 panel>"
    assert repr(draw({"a": card, "b": card})) == "<segment map: 2 panels>"
    assert len(first.png) < 60_000 and first._repr_png_().startswith(b"\x89PNG")


def test_a_bright_colour_has_dark_letters_in_the_legend():
    card = Allocator(GIB)
    card.malloc(20 * MIB, tag="backward")
    legend = pixels(draw(card))[-30:]
    dark = (legend.max(-1) < 0x50).any(0)
    assert area(legend, COLOURS["backward"]) > 20 and dark[:150].sum() > 30


def test_a_picture_is_saved_where_it_is_told(tmp_path):
    path = draw(Allocator(GIB)).save(tmp_path / "deep" / "map.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("bad", [3, "snapshot", {}, [1], [{"total_size": 3}], {"segments": None}])
def test_what_is_no_snapshot_is_refused(bad):
    with pytest.raises(ValueError, match="draw: "):
        draw(bad)
