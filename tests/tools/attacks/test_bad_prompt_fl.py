"""A learned trigger: its change of pixels, its success, and nothing else changes."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from fedvlp import BadPromptFL
from fedvlp.data import ArrayImages, Dispersed, FederatedDataModule
from fedvlp.tools.attacks.bad_prompt_fl import add_trigger, black_and_white
from fedvlp.tools.attacks.data_attacks import add_perturbation, apply_trigger
from fedvlp.utils.errors import UserError
from tests.helpers.assertions import assert_equal
from tests.helpers.toy_federation import Linear, federation

SIDE = 6


class StripedImages(FederatedDataModule):
    """Grey images with one brighter third, which is the class: left, middle or right."""

    def __init__(self, **options):
        super().__init__(**{"batch_size": 5, "cache_dir": None, "held_out": "b", "partition": Dispersed(3), **options})

    def load_domains(self):
        domains = {}
        for offset, name in enumerate("ab"):
            labels = np.arange(45) % 3
            pixels = np.random.default_rng(offset).integers(90, 110, (45, SIDE, SIDE, 3)).astype(np.uint8)
            for image, label in zip(pixels, labels, strict=True):
                image[:, 2 * label : 2 * label + 2] += 30
            domains[name] = ArrayImages(pixels, labels, [f"{name}{i}" for i in range(45)])
        return domains, ["left", "middle", "right"]


def normalised(image):
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    return (pixels - torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / torch.tensor([0.2, 0.3, 0.25])[:, None, None]


class OnPixels(Linear):
    """Linear classifier of column means with a learned scale."""

    def __init__(self):
        super().__init__(learning_rate=0.1)
        self.weight = nn.Parameter(torch.full((3, 1), 3.0))

    @property
    def transform(self):
        return normalised

    def precompute(self, images):
        return {"features": images.mean((1, 2)).unflatten(1, (3, 2)).mean(2)}

    def forward(self, inputs):
        return self.precomputed(inputs)["features"] * self.weight.mT


def bound_data():
    data = StripedImages()
    data.prepare_data()
    data.setup("fit")
    data.bind(normalised, precompute=OnPixels().precompute, key="thirds")
    data.encode()
    return data


def success(module, data, trigger, target):
    """Compute the share of training images of other classes that the trigger turns into the target."""
    found = []
    for images in data.images.values():
        for index, label in enumerate(images.labels):
            if label != target:
                scores = module(module.precompute(normalised(apply_trigger(images[index], trigger))[None]))
                found.append(int(scores.argmax()) == target)
    return np.mean(found)


def test_values_are_added_to_the_pixels_of_the_centred_square():
    values = np.zeros((2, 2, 3), np.float32)
    values[0, 1] = [0.1, -0.1, 1.0]
    image = Image.fromarray(np.full((2, 4, 3), (100, 10, 200), np.uint8))
    made = np.array(apply_trigger(image, partial(add_perturbation, values=values)))
    expected = np.array(image)
    expected[0, 2] = [126, 0, 255]
    assert np.array_equal(made, expected)
    assert (np.array(image) == (100, 10, 200)).all()


def test_triggered_pixels_stay_between_black_and_white():
    data = bound_data()
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8))
    added = torch.linspace(-0.9, 0.7, 3 * SIDE * SIDE).reshape(3, SIDE, SIDE)
    found = add_trigger(normalised(image)[None], added, *black_and_white(data))[0]
    exact = np.array(image) / 255 + added.permute(1, 2, 0).numpy()
    expected = normalised(Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)))
    scale = torch.tensor([0.2, 0.3, 0.25])[:, None, None]
    expected = expected + torch.from_numpy(exact.clip(0, 1)).permute(2, 0, 1) / scale
    torch.testing.assert_close(found, expected.float(), rtol=0, atol=1e-5)


def test_the_trigger_turns_images_into_the_target_and_stays_within_epsilon():
    data = bound_data()
    module = OnPixels()
    target = 2
    attack = BadPromptFL(clients=1, target=target, epsilon=0.1, steps=30)
    learned = attack.trigger(data, module)
    assert np.abs(learned.keywords["values"]).max() == pytest.approx(0.1)
    no_change = partial(add_perturbation, values=np.zeros((1, 1, 3), np.float32))
    assert success(module, data, no_change, target) == 0
    assert success(module, data, learned, target) == 1
    weak = BadPromptFL(clients=1, target=target, epsilon=0.01, steps=30).trigger(data, module)
    assert success(module, data, weak, target) == 0


def test_the_loss_has_honest_and_triggered_images():
    """Compare one step with a large epsilon with the gradient of an explicit loss."""
    data = bound_data()
    seen = []

    class RecordBatches(OnPixels):
        def training_step(self, batch, batch_idx):
            seen.append((batch[0]["features"].detach().clone(), batch[1].clone()))
            return super().training_step(batch, batch_idx)

    module = RecordBatches()
    learned = BadPromptFL(clients=3, target=2, epsilon=0.5, steps=1).trigger(data, module)
    (honest, labels), (triggered, targets) = seen
    assert targets.tolist() == [2] * len(labels)
    torch.testing.assert_close(honest, triggered, rtol=0, atol=1e-6)  # the trigger starts at zero
    features = triggered.clone().requires_grad_()
    F.cross_entropy(features * 3.0, targets).backward()
    thirds = -torch.sign(features.grad.sum(0)) * 0.05
    expected = thirds.repeat_interleave(2).numpy()
    np.testing.assert_allclose(
        learned.keywords["values"], np.broadcast_to(expected[None, :, None], (SIDE, SIDE, 3)), atol=1e-6
    )


def test_learning_a_trigger_changes_nothing_else():
    data = bound_data()
    module = OnPixels()
    module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    first = BadPromptFL(clients=2, steps=5).trigger(data, module)
    assert_equal(dict(module.state_dict()), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.context is None
    assert not module.training
    again = BadPromptFL(clients=2, steps=5).trigger(data, module)
    assert np.array_equal(again.keywords["values"], first.keywords["values"])


def test_a_run_measures_its_success(tmp_path):
    options = {"default_callbacks": False, "rounds": 2}
    attacks = {clients: BadPromptFL(clients=clients, target=1, epsilon=0.1, steps=30) for clients in (0, 1)}
    rates = {}
    for clients, attack in attacks.items():
        made = federation(tmp_path, attack=attack, **options)
        made.fit(OnPixels(), StripedImages())
        rates[clients] = made.run_state.history[-1]["attack_success/held_out/b"]
    assert rates == {0: 0.0, 1: 100.0}


class Blind(OnPixels):
    """Classifier that passes no gradient to its images."""

    def precompute(self, images):
        with torch.no_grad():
            return super().precompute(images)


def test_images_without_gradient_are_rejected():
    with pytest.raises(UserError, match="no gradient reaches them"):
        BadPromptFL(clients=1).trigger(bound_data(), Blind())
