"""Inversion of a linear classifier's gradients, which contain their image."""

import pytest
import torch
import torch.nn.functional as F

from fedvlp.tools.audit.inversion import InversionOptions, gradient_distance, invert, total_variation

WEIGHT = torch.tensor([[0.5, -1.0, 0.3, 0.9], [-0.2, 0.4, 1.1, -0.6], [0.7, 0.1, -0.8, 0.2]])
BIAS = torch.tensor([0.1, -0.3, 0.2])
IMAGE = torch.tensor([[0.8, -0.4, 0.35, -0.9]])
LABEL = torch.tensor([1])
BOUNDS = (torch.tensor(-1.0), torch.tensor(1.0))


def gradient_of(images, labels=LABEL):
    weight = WEIGHT.clone().requires_grad_()
    bias = BIAS.clone().requires_grad_()
    loss = F.cross_entropy(images @ weight.mT + bias, labels)
    parts = torch.autograd.grad(loss, (weight, bias), create_graph=True)
    return {"weight": parts[0], "bias": parts[1]}


def options(**changed):
    return InversionOptions(**{"steps": 160, "total_variation": 0.0, **changed})


@pytest.mark.parametrize("distance", ["cosine", "squared"])
def test_a_linear_classifier_is_inverted_exactly(distance):
    sent = gradient_of(IMAGE)
    exact = sent["weight"][1] / sent["bias"][1]  # each row of dL/dW is x times an entry of dL/db
    assert exact.tolist() == pytest.approx(IMAGE[0].tolist(), abs=1e-6)
    images, least = invert(gradient_of, sent, torch.zeros(1, 4), BOUNDS, options(distance=distance))
    assert images[0].tolist() == pytest.approx(exact.tolist(), abs=5e-3)
    assert least < 1e-4
    assert least == pytest.approx(gradient_distance(gradient_of(images), sent, distance).item(), abs=1e-6)


def test_the_result_is_the_nearest_image_and_not_the_last():
    sent = gradient_of(IMAGE)
    start = IMAGE + 0.01
    images, least = invert(gradient_of, sent, start, BOUNDS, options(steps=3, step_size=0.9))
    assert torch.equal(images, start)
    assert least == gradient_distance(gradient_of(start), sent, "cosine").item()


def test_total_variation_smooths_the_recovered_image():
    def flat_gradient(images):
        return {"mean": images.mean(dim=(2, 3)) + 0 * images.sum()}

    start = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(2)).clamp(*BOUNDS)
    sent = {"mean": torch.tensor([[0.5, -0.2, 0.1]])}
    rough = invert(flat_gradient, sent, start, BOUNDS, options(steps=60))[0]
    smooth = invert(flat_gradient, sent, start, BOUNDS, options(steps=60, total_variation=5.0))[0]
    assert total_variation(smooth) < 0.5 * total_variation(rough)
