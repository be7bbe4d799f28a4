"""Each protocol's metrics, compared with a plain loop over images without splits, caches or federations."""

import functools
import json
import statistics

import pytest
import torch

from fedvlp import FedAPT, Federation, FedPGP, PromptFL
from fedvlp.data import Dirichlet, FewClasses
from fedvlp.training.options import Runtime
from fedvlp.utils.errors import UserError
from tests.helpers.protocol_data import CLASSES, OtherNames, SixClasses

NEW = CLASSES[3:]

QUIET = Runtime(default_callbacks=False)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


@pytest.fixture(scope="module")
def trained(clip, tmp_path_factory):
    """Return a function that trains a method for one round; it returns method, data, federation and last row."""
    cache = str(tmp_path_factory.mktemp("cache"))

    @functools.cache
    def train(kind, protocol, **options):
        options = {name: list(value) if name == "targets" else value for name, value in options.items()}
        data = SixClasses(cache_dir=cache, protocol=protocol, eval_batch_size=7, **options)
        torch.manual_seed(0)
        method = kind(data.class_names, clip, optimizer=sgd, prompt_length=4)
        federation = Federation(
            rounds=1, accelerator="cpu", default_root_dir=str(tmp_path_factory.mktemp("runs")), runtime=QUIET
        )
        federation.fit(method, data)
        return method, data, federation, federation.run_state.history[-1]

    return train


def accuracy(method, data, part, label_names, class_names):
    """Compute the accuracy in percent on a split part of a method made for these classes."""
    right = []
    for domain, rows in part.rows_by_domain.items():
        images = data.images[domain]
        pixels = torch.stack([method.transform(images[row]) for row in rows.tolist()])
        with torch.no_grad():
            guesses = method(pixels).argmax(1).tolist()
        for guess, row in zip(guesses, rows.tolist(), strict=True):
            right.append(class_names[guess] == label_names[images.labels[row]])
    return 100 * sum(right) / len(right)


def rebuild(method, class_names, clip, state):
    """Rebuild the method for these classes, with the tensors of a state."""
    options = {name: value for name, value in method.hparams.items() if name not in ("clip", "class_names")}
    again = type(method)(list(class_names), clip, **options).eval()
    again.load_state(state)
    return again


def find_part(data, name):
    return next(part for part in data.split_parts if part.name == name)


def test_base_to_new_measures_both_halves_and_their_harmonic_mean(clip, trained):
    """CoOp's base-to-new: train on the first half, test each half with its own names, H = 2 b n / (b + n)."""
    method, data, federation, row = trained(PromptFL, "base_to_new", test_fraction=0.3)
    state = federation.run_state.server.deployed
    measured = {}
    for role, names in (("test", CLASSES[:3]), ("test_new", NEW)):
        judge = rebuild(method, names, clip, state)
        role_accuracies = []
        for domain in data.domains:
            found = accuracy(judge, data, find_part(data, f"{role}/{domain}"), CLASSES, names)
            assert row[f"{role}/{domain}"] == pytest.approx(found, abs=1e-4)
            role_accuracies.append(found)
        measured[role] = sum(role_accuracies) / 3
        assert row[role] == pytest.approx(measured[role], abs=1e-4)
    base, new = measured.values()
    assert row["test_harmonic"] == pytest.approx(2 * base * new / (base + new), abs=1e-4)
    assert base != new


def test_new_classes_are_measured_on_a_held_out_domain(clip, trained):
    method, data, federation, row = trained(PromptFL, "new_classes_and_domains", held_out="paint")
    assert [client.name for client in data.clients] == ["ink", "photo"]
    judge = rebuild(method, NEW, clip, federation.run_state.server.deployed)
    new = accuracy(judge, data, find_part(data, "held_out_new/paint"), CLASSES, NEW)
    assert row["held_out_new"] == row["held_out_new/paint"] == pytest.approx(new, abs=1e-4)
    assert row["held_out_harmonic"] == pytest.approx(2 * new * row["held_out"] / (new + row["held_out"]), abs=1e-4)


def perturb(personal):
    """Add noise to personal tensors, so that personal models differ from the shared model."""
    generator = torch.Generator().manual_seed(0)
    noisy = {}
    for client, state in personal.items():
        noisy[client] = {
            name: value + torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
            for name, value in state.items()
        }
    return noisy


def test_personal_and_global_models_are_measured_on_each_clients_images(clip, trained):
    options = {"test_fraction": 0.3, "partition": Dirichlet(3, 0.7, min_examples=12)}
    method, data, federation, _ = trained(FedPGP, "personal", **options)
    deployed, personal = federation.run_state.server.deployed, perturb(federation.run_state.personal)
    row = federation.evaluate(method, deployed, personal)
    own, shared = [], []
    for client in data.clients:
        part = find_part(data, f"personal/{client.name}")
        judge = rebuild(method, CLASSES, clip, deployed | personal[client.id])
        own.append(accuracy(judge, data, part, CLASSES, CLASSES))
        judge.uses_personal = False
        shared.append(accuracy(judge, data, part, CLASSES, CLASSES))
        assert row[f"personal/{client.name}"] == pytest.approx(own[-1], abs=1e-4)
        assert row[f"global/{client.name}"] == pytest.approx(shared[-1], abs=1e-4)
    for role, found in (("personal", own), ("global", shared)):
        assert row[role] == pytest.approx(sum(found) / 3, abs=1e-4)
        assert row[f"{role}_worst"] == pytest.approx(min(found), abs=1e-4)
        assert row[f"{role}_spread"] == pytest.approx(statistics.pstdev(found), abs=1e-4)
    assert own != shared


def test_another_data_set_is_measured_with_its_own_class_names(clip, trained):
    target = OtherNames(cache_dir=None, test_fraction=0.5)
    method, _, federation, row = trained(PromptFL, "cross_dataset", targets=(target,))
    judge = rebuild(method, target.class_names, clip, federation.run_state.server.deployed)
    tests = [part for part in target.split_parts if part.role == "test"]
    found = [accuracy(judge, target, part, target.class_names, target.class_names) for part in tests]
    sizes = [len(part) for part in tests]
    whole = sum(share * size for share, size in zip(found, sizes, strict=True)) / sum(sizes)
    assert row["transfer/Other"] == row["transfer"] == pytest.approx(whole, abs=1e-4)


def test_a_target_with_the_same_classes_needs_no_rebuilt_method(trained):
    target = SixClasses(cache_dir=None, held_out="ink")
    *_, row = trained(PromptFL, "cross_dataset", targets=(target,))
    assert "transfer/SixClasses" in row


def test_local_accuracy_uses_only_a_clients_classes(clip, trained):
    """FedTPG's local accuracy uses only a client's classes. Its harmonic mean covers local, base and new."""
    options = {"test_fraction": 0.3, "class_split": "client", "partition": FewClasses(2, 2)}
    method, data, federation, row = trained(PromptFL, "base_to_new", **options)
    found = []
    for client in data.clients:
        part = find_part(data, f"local/{client.name}")
        names = [CLASSES[label] for label in part.classes]
        judge = rebuild(method, names, clip, federation.run_state.server.deployed)
        found.append(accuracy(judge, data, part, CLASSES, names))
        assert row[f"local/{client.name}"] == pytest.approx(found[-1], abs=1e-4)
    means = [sum(found) / 2, row["test"], row["test_new"]]
    assert row["test_harmonic"] == pytest.approx(3 / sum(1 / mean for mean in means), abs=1e-4)


def test_methods_with_fixed_classes_are_rejected_before_training(clip, tmp_path):
    data = SixClasses(cache_dir=None, protocol="base_to_new", test_fraction=0.3)
    federation = Federation(rounds=1, accelerator="cpu", default_root_dir=str(tmp_path), runtime=QUIET)
    with pytest.raises(UserError, match=r"^FedAPT can't classify other classes, because the shape of 'prompt', \(3, "):
        federation.fit(FedAPT(data.class_names, data.domains, clip), data)
    assert not list(tmp_path.iterdir())


def test_new_classes_do_not_choose_the_round(trained):
    """Source validation, which chooses the best round, has only base classes."""
    _, data, _, row = trained(PromptFL, "base_to_new", test_fraction=0.3)
    assert {name.split("/")[0] for name in row if "new" in name} == {"test_new"}
    validation = [part for part in data.split_parts if part.role == "validation"]
    labels = [data.images[part.domains[0]].labels[part.rows_by_domain[part.domains[0]]] for part in validation]
    assert max(domain_labels.max() for domain_labels in labels) == 2
    json.dumps(data.describe())
