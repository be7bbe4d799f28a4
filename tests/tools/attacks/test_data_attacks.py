"""The patch in pixels, the images that get it, and the attack's success rate."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from fedvlp import BackdoorPatch
from fedvlp.data import ArrayImages, Dispersed, FederatedDataModule
from fedvlp.tools.attacks.data_attacks import TriggeredImages, add_patch, apply_trigger
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation

CLASSES = ["a", "b", "c"]


class Grey(FederatedDataModule):
    """Images with one grey value each: 60 times the class, plus the image's number."""

    def __init__(self, **options):
        super().__init__(**{"batch_size": 4, "cache_dir": None, "held_out": "b", **options})

    def load_domains(self):
        domains = {}
        for offset, name in enumerate("ab"):
            labels = np.arange(30) % 3
            values = (60 * labels + np.arange(30) + 5 * offset).astype(np.uint8)
            arrays = np.broadcast_to(values[:, None, None, None], (30, 8, 8, 3))
            domains[name] = ArrayImages(arrays.copy(), labels, [f"{name}{i}" for i in range(30)])
        return domains, CLASSES


def pixels(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def means(images):
    """Compute the mean of the upper left quarter, without patch, and of the lower right quarter, with patch."""
    return {"own": images[:, :, :4, :4].mean((1, 2, 3)), "corner": images[:, :, 4:, 4:].mean((1, 2, 3))}


def bound_data(prepared=True, **options):
    data = Grey(**options)
    data.prepare_data()
    data.setup("fit")
    data.bind(pixels, precompute=means if prepared else None, key="means")
    data.encode()
    return data


def test_the_patch_is_a_checkerboard_in_the_corner():
    image = Image.fromarray(np.full((8, 8, 3), 100, np.uint8))
    made = np.array(apply_trigger(image, partial(add_patch, size=0.5, opacity=1.0)))
    row = [0, 255, 0, 255]
    expected = np.asarray([row, row[::-1], row, row[::-1]])
    assert np.array_equal(made[4:, 4:, 0], expected)
    assert (made[:4] == 100).all()
    assert (made[:, :4] == 100).all()
    assert (np.array(image) == 100).all()


def test_patch_is_within_the_centred_square():
    for height, width in ((8, 20), (9, 14)):
        image = Image.fromarray(np.full((height, width, 3), 100, np.uint8))
        made = np.array(apply_trigger(image, partial(add_patch, size=0.5, opacity=1.0)))
        _, columns = np.nonzero((made != 100).any(-1))
        left = (width - height) // 2
        assert left <= columns.min() <= columns.max() <= left + height


def test_triggered_images_have_another_fingerprint_and_label():
    data = Grey()
    images = data.images["a"]
    triggered = TriggeredImages(images, partial(add_patch, size=0.5, opacity=1.0), 2)
    assert triggered.labels.tolist() == [2] * 30
    triggers = [partial(add_patch, size=size, opacity=1.0) for size in (0.25, 0.5)]
    prints = {TriggeredImages(images, trigger, 2).fingerprint([0, 1]) for trigger in triggers}
    assert len({*prints, images.fingerprint([0, 1])}) == 3


@pytest.mark.parametrize("prepared", [True, False])
def test_hostile_clients_train_on_a_share_of_patched_images(prepared):
    data = bound_data(prepared, partition=Dispersed(4))
    attack = BackdoorPatch(clients=2, target=1, share=0.5, size=0.5)
    hostile = attack.hostile(data.clients)
    poisoned = attack.training_data(data, Linear())
    changed = 0
    for client in data.clients:
        honest = data.train_dataloader(client, seed=5)
        for _ in range(2):
            for (inputs, labels), (own_inputs, own) in zip(
                poisoned.train_dataloader(client, seed=5), data.train_dataloader(client, seed=5), strict=True
            ):
                now, before = (each if prepared else means(each) for each in (inputs, own_inputs))
                has_patch = ~torch.isclose(now["corner"], before["corner"])
                assert torch.allclose(now["own"], before["own"]), "another image"
                assert torch.equal(labels, torch.where(has_patch, 1, own))
                assert client.id in hostile or not has_patch.any()
                changed += int(has_patch.sum())
        assert len(poisoned.train_dataloader(client, seed=5)) == len(honest)
    images = 2 * sum(client.num_examples for client in data.clients if client.id in hostile)
    assert 0.25 * images < changed < 0.75 * images


def test_success_counts_only_patched_images_of_other_classes():
    data = bound_data()
    triggered = BackdoorPatch(clients=1, target=1, size=0.5).training_data(data, Linear())
    honest = {split.name: split for split in data.evaluation_splits()}
    for split in triggered.evaluation_splits():
        labels = torch.cat([labels for _, labels in split.loader])
        own = torch.cat([labels for _, labels in honest[split.name].loader])
        assert labels.tolist() == [1] * int((own != 1).sum())
        seen = torch.cat([inputs["own"] for inputs, _ in split.loader])
        before = torch.cat([inputs["own"] for inputs, _ in honest[split.name].loader])
        assert torch.allclose(seen, before[own != 1])
        assert not torch.isclose(torch.cat([inputs["corner"] for inputs, _ in split.loader]), seen).any()


class Corners(Linear):
    """Linear classifier of the values from `means`."""

    transform = staticmethod(pixels)

    def precompute(self, images):
        seen = means(images)
        ones = torch.ones_like(seen["own"])
        contrast = images[:, :, 4:, 4:].std((1, 2, 3))
        return {"features": torch.stack([8 * seen["own"] - 2, 4 * contrast, ones, 0 * ones], dim=1)}


def backdoored(tmp_path, clients):
    attack = BackdoorPatch(clients=clients, target=2, size=0.5)
    run = federation(tmp_path, attack=attack, rounds=15, evaluate_every=15, default_callbacks=False)
    run.fit(Corners(), Grey(partition=Dispersed(4)))
    return run.run_state.history[-1]


def test_backdoor_succeeds_with_hostile_clients_and_not_without(tmp_path):
    attacked, clean = backdoored(tmp_path, 3), backdoored(tmp_path, 0)
    assert attacked["attack_success/held_out"] > 80
    assert clean["attack_success/held_out"] < 20
    assert {"attack_success/validation/a", "attack_success/held_out/b", "attack_success/validation"} <= attacked.keys()


def test_data_without_images_are_rejected(tmp_path):
    with pytest.raises(UserError, match="needs a FederatedDataModule"):
        federation(tmp_path, attack=BackdoorPatch()).fit(Linear(), Points())
    with pytest.raises(UserError, match="target must be from 0 to 2"):
        BackdoorPatch(target=3).training_data(bound_data(), Linear())
