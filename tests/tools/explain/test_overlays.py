from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from fedvlp.methods import ADAPT, TRIP, PromptFL, ZeroShotCLIP
from fedvlp.tools.explain.overlays import View, classes_in_question, draw_map, overlay_picture, views
from fedvlp.tools.explain.samples import Samples
from fedvlp.utils.errors import UserError

NAMES = ["cat", "dog", "bird"]


def samples_of(labels):
    count = len(labels)
    return Samples(
        torch.zeros(count, 3, 6, 6), [f"{i}.png" for i in range(count)], torch.tensor(labels), ["ink"] * count
    )


@pytest.mark.parametrize(
    ("kind", "options", "names"),
    [
        (ZeroShotCLIP, {}, ["ZeroShotCLIP"]),
        (PromptFL, {}, ["zero-shot CLIP", "PromptFL"]),
        (TRIP, {"num_experts": 2}, ["zero-shot CLIP", "TRIP", "expert 1", "expert 2"]),
        (ADAPT, {"domains": ["oil"]}, ["zero-shot CLIP", "ADAPT", "prompt of oil"]),
    ],
)
def test_views_are_fixed_mixed_and_single(clip, kind, options, names):
    module = kind(NAMES, clip=clip, **options).eval()
    images = torch.randn(2, 3, clip.image_size, clip.image_size, generator=torch.Generator().manual_seed(3))
    seen, classes = views(module, images, None, "attention")
    assert list(seen) == names
    with torch.no_grad():
        probabilities = module(images).softmax(dim=-1)
    torch.testing.assert_close(seen[kind.__name__ if len(names) == 1 else names[1]].probabilities, probabilities)
    assert torch.equal(classes, probabilities.argmax(dim=-1))
    asked, given = views(module, images, torch.tensor([2, 2]), "attention")
    assert given.tolist() == [2, 2]
    assert not torch.equal(asked[names[0]].maps, seen[names[0]].maps) or classes.tolist() == [2, 2]
    if kind is TRIP:  # one expert alone is a TRIP whose experts are all that one
        module.experts.data[:] = module.experts.data[:1].clone()
        alone = views(module, images, torch.tensor([2, 2]), "attention")[0]
        torch.testing.assert_close(alone["expert 1"].maps, alone["TRIP"].maps, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(alone["expert 1"].maps, asked["expert 1"].maps, rtol=1e-3, atol=1e-6)


def test_classes_in_question():
    assert classes_in_question("predicted", samples_of([0, 2]), NAMES) is None
    assert classes_in_question("true", samples_of([0, 2]), NAMES).tolist() == [0, 2]
    assert classes_in_question("dog", samples_of([-1, -1]), NAMES).tolist() == [1, 1]
    with pytest.raises(UserError, match="not known"):
        classes_in_question("true", samples_of([0, -1]), NAMES)
    with pytest.raises(UserError, match="cat, dog, bird"):
        classes_in_question("dgo", samples_of([0]), NAMES)


def test_a_map_is_opaque_where_it_is_large():
    axes = Figure().subplots()
    draw_map(axes, torch.tensor([[0.0, 0.0], [0.0, 4.0]]), (6, 6))
    (image,) = axes.images
    values = np.asarray(image.get_array())
    alpha = np.asarray(image.get_alpha())
    assert values[-1, -1] == 1
    assert values[0, 0] == alpha[0, 0] == 0
    assert np.all(np.diff(values[-1]) >= 0)
    assert alpha[-1, -1] > 0.5
    draw_map(axes, torch.zeros(2, 2), (6, 6))
    assert not np.asarray(axes.images[-1].get_alpha()).any()


def test_picture_says_what_was_asked_and_what_is_best():
    samples = samples_of([0, 1])
    maps = torch.zeros(2, 3, 3)
    maps[:, 2, 0] = 1
    seen = {"fixed": View(torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]]), maps)}
    pictures = np.zeros((2, 6, 6, 3), np.float32)
    picture = overlay_picture(samples, pictures, seen, torch.tensor([0, 1]), NAMES, "grad_cam")
    titles = [axes.get_title() for axes in picture.figure.axes[:4]]
    assert titles == [
        "ink: cat\nasked for: cat",
        "fixed\n\ncat 70%",
        "ink: dog\nasked for: dog",
        "dog 40%\nbest: cat 50%",
    ]
    assert "0.png, asked for cat: fixed most at the bottom left" in picture.alt
    assert "Grad-CAM" in picture.caption
    assert picture.image("png").startswith(b"\x89PNG")
