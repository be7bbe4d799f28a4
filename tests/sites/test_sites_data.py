"""What the server knows of data that it has not got."""

import pytest

from fedvlp.core.state import Client
from fedvlp.data import Shards
from fedvlp.sites.sites_data import NoBatches, SiteFacts, SitesData, SplitAtSite, options_for_sites
from fedvlp.utils.errors import UserError
from tests.helpers.images import CLASSES

FACTS = SiteFacts(tuple(CLASSES), {"train": 8, "validation": 3}, "images", "split", {})


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


def test_a_split_at_a_site_has_no_batches_here():
    assert len(NoBatches()) == 0
    assert list(NoBatches()) == []
    with pytest.raises(UserError, match="at the sites"):
        data().train_dataloader()


def test_the_held_out_domain_is_the_servers(image_root):
    known = SitesData(sites=["ink"], class_names=CLASSES, held_out="photo", root=str(image_root), cache_dir=None)
    known.bind(transform=lambda image: image)
    (split,) = [split for split in known.evaluation_splits() if split.role == "held_out"]
    assert (split.name, split.num_examples) == ("held_out/photo", 24)
    assert known.domains == ["ink", "photo"]
    assert known.split_table()[0]["domain"] == "photo"


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
        ({"partition": Shards(3)}, "one client with a domain of its own"),
        ({"out_of_distribution": "others"}, "do not tell how sure they are of single images"),
        ({"held_out": "a", "root": "."}, "name no site, but 'a' is one"),
        ({"held_out": "d"}, "Expected root"),
        ({"sites": ["a", "a"]}, "each name once"),
        ({"nodes": {"a": 7, "x": 8}}, "data.nodes names 'x'"),
    ],
)
def test_what_does_not_fit_is_refused(options, text):
    with pytest.raises(UserError, match=text):
        data(**options)
