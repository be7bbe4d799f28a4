"""The picture of predictions: what stands below each image, and that images are drawn at all."""

from __future__ import annotations

import numpy as np
import torch

from fedvlp.tools.explain.predictions import prediction_picture
from fedvlp.tools.explain.samples import Samples


def test_each_image_has_its_class_and_what_it_is_taken_for():
    samples = Samples(torch.zeros(2, 3, 4, 4), ["a.png", "new.png"], torch.tensor([1, -1]), ["ink", ""])
    pictures = np.full((2, 4, 4, 3), 0.25, dtype=np.float32)
    by_classifier = {
        "zero-shot CLIP": torch.tensor([[0.75, 0.25], [0.5, 0.5]]),
        "PLAN": torch.tensor([[0.125, 0.875], [0.375, 0.625]]),
    }
    picture = prediction_picture(samples, pictures, by_classifier, ["cat", "dog"])
    first, second, empty = picture.figure.axes
    assert (first.get_title(), second.get_title()) == ("ink: dog", "new.png")
    assert [text.get_text() for text in first.texts] == ["✗ zero-shot CLIP: cat 75%\n✓ PLAN: dog 88%"]
    assert [text.get_text() for text in second.texts] == ["zero-shot CLIP: cat 50%\nPLAN: dog 62%"]
    assert [len(axes.images) for axes in (first, second, empty)] == [1, 1, 0]
    assert "ink: dog – ✗ zero-shot CLIP: cat 75%; ✓ PLAN: dog 88%" in picture.alt
