"""A site splits its images as a simulation on the folders of all sites does."""

import numpy as np
import pytest
import torch

from fedvlp.core.state import Client
from fedvlp.data import DomainFolders
from fedvlp.sites.site_data import SiteFolder
from fedvlp.utils.errors import UserError
from tests.helpers.data import batches, same
from tests.helpers.images import CLASSES, DOMAINS, draw

OPTIONS = {"validation_fraction": 0.4, "test_fraction": 0.3, "split_seed": 11, "batch_size": 2, "cache_dir": None}


def to_tensor(image):
    return torch.from_numpy(np.array(image)).float()


def everyone(root, **options):
    data = DomainFolders(root=str(root), **{**OPTIONS, **options})
    data.bind(transform=to_tensor, train_transform=to_tensor)
    return data


def site(root, name, place=(0, 0), **options):
    data = SiteFolder(root=str(root / name), domain=name, classes=CLASSES, place=place, **{**OPTIONS, **options})
    data.bind(transform=to_tensor, train_transform=to_tensor)
    return data


@pytest.mark.parametrize("options", [{}, {"shots": 1}, {"split_seed": 4, "test_fraction": 0.0}])
@pytest.mark.parametrize("place", range(3))
def test_batches_and_splits_are_those_of_the_simulation(image_root, place, options):
    name = DOMAINS[place]
    whole = everyone(image_root, **options)
    own = site(image_root, name, (place, place), **options)
    client = whole.clients[place]
    assert own.clients == [client]
    assert same(batches(own.train_dataloader(client, seed=9)), batches(whole.train_dataloader(client, seed=9)))
    assert not same(batches(own.train_dataloader(client, seed=9)), batches(own.train_dataloader(client, seed=8)))
    expected = [split for split in whole.evaluation_splits() if split.domain == name]
    found = own.evaluation_splits()
    assert [split.name for split in found] == [split.name for split in expected]
    for one, other in zip(found, expected, strict=True):
        assert same(batches(one.loader), batches(other.loader))


def test_names_are_those_of_the_simulation_so_that_both_read_the_same_cache(image_root):
    whole = everyone(image_root)
    own = site(image_root, "paint")
    assert own._images["paint"].names == whole._images["paint"].names
    rows = range(len(own._images["paint"]))
    assert own._images["paint"].fingerprint(rows) == whole._images["paint"].fingerprint(rows)


def test_the_clients_id_is_the_servers(image_root):
    own = site(image_root, "ink", (7, 5))
    assert own.clients == [Client(7, 5, 6, "ink")]
    assert len(list(own.train_dataloader(own.clients[0], seed=1))) == 3


def test_labels_follow_the_servers_list_of_classes(tmp_path):
    for label, name in enumerate(["star", "extra"]):
        (tmp_path / name / "deep" / "er").mkdir(parents=True)
        draw(0, label, 0).save(tmp_path / name / "deep" / "er" / "0.png")
    own = SiteFolder(root=str(tmp_path), domain="any", classes=CLASSES, **OPTIONS)
    assert own.found_classes == ["extra", "star"]
    assert own._images["any"].labels.tolist() == [CLASSES.index("star")]
    assert own._images["any"].names == ["any/star/deep/er/0.png"]


@pytest.mark.parametrize("make", [lambda root: None, lambda root: root.mkdir(), lambda root: _image_at(root)])
def test_a_folder_without_class_folders_is_refused(tmp_path, make):
    make(tmp_path / "ink")
    with pytest.raises(UserError, match="Expected"):
        site(tmp_path, "ink").prepare_data()


def _image_at(root):
    root.mkdir()
    draw(0, 0, 0).save(root / "0.png")


def test_bad_images_are_refused_or_skipped(tmp_path, caplog):
    for name in CLASSES:
        (tmp_path / "ink" / name).mkdir(parents=True)
        for index in range(3):
            draw(0, 0, index).save(tmp_path / "ink" / name / f"{index}.png")
    (tmp_path / "ink" / "star" / "1.png").write_bytes(b"none")
    with pytest.raises(UserError, match=r"ink/star/1\.png"):
        site(tmp_path, "ink").prepare_data()
    assert len(site(tmp_path, "ink", on_bad_image="skip")._images["ink"]) == 8
