"""The server's data module before sites connect, and a site's images, split like in a simulation."""

import numpy as np
import pytest
import torch

from fedvlp.core.state import Client
from fedvlp.data import DomainFolders, Shards
from fedvlp.sites.data import SiteImages, SitesData, SplitAtSite, options_for_sites
from fedvlp.sites.wire import SiteFacts
from fedvlp.utils.errors import UserError
from tests.helpers.data import batches, same
from tests.helpers.images import CLASSES, DOMAINS, draw

COUNTS = {"train": 8, "validation": 3}
FACTS = SiteFacts(classes=CLASSES, counts=COUNTS, images="images", split="split", versions={})


def data(**options):
    return SitesData(**{"sites": ["b", "a", "c"], "class_names": ["y", "x"], "cache_dir": None, **options})


def test_clients_are_known_before_they_connect():
    server_data = data()
    server_data.bind(transform=lambda image: image)
    assert server_data.num_clients == 3
    assert server_data.class_names == ["x", "y"]
    assert server_data.source_domains == ["a", "b", "c"]
    server_data.facts["b"] = FACTS
    assert server_data.clients == [Client(0, 0, 0, "a"), Client(1, 1, 8, "b"), Client(2, 2, 0, "c")]
    names = [split.name for split in server_data.evaluation_splits() if isinstance(split, SplitAtSite)]
    assert names == ["validation/a", "validation/b", "validation/c"]
    with pytest.raises(UserError, match="at the sites"):
        server_data.train_dataloader()


def test_the_held_out_domain_is_at_the_server(image_root):
    server_data = SitesData(sites=["ink"], class_names=CLASSES, held_out="photo", root=str(image_root), cache_dir=None)
    server_data.bind(transform=lambda image: image)
    (split,) = [split for split in server_data.evaluation_splits() if split.role == "held_out"]
    assert (split.name, split.num_examples) == ("held_out/photo", 24)
    assert server_data.domains == ["ink", "photo"]
    assert server_data.split_table()[0]["domain"] == "photo"
    server_data = SitesData(
        sites=["ink"], class_names=CLASSES[1:], held_out="photo", root=str(image_root), cache_dir=None
    )
    with pytest.raises(UserError, match=f"lacks the class folder '{CLASSES[0]}' of 'photo'"):
        server_data.prepare_data()


def test_the_description_contains_the_sites_images():
    one = data()
    other = data()
    one.facts["a"] = FACTS
    assert one.describe()["images"] != other.describe()["images"]
    assert one.split_hash == other.split_hash != data(split_seed=3).split_hash


def test_sites_receive_all_options_that_determine_a_split():
    options = options_for_sites(
        data(shots=4, validation_fraction=0.3, augmentation="crop_flip", class_names_map={"x": "z"})
    )
    assert options["classes"] == ["x", "y"]
    assert (options["shots"], options["validation_fraction"], options["augmentation"]) == (4, 0.3, "crop_flip")
    assert options["class_names_map"] == {"x": "z"}


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
def test_unsupported_options_are_rejected(options, text):
    with pytest.raises(UserError, match=text):
        data(**options)


OPTIONS = {"validation_fraction": 0.4, "test_fraction": 0.3, "split_seed": 11, "batch_size": 2, "cache_dir": None}


def to_tensor(image):
    return torch.from_numpy(np.array(image)).float()


def simulated_data(root, **options):
    data = DomainFolders(root=str(root), **{**OPTIONS, **options})
    data.bind(transform=to_tensor, train_transform=to_tensor)
    return data


def site(root, name, ids=(0, 0), **options):
    data = SiteImages(root=str(root / name), domain=name, classes=CLASSES, ids=ids, **{**OPTIONS, **options})
    data.bind(transform=to_tensor, train_transform=to_tensor)
    return data


@pytest.mark.parametrize(
    ("index", "options"), [(0, {}), (1, {"shots": 1}), (2, {"split_seed": 4, "test_fraction": 0.0})]
)
def test_batches_and_splits_equal_the_simulation(index, options, image_root):
    name = DOMAINS[index]
    whole = simulated_data(image_root, **options)
    site_data = site(image_root, name, (index, index), **options)
    client = whole.clients[index]
    assert site_data.clients == [client]
    # Both use the same cache.
    assert site_data.images[name].names == whole.images[name].names
    rows = range(len(site_data.images[name]))
    assert site_data.images[name].fingerprint(rows) == whole.images[name].fingerprint(rows)
    assert same(batches(site_data.train_dataloader(client, seed=9)), batches(whole.train_dataloader(client, seed=9)))
    expected = [split for split in whole.evaluation_splits() if split.domain == name]
    found = site_data.evaluation_splits()
    assert [split.name for split in found] == [split.name for split in expected]
    for one, other in zip(found, expected, strict=True):
        assert same(batches(one.loader), batches(other.loader))


def test_labels_follow_the_servers_class_list(tmp_path):
    for label, name in enumerate(["star", "extra"]):
        (tmp_path / name / "deep" / "er").mkdir(parents=True)
        draw(0, label, 0).save(tmp_path / name / "deep" / "er" / "0.png")
    site_data = SiteImages(root=str(tmp_path), domain="any", classes=CLASSES, **OPTIONS)
    assert site_data.classes_with_images == ["extra", "star"]
    assert site_data.images["any"].labels.tolist() == [CLASSES.index("star")]
    assert site_data.images["any"].names == ["any/star/deep/er/0.png"]


def test_a_table_is_split_like_the_class_folders_of_the_site(image_root, tmp_path):
    folders = SiteImages(str(image_root / "ink"), "ink", CLASSES, cache_dir=None)
    rows = ["path,label"]
    for file in sorted((image_root / "ink").glob("*/*.png")):
        rows.append(f"{file.relative_to(image_root)},{file.parent.name}")
    (tmp_path / "images.csv").write_text("\n".join(rows))
    table = SiteImages(str(image_root), "ink", CLASSES, table=str(tmp_path / "images.csv"), cache_dir=None)
    assert table.split_table() == folders.split_table()
    assert table.classes_with_images == sorted(CLASSES)
