"""The content of each picture, and its text alternative."""

import numpy as np
import torch
from matplotlib.patches import Rectangle

from fedvlp.tools.explain.images import Samples, Views
from fedvlp.tools.explain.pictures import (
    DROPPED,
    overlay_picture,
    prediction_picture,
    token_map_picture,
)

NAMES = ["cat", "dog", "bird"]
SAMPLES = Samples(
    pixels=torch.zeros(2, 3, 6, 6),
    shown=np.full((2, 6, 6, 3), 0.25, dtype=np.float32),
    names=["a.png", "in/new.png"],
    titles=["ink: dog", "new.png"],
    labels=torch.tensor([1, -1]),
)


def test_each_image_has_its_class_and_predictions():
    by_classifier = {
        "zero-shot CLIP": [{"cat": 0.75}, {"cat": 0.5}],
        "PLAN": [{"dog": 0.875}, {"dog": 0.625}],
    }
    picture = prediction_picture(SAMPLES, by_classifier, NAMES)
    first, second, empty = picture.figure.axes
    assert (first.get_title(), second.get_title()) == ("ink: dog", "new.png")
    assert [text.get_text() for text in first.texts] == ["✗ zero-shot CLIP: cat 75%\n✓ PLAN: dog 88%"]
    assert [text.get_text() for text in second.texts] == ["zero-shot CLIP: cat 50%\nPLAN: dog 62%"]
    assert [len(axes.images) for axes in (first, second, empty)] == [1, 1, 0]
    assert "ink: dog – ✗ zero-shot CLIP: cat 75%; ✓ PLAN: dog 88%" in picture.alt


def test_overlays_name_the_requested_and_the_best_class():
    maps = torch.zeros(2, 3, 3)
    maps[:, 2, 0] = 1
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]])
    views = Views(torch.tensor([0, 1]), {"fixed": probabilities}, {"fixed": maps}, "grad_cam")
    picture = overlay_picture(SAMPLES, views, NAMES)
    assert [axes.get_title() for axes in picture.figure.axes[:4]] == [
        "ink: dog\nmap for: cat",
        "fixed\n\ncat 70%",
        "new.png\nmap for: dog",
        "dog 40%\nbest: cat 50%",
    ]
    assert "a.png, maps for cat: fixed" in picture.alt
    assert "Grad-CAM" in picture.caption
    assert picture.image("png").startswith(b"\x89PNG")


def test_token_map_has_a_patch_for_each_token():
    tokens = torch.tensor([[0, 0, 1, -1, 1], [1, 1, 1, 1, 1]])
    picture = token_map_picture(SAMPLES, tokens, ["expert 1", "expert 2"])
    image_axes, map_axes, _, other_map_axes = picture.figure.axes
    patches = [patch for patch in map_axes.patches if isinstance(patch, Rectangle)]
    assert [patch.get_xy() for patch in patches] == [(-0.5, -0.5), (2.5, -0.5), (-0.5, 2.5), (2.5, 2.5)]
    assert [patch.get_hatch() for patch in patches] == [None, None, DROPPED["hatch"], None]
    assert patches[1].get_facecolor() == patches[3].get_facecolor() != patches[0].get_facecolor()
    assert [text.get_text() for text in map_axes.texts] == ["1", "2", "2"]
    titles = [axes.get_title() for axes in (image_axes, map_axes, other_map_axes)]
    assert titles == ["ink: dog", "50:50 %", "0:100 %"]
    assert "a.png: shares of expert 1, expert 2 are 50:50 %" in picture.alt
    assert "10.0% of the tokens were dropped" in picture.caption
