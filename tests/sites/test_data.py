"""What the server knows of data that it has not got, and a site's images, split as a simulation splits them."""

import numpy as np
import pytest
import torch

from fedvlp.core.state import Client
from fedvlp.data import DomainFolders, Shards
from fedvlp.sites.data import SiteFolder, SitesData, SplitAtSite, options_for_sites
from fedvlp.sites.wire import SiteFacts
from fedvlp.utils.errors import UserError
from tests.helpers.data import batches, same
from tests.helpers.images import CLASSES, DOMAINS, draw

COUNTS = {"train": 8, "validation": 3}
FACTS = SiteFacts(classes=CLASSES, counts=COUNTS, images="images", split="split", versions={})


def data(**options):
    return SitesData(**{"sites": ["b", "a", "c"], "class_names": ["y", "x"], "cache_dir": None, **options})


def test_clients_are_known_before_they_are_there():
    known = data()
    known.bind(transform=lambda image: image)
    assert known.num_clients == 3
    assert known.class_names == ["x", "y"]
    assert known.source_domains == ["a", "b", "c"]
    known.facts["b"] = FACTS
    assert known.clients == [Client(0, 0, 0, "a"), Client(1, 1, 8, "b"), Client(2, 2, 0, "c")]
    names = [split.name for split in known.evaluation_splits() if isinstance(split, SplitAtSite)]
    assert names == ["validation/a", "validation/b", "validation/c"]
    with pytest.raises(UserError, match="at the sites"):
        known.train_dataloader()


def test_the_held_out_domain_is_the_servers(image_root):
    known = SitesData(sites=["ink"], class_names=CLASSES, held_out="photo", root=str(image_root), cache_dir=None)
    known.bind(transform=lambda image: image)
    (split,) = [split for split in known.evaluation_splits() if split.role == "held_out"]
    assert (split.name, split.num_examples) == ("held_out/photo", 24)
    assert known.domains == ["ink", "photo"]
    assert known.split_table()[0]["domain"] == "photo"
    known = SitesData(sites=["ink"], class_names=CLASSES[1:], held_out="photo", root=str(image_root), cache_dir=None)
    with pytest.raises(UserError, match=f"lacks the class folder '{CLASSES[0]}' of 'photo'"):
        known.prepare_data()


def test_what_the_sites_have_is_in_the_description():
    one = data()
    other = data()
    one.facts["a"] = FACTS
    assert one.describe()["images"] != other.describe()["images"]
    assert one.split_hash == other.split_hash != data(split_seed=3).split_hash


def test_sites_are_told_what_a_split_depends_on():
    told = options_for_sites(
        data(shots=4, validation_fraction=0.3, augmentation="crop_flip", class_names_map={"x": "z"})
    )
    assert told["classes"] == ["x", "y"]
    assert (told["shots"], told["validation_fraction"], told["augmentation"]) == (4, 0.3, "crop_flip")
    assert told["class_names_map"] == {"x": "z"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"partition": Shards(3)}, "one client with its own domain"),
        ({"out_of_distribution": "others"}, "do not send the confidence of single images"),
        ({"held_out": "a", "root": "."}, "held_out names the site 'a'"),
        ({"held_out": "d"}, "Expected data.root"),
        ({"sites": ["a", "a"]}, "distinct names of sites"),
        ({"nodes": {"a": 7, "x": 8}}, "data.nodes names 'x'"),
        ({"class_names": ["x"]}, "two classes or more; got 'x'"),
    ],
)
def test_what_does_not_fit_is_refused(options, text):
    with pytest.raises(UserError, match=text):
        data(**options)


OPTIONS = {"validation_fraction": 0.4, "test_fraction": 0.3, "split_seed": 11, "batch_size": 2, "cache_dir": None}


def to_tensor(image):
    return torch.from_numpy(np.array(image)).float()


def everyone(root, **options):
    data = DomainFolders(root=str(root), **{**OPTIONS, **options})
    data.bind(transform=to_tensor, train_transform=to_tensor)
    return data


def site(root, name, ids=(0, 0), **options):
    data = SiteFolder(root=str(root / name), domain=name, classes=CLASSES, ids=ids, **{**OPTIONS, **options})
    data.bind(transform=to_tensor, train_transform=to_tensor)
    return data


@pytest.mark.parametrize(
    ("place", "options"), [(0, {}), (1, {"shots": 1}), (2, {"split_seed": 4, "test_fraction": 0.0})]
)
def test_batches_and_splits_are_those_of_the_simulation(place, options, image_root):
    name = DOMAINS[place]
    whole = everyone(image_root, **options)
    site_data = site(image_root, name, (place, place), **options)
    client = whole.clients[place]
    assert site_data.clients == [client]
    # Both read the same cache.
    assert site_data.images[name].names == whole.images[name].names
    rows = range(len(site_data.images[name]))
    assert site_data.images[name].fingerprint(rows) == whole.images[name].fingerprint(rows)
    assert same(batches(site_data.train_dataloader(client, seed=9)), batches(whole.train_dataloader(client, seed=9)))
    expected = [split for split in whole.evaluation_splits() if split.domain == name]
    found = site_data.evaluation_splits()
    assert [split.name for split in found] == [split.name for split in expected]
    for one, other in zip(found, expected, strict=True):
        assert same(batches(one.loader), batches(other.loader))


def test_labels_follow_the_servers_list_of_classes(tmp_path):
    for label, name in enumerate(["star", "extra"]):
        (tmp_path / name / "deep" / "er").mkdir(parents=True)
        draw(0, label, 0).save(tmp_path / name / "deep" / "er" / "0.png")
    site_data = SiteFolder(root=str(tmp_path), domain="any", classes=CLASSES, **OPTIONS)
    assert site_data.classes_with_images == ["extra", "star"]
    assert site_data.images["any"].labels.tolist() == [CLASSES.index("star")]
    assert site_data.images["any"].names == ["any/star/deep/er/0.png"]
