"""The training and measured images of each protocol, as in its papers, and wrong options."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from fedvlp.data import ByDomain, Dirichlet, FewClasses, Pooled, QuantitySkew
from fedvlp.utils.errors import UserError
from tests.helpers.protocol_data import CLASSES, SixClasses

OPTIONS = {
    "leave_domains_out": {"held_out": "photo"},
    "all_seen": {"test_fraction": 0.25},
    "base_to_new": {"test_fraction": 0.25},
    "cross_dataset": {},
    "new_classes_and_domains": {"held_out": "photo", "test_fraction": 0.25},
    "personal": {"test_fraction": 0.25},
}


def data(protocol=None, **options):
    if protocol == "cross_dataset":
        options.setdefault("targets", [SixClasses(cache_dir=None)])
    return SixClasses(**{"cache_dir": None, "protocol": protocol, **OPTIONS.get(protocol, {}), **options})


def by_role(module):
    """Map each role and name to the images' classes."""
    found = {}
    for part in module.split_parts:
        for domain, rows in part.rows_by_domain.items():
            images = module.images[domain]
            names = [(images.names[row], CLASSES[images.labels[row]]) for row in rows]
            found.setdefault(part.role, []).extend(names)
    return found


def classes(named):
    return {name for _, name in named}


@pytest.mark.parametrize("name", ["leave_domains_out", "all_seen"])
def test_naming_the_default_protocol_changes_nothing(name):
    named = data(name)
    plain = SixClasses(cache_dir=None, **OPTIONS[name])
    assert named.describe() == plain.describe()
    assert (named.protocol, named.split_hash) == (plain.protocol, plain.split_hash)
    assert named.split_table() == plain.split_table()


@pytest.mark.parametrize("name", ["base_to_new", "new_classes_and_domains"])
def test_the_first_half_of_the_classes_trains_and_both_halves_are_measured(name):
    """CoOp's split of classes, with the same images as a run on all classes."""
    module = data(name)
    roles = by_role(module)
    base, new = set(CLASSES[:3]), set(CLASSES[3:])
    assert module.class_names == CLASSES[:3]
    assert classes(roles["train"]) == classes(roles["validation"]) == classes(roles["test"]) == base
    assert classes(roles["test_new"]) == new
    everything = by_role(SixClasses(cache_dir=None, **OPTIONS[name]))
    for role in ("train", "validation"):
        assert sorted(roles[role]) == sorted(image for image in everything[role] if image[1] in base)
    assert sorted(roles["test"] + roles["test_new"]) == sorted(everything["test"])
    if name == "new_classes_and_domains":
        assert classes(roles["held_out"]) == base
        assert classes(roles["held_out_new"]) == new
        assert sorted(roles["held_out"] + roles["held_out_new"]) == sorted(everything["held_out"])


def test_new_classes_are_classified_only_among_each_other():
    module = data("base_to_new", eval_batch_size=100)
    module.setup("fit")
    module.bind(lambda image: torch.from_numpy(np.array(image)))
    splits = {split.name: split for split in module.evaluation_splits()}
    assert [name for name in splits if name.endswith("/ink")] == ["validation/ink", "test/ink", "test_new/ink"]
    assert splits["test/ink"].class_names == ()
    assert splits["test_new/ink"].class_names == tuple(CLASSES[3:])
    ((pixels, labels),) = splits["test_new/ink"].loader
    assert set(labels.tolist()) == {0, 1, 2}
    brightness = pixels[..., 0].float().mean(-1)  # [images, rows] of the domain's colour, in which a bar is drawn
    assert torch.equal(brightness.argmax(-1) // 4, labels + 3)


def test_base_and_new_classes_share_features(transform):
    encoded = []

    def precompute(images):
        encoded.extend(images)
        return {"features": images.flatten(1)}

    module = data("base_to_new")
    module.bind(transform, precompute, "key")
    module.encode()
    passes = [(inputs["features"], labels) for split in module.evaluation_splits() for inputs, labels in split.loader]
    # Training images of new classes serve neither half, so they are not encoded.
    assert len(encoded) < sum(len(images) for images in module.images.values())
    module.bind(transform)
    expected = [(images.flatten(1), labels) for split in module.evaluation_splits() for images, labels in split.loader]
    for (features, labels), (images, expected_labels) in zip(passes, expected, strict=True):
        assert torch.equal(features, images)
        assert torch.equal(labels, expected_labels)


@pytest.mark.parametrize("partition", [ByDomain(), Dirichlet(4, 0.5), QuantitySkew(5)], ids=repr)
def test_each_client_tests_on_images_of_its_own_as_it_trains(partition):
    module = data("personal", partition=partition)
    training = [part for part in module.split_parts if part.role == "train"]
    own = [part for part in module.split_parts if part.role == "personal"]
    assert [part.clients for part in own] == [part.clients for part in training]
    assert [part.name for part in own] == [f"personal/{part.clients[0].name}" for part in training]
    pool = by_role(data("all_seen"))["test"]
    dealt = by_role(module)["personal"]
    assert len(dealt) == len(set(dealt))  # clients share no image
    assert set(dealt) == set(pool)  # every class and domain has a client
    tests = sum(map(len, own))
    trained = sum(map(len, training))
    for mine, test in zip(training, own, strict=True):
        cells = counted(mine, module)
        assert set(counted(test, module)) <= set(cells)  # only the client's domains and classes
        assert len(test) == pytest.approx(len(mine) * tests / trained, abs=1 + 0.15 * len(test))


def counted(part, module):
    found = Counter()
    for domain, rows in part.rows_by_domain.items():
        found.update((domain, int(label)) for label in module.images[domain].labels[rows])
    return found


def test_the_global_model_is_measured_on_the_same_images(transform):
    module = data("personal", partition=Dirichlet(3, 1.0))
    module.setup("fit")
    module.bind(transform)
    splits = {split.name: split for split in module.evaluation_splits()}
    for client in module.clients:
        own, shared = splits[f"personal/{client.name}"], splits[f"global/{client.name}"]
        assert own.clients == shared.clients == (client,)
        for (pixels, labels), (others, other_labels) in zip(own.loader, shared.loader, strict=True):
            assert torch.equal(pixels, others)
            assert torch.equal(labels, other_labels)


def test_clients_are_measured_on_classes_of_their_own(transform):
    """FedTPG's clients share no class; each is tested on its own classes, with a classifier of these classes."""
    module = data("base_to_new", class_split="client", partition=FewClasses(3, 1))
    found = {part.clients[0].name: part for part in module.split_parts if part.role == "local"}
    assert {part.classes for part in found.values()} == {(0,), (1,), (2,)}
    assert sum(map(len, found.values())) == len(by_role(module)["test"])
    module = data("base_to_new", class_split="client", partition=FewClasses(2, 2))
    module.setup("fit")
    module.bind(transform)
    for split in module.evaluation_splits():
        if split.role == "local":
            labels = torch.cat([labels for _, labels in split.loader])
            assert set(labels.tolist()) == {0, 1}
            (part,) = [part for part in module.split_parts if part.name == split.name]
            assert split.class_names == tuple(CLASSES[label] for label in part.classes)


def test_other_data_sets_are_measured_where_they_would_test():
    whole, tested = SixClasses(cache_dir=None), SixClasses(cache_dir=None, test_fraction=0.5)
    assert transferred(whole) == {name for images in whole.images.values() for name in images.names}
    assert transferred(tested) == {name for name, _ in by_role(tested)["test"]}
    held_out = SixClasses(cache_dir=None, held_out="ink")
    assert transferred(held_out) == set(held_out.images["ink"].names)


def transferred(target):
    table = data("cross_dataset", targets=[target]).split_table()
    return {name for entry in table if entry["role"] == "transfer" for name in entry["images"]}


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("base_to_new", "base-to-new, 3 base and 3 new classes; all domains seen, test split 25 %", "base-to-new"),
        (
            "new_classes_and_domains",
            "new-classes-and-domains, 3 base and 3 new classes; held-out domain: photo; seen domains, test split 25 %",
            "new-classes-and-domains",
        ),
        ("personal", "each client on test images of its own; all domains seen, test split 25 %", "personal"),
        ("cross_dataset", "measured on SixClasses; all domains seen, no test split", "cross-dataset"),
        ("leave_domains_out", "held-out domain: photo", "leave-domains-out"),
    ],
)
def test_a_result_says_its_protocol(name, text, kind):
    module = data(name)
    assert module.protocol == f"{text}; one client per domain"
    assert module.describe()["kind"] == kind


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("leave_domains_out", {"held_out": None}, "leave_domains_out holds domains out. Name them with data.held_out"),
        ("all_seen", {"held_out": "ink"}, "all_seen holds no domain out. Remove data.held_out"),
        ("base_to_new", {"test_fraction": 0.0}, "base_to_new measures test images .* Set data.test_fraction"),
        ("personal", {"partition": Pooled()}, "centralised training has none. Use all_seen"),
        ("personal", {"partition": QuantitySkew(40)}, "the client 'client 1' with 1 training images got none. Raise"),
        ("cross_dataset", {"targets": []}, "measures other data sets. Name them with data.targets"),
        ("all_seen", {"targets": [SixClasses(cache_dir=None)]}, "the protocol is all_seen. Remove data.targets"),
        ("cross_dataset", {"targets": [SixClasses(cache_dir=None)] * 2}, "different names.*'SixClasses'"),
        ("personal", {"class_split": "client"}, "Only base_to_new supports data.class_split; .* personal"),
        ("base_to_new", {"class_split": "client"}, "their own classes, but each client has all 3. Divide the classes"),
    ],
)
def test_wrong_options_of_a_protocol_are_rejected(name, options, message):
    with pytest.raises(UserError, match=message):
        data(name, **options).prepare_data()


def test_too_few_classes_and_targets_with_a_protocol_are_refused():
    module = data("base_to_new")
    module.class_list = CLASSES[:3]
    with pytest.raises(UserError, match="at least two base and two new classes; the data set has 3"):
        module.prepare_data()
    with pytest.raises(UserError, match="SixClasses is a target, which is only measured"):
        data("cross_dataset", targets=[data("personal")])


def test_a_run_of_six_clients_of_three_domains_in_cohorts_of_two(build, capsys):
    dispersed = ["--data.held_out=null", "--data.partition=Dispersed", "--data.partition.num_clients=6"]
    options = ["--data.partition.alpha=1.0", "--data.test_fraction=0.25", "--trainer.clients.cohort_size=2"]
    options += ["--trainer.rounds=1", "--trainer.local.steps=1", "--trainer.baselines=[]"]
    run = build("promptfl", *dispersed, *options)
    run.trainer.fit(run.model, run.datamodule)
    (row,) = run.trainer.run_state.history
    assert sum(name.endswith("/loss") for name in row) == 2
    for role in ("validation", "test"):
        found = {name: value for name, value in row.items() if name.split("/")[0] == role}
        assert found.keys() == {role, f"{role}/ink", f"{role}/paint", f"{role}/photo"}
        assert found.pop(role) == pytest.approx(sum(found.values()) / 3)
    summary = json.loads((run.trainer.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["protocol"] == "all domains seen, test split 25 %; 6 clients, Dirichlet 1 within domains"
    assert list(summary["clients"]) == ["ink 1", "ink 2", "paint 1", "paint 2", "photo 1", "photo 2"]
    assert "+ test split" in capsys.readouterr().out
    tested = {name: value for name, value in row.items() if name.split("/")[0] == "test"}
    assert run.trainer.test(run.model, run.datamodule) == tested
    run = build("promptfl", "--data.held_out=null")
    with pytest.raises(UserError, match=r"data\.held_out or --data\.test_fraction"):
        run.trainer.test(run.model, run.datamodule)
