"""Closed-form classifiers: equal to a slow solution on pooled features, for any partition of the images."""

import pytest
import torch
import torch.nn.functional as F

from fedvlp import Fed3R, FedCOF, FedGDA, FedNCM
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client, ClientUpdate, ServerState

NAMES = ["dog", "red car", "owl", "house"]
WIDTH = 128


def images(count, classes=(0, 1, 2, 3), seed=0):
    """Draw labels, and features of different lengths around a centre for each class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (count,), generator=generator)]
    centres = 2 * torch.randn(len(NAMES), WIDTH, generator=generator)
    lengths = 1 + 4 * torch.rand(count, 1, generator=generator)
    return lengths * (centres[labels] + torch.randn(count, WIDTH, generator=generator)), labels


def partition(count, num_clients, seed):
    """Split images into random parts of random sizes, none of them empty."""
    generator = torch.Generator().manual_seed(seed)
    cuts = 1 + torch.randperm(count - 1, generator=generator)[: num_clients - 1].sort().values
    return torch.randperm(count, generator=generator).tensor_split(cuts.tolist())


def uploads(method, features, labels, parts):
    """Compute the updates of clients with these parts of the images, in batches of three."""
    (phase,) = method.configure_phases()
    updates = []
    for number, part in enumerate(parts):
        client = Client(number, 0, len(part))
        method.start_client(RoundContext(0, phase, client))
        for index, batch in enumerate(part.split(3)):
            method.training_step(({"features": features[batch]}, labels[batch]), index)
        state = {name: value.clone() for name, value in method.upload_state().items()}
        updates.append(ClientUpdate(client, state, len(part)))
    return updates


def classifier(method, features, labels, parts):
    (phase,) = method.configure_phases()
    server = ServerState.start(method.shared_state())
    return phase.aggregate(server, uploads(method, features, labels, parts)).deployed


def ncm(x, y, texts):
    rows = []
    for label, text in enumerate(texts):
        features = [x[i] for i in range(len(x)) if y[i] == label]
        mean = sum(features) / len(features) if features else text
        row = mean / mean.norm() + 0.7 * text
        rows.append(row / row.norm())
    return torch.stack(rows)


def ridge(x, y, texts):
    gram = 0.3 * torch.eye(WIDTH, dtype=x.dtype)
    for image in x:
        gram += torch.outer(image, image)
    rows = []
    for label, text in enumerate(texts):
        target = sum(x[i] for i in range(len(x)) if y[i] == label)
        row = torch.linalg.inv(gram) @ target
        rows.append(row / row.norm() + 0.7 * text)
    return torch.stack(rows)


def discriminants(x, y, texts, scale, shrinkage):
    """Compute textbook linear discriminants, with shrinkage of the pooled covariance, scaled by 1 / s."""
    means = [sum(x[i] for i in range(len(x)) if y[i] == label) / (y == label).sum() for label in range(len(texts))]
    covariance = sum(torch.outer(x[i] - means[y[i]], x[i] - means[y[i]]) for i in range(len(x))) / len(x)
    mean_variance = covariance.diagonal().mean()
    precision = torch.linalg.inv((1 - shrinkage) * covariance + shrinkage * mean_variance * torch.eye(WIDTH).double())
    rows = [precision @ mean / scale + 0.7 * text for mean, text in zip(means, texts, strict=True)]
    return torch.stack(rows), torch.stack([-(mean @ precision @ mean) / 2 for mean in means])


def make(kind, clip, **options):
    clients = {"num_clients": 5} if kind in (Fed3R, FedGDA, TipAdapter) else {}
    weight = {} if kind is TipAdapter else {"text_weight": 0.7}
    return kind(NAMES, clip=clip, **weight, **clients, **options)


@pytest.mark.parametrize(("kind", "options", "slow"), [(FedNCM, {}, ncm), (Fed3R, {"ridge": 0.3}, ridge)])
def test_the_classifier_equals_one_of_all_pooled_images(clip, kind, options, slow):
    features, labels = images(40)
    method = make(kind, clip, **options)
    found = classifier(method, features, labels, partition(40, 5, seed=1))
    expected = slow(F.normalize(features.double(), dim=-1), labels, method.text_features.double())
    torch.testing.assert_close(found["weight"].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shrinkage", [None, 0.2])
def test_gaussian_discriminants_equal_those_of_pooled_images(clip, shrinkage):
    features, labels = images(40)
    method = make(FedGDA, clip, shrinkage=shrinkage)
    found = classifier(method, features, labels, partition(40, 5, seed=1))
    share = WIDTH / (39 + WIDTH) if shrinkage is None else shrinkage
    x = F.normalize(features.double(), dim=-1)
    weight, bias = discriminants(x, labels, method.text_features.double(), clip.logit_scale, share)
    # Clients send moments in float32, and the covariance has small eigenvalues.
    assert (found["weight"] - weight).norm() <= 1e-4 * weight.norm()
    assert (found["bias"] - bias).norm() <= 1e-4 * bias.norm()


def test_fed_cof_matches_the_paper(clip):
    features, labels = images(60)
    parts = partition(60, 5, seed=2)
    method = make(FedCOF, clip, shrinkage=0.02)
    x = F.normalize(features.double(), dim=-1)
    gram = 60 * torch.outer(x.mean(0), x.mean(0))
    for label in range(len(NAMES)):
        class_features = x[labels == label]
        means = [x[part][labels[part] == label] for part in parts]
        moves = [(len(mean) ** 0.5) * (mean.mean(0) - class_features.mean(0)) for mean in means if len(mean)]
        spread = sum(torch.outer(move, move) for move in moves)
        covariance = spread / (len(moves) - 1) + 0.02 * torch.eye(WIDTH)
        gram += (len(class_features) - 1) * covariance
    solution = torch.stack([torch.linalg.inv(gram) @ x[labels == label].sum(0) for label in range(len(NAMES))])
    expected = F.normalize(solution, dim=-1) + 0.7 * method.text_features.double()
    found = classifier(method, features, labels, parts)
    torch.testing.assert_close(found["weight"].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [FedNCM, Fed3R, FedGDA])
def test_any_partition_of_the_images_gives_the_same_classifier(clip, kind):
    features, labels = images(50)
    method = make(kind, clip)
    logits = []
    for seed in range(10):
        method.load_state(classifier(method, features, labels, partition(50, 5, seed)))
        logits.append(method({"features": features}))
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [FedNCM, Fed3R, FedCOF])
def test_a_class_without_images_keeps_its_text_feature(clip, kind):
    features, labels = images(40, classes=(0, 2, 3))
    method = make(kind, clip)
    found = classifier(method, features, labels, partition(40, 5, seed=3))
    row = F.normalize(found["weight"][1], dim=-1)
    torch.testing.assert_close(row, method.text_features[1])
    assert not torch.allclose(F.normalize(found["weight"][0], dim=-1), method.text_features[0], atol=0.05)


@pytest.mark.parametrize("kind", [FedNCM, Fed3R, FedGDA, FedCOF, TipAdapter])
def test_before_the_first_round_it_is_zero_shot_clip(clip, kind):
    features, _ = images(5)
    method = make(kind, clip)
    torch.testing.assert_close(method({"features": features}), method.baseline()({"features": features}))
