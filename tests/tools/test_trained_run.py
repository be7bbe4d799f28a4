"""The clients and labels of a run's images."""

import pytest
import torch

from fedvlp.data import Dirichlet, Pooled
from fedvlp.tools.trained_run import evaluation_images, read_pixels, training_images
from fedvlp.utils.errors import UserError


def names_of(data, role):
    return {
        (entry["client"], entry["domain"]): entry["images"] for entry in data.split_table() if entry["role"] == role
    }


@pytest.mark.parametrize("partition", [None, Dirichlet(num_clients=3, alpha=1.0)], ids=["domains", "mixed"])
def test_images_follow_the_split(folders, partition):
    data = folders(partition=partition)
    names = {}
    for client, images in training_images(data).items():
        pixels = read_pixels(images)
        for index, image in enumerate(images):
            names.setdefault((client.id, image.domain), []).append(image.name)
            expected, label = image.dataset[image.position]
            assert torch.equal(pixels[index], expected)
            assert image.label == label
    assert names == names_of(data, "train")
    measured = {
        domain: [image.name for image in images] for domain, images in evaluation_images(data, "validation").items()
    }
    assert measured == {domain: names for (_, domain), names in names_of(data, "validation").items()}


def test_a_role_has_only_images_of_its_domains_and_pooled_images_have_no_clients(folders):
    data = folders(test_fraction=0.25)
    assert list(evaluation_images(data, "test")) == ["ink", "paint"]
    assert list(evaluation_images(data, "held_out")) == ["photo"]
    with pytest.raises(UserError, match="got a centralised one"):
        training_images(folders(partition=Pooled()))
