"""Closed-form classifiers: equal to a slow solution on pooled features, for any partition of the images."""

import pytest
import torch
import torch.nn.functional as F

from fedvlp import CentredMeans, Fed3R, FedCOF, FedGDA, FedNCM, TipAdapter
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


def tip_logits(x, y, parts, texts, scale):
    """Compute Tip-Adapter's logits of each image, with a key per client and class."""
    rows = []
    for image in x:
        row = []
        for label, text in enumerate(texts):
            logit = scale * (image @ text)
            for part in parts:
                own = [x[i] for i in part if y[i] == label]
                if own:
                    key = sum(own) / sum(own).norm()
                    logit = logit + 7 * torch.exp(-2.5 * (1 - image @ key))
            row.append(logit)
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("classes", [(0, 1, 2, 3), (0, 3)])
def test_tip_adapter_equals_a_sum_over_keys(clip, classes):
    features, labels = images(40, classes)
    parts = partition(40, 5, seed=1)
    method = TipAdapter(NAMES, 6, clip, cache_weight=7, sharpness=2.5)  # one more client, which sends nothing
    method.load_state(classifier(method, features, labels, parts))
    x = F.normalize(features.double(), dim=-1)
    expected = tip_logits(x, labels, parts, method.text_features.double(), clip.logit_scale)
    torch.testing.assert_close(method({"features": features}).double(), expected, rtol=1e-5, atol=1e-4)


def test_tip_adapter_needs_neither_an_order_nor_names_of_clients(clip):
    features, labels = images(40)
    parts = partition(40, 5, seed=1)
    method = TipAdapter(NAMES, 5, clip)
    logits = []
    for order in (parts, parts[::-1]):
        method.load_state(classifier(method, features, labels, order))
        logits.append(method({"features": features}))
    torch.testing.assert_close(logits[1], logits[0])


def test_centred_means_equal_class_means_of_centred_images(clip):
    features, labels = images(40)
    parts = partition(40, 4, seed=1)
    method = CentredMeans(NAMES, clip, text_weight=0.7)
    found = classifier(method, features, labels, parts)
    x = F.normalize(features.double(), dim=-1)
    centred = x.clone()
    for part in parts:
        centred[part] = x[part] - sum(x[part]) / len(part)
    expected = ncm(centred, labels, method.text_features.double())
    torch.testing.assert_close(found["weight"].double(), expected, rtol=1e-4, atol=1e-5)
    method.load_state(found)
    method.see_test_images([{"features": features[:9]}, {"features": features[9:13]}])
    logits = clip.logit_scale * (x - sum(x[:13]) / 13) @ expected.T
    torch.testing.assert_close(method({"features": features}).double(), logits, rtol=1e-4, atol=1e-4)


def test_centring_depends_on_neither_the_order_of_test_images_nor_their_number(clip):
    features, labels = images(40)
    method = CentredMeans(NAMES, clip)
    method.load_state(classifier(method, features, labels, partition(40, 3, seed=1)))
    logits = []
    for batches in (features.split(40), features.flip(0).split(7), torch.cat([features, features]).split(16)):
        method.see_test_images({"features": batch} for batch in batches)
        logits.append(method({"features": features}))
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-4, atol=1e-4)


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
