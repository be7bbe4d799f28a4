"""DiPrompT's losses and logits, compared with slow versions in NumPy."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedvlp.methods.diprompt import domain_terms, ensemble_logits, given_class, pair_logits, query_terms

IMAGES = 5
CLASSES = 4
DOMAINS = 3
WIDTH = 6
SCALE = 7.0


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


@pytest.fixture
def images():
    return random(IMAGES, WIDTH, seed=1)


@pytest.fixture
def labels():
    return torch.tensor([0, 3, 1, 1, 2])


@pytest.fixture
def features():
    return random(CLASSES, DOMAINS, WIDTH, seed=2)


@pytest.fixture
def others():
    return random(CLASSES, DOMAINS, WIDTH, seed=3)


def cosine(one, other):
    one = np.asarray(one, np.float64)
    other = np.asarray(other, np.float64)
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def test_pair_logits_give_the_joint_softmax(images, features, labels):
    """Eq. 6, and the best domain under the true class and over all classes."""
    logits = pair_logits(images, features, SCALE)
    for b in range(IMAGES):
        pairs = [(j, m) for j in range(CLASSES) for m in range(DOMAINS)]
        expected = dict(zip(pairs, softmax([SCALE * cosine(images[b], features[j, m]) for j, m in pairs]), strict=True))
        found = logits[b].flatten().softmax(0).view(CLASSES, DOMAINS)
        assert all(found[pair].item() == pytest.approx(expected[pair], rel=1e-4) for pair in pairs)
        under_class = max(range(DOMAINS), key=lambda m: expected[int(labels[b]), m])
        assert given_class(logits, labels)[b].argmax().item() == under_class
        assert logits.amax(1).argmax(1)[b].item() == max(pairs, key=expected.__getitem__)[1]


def test_domain_terms_use_each_images_own_domain(images, labels, features, others):
    """Eq. 3: cross-entropy under Z^m, and the contrast per class with the positive pair in the denominator."""
    domains = torch.tensor([2, 0, 2, 2, 1])
    cross_entropy = []
    contrast = []
    for b, m in enumerate(domains.tolist()):
        shares = softmax([SCALE * cosine(images[b], features[j, m]) for j in range(CLASSES)])
        cross_entropy.append(-np.log(shares[labels[b]]))
        by_class = []
        for j in range(CLASSES):
            positive = np.exp(cosine(features[j, m], others[j, m]))
            negatives = sum(np.exp(cosine(features[j, m], features[j, i])) for i in range(DOMAINS) if i != m)
            by_class.append(-np.log(positive / (positive + negatives)))
        contrast.append(np.mean(by_class))
    terms = domain_terms(images, labels, domains, features, others, SCALE)
    assert terms["domain"].item() == pytest.approx(np.mean(cross_entropy), rel=1e-4)
    assert terms["contrast"].item() == pytest.approx(np.mean(contrast), rel=1e-4)


def test_query_terms_match_the_equations(images, labels, features, others):
    """Eq. 7 with softmaxes over the domains, and -log of Eq. 6 summed over the domains of the true class.

    If domains are known, the sum contains only the image's domain.
    """
    domains = torch.tensor([0, 2, 1, 0, 2])
    cross_entropy = []
    known_domain = []
    squares = []
    divergence = []
    for b, y in enumerate(labels.tolist()):
        joint = softmax([[SCALE * cosine(images[b], z) for z in row] for row in features])
        cross_entropy.append(-np.log(joint[y].sum()))
        known_domain.append(-np.log(joint[y][domains[b]]))
        squares.append(sum(float(((features[y, m] - others[y, m]) ** 2).sum()) for m in range(DOMAINS)))
        before = softmax([SCALE * cosine(images[b], others[y, m]) for m in range(DOMAINS)])
        now = softmax([SCALE * cosine(images[b], features[y, m]) for m in range(DOMAINS)])
        divergence.append((before * np.log(before / now)).sum())
    terms = query_terms(images, labels, features, others, SCALE)
    assert terms["query"].item() == pytest.approx(np.mean(cross_entropy), rel=1e-4)
    assert terms["mse"].item() == pytest.approx(np.mean(squares), rel=1e-4)
    assert terms["kl"].item() == pytest.approx(np.mean(divergence), rel=1e-3)
    known = query_terms(images, labels, features, others, SCALE, domains)
    assert known["query"].item() == pytest.approx(np.mean(known_domain), rel=1e-4)


@pytest.mark.parametrize("with_global", [True, False])
def test_ensemble_weights_domains_by_their_best_cosine(images, features, with_global):
    """Eq. 8, with each Z normalised before mixing and the mixture normalised afterwards."""
    images = images + features.mean((0, 1))  # makes the best cosines differ
    general = random(CLASSES, WIDTH, seed=4)
    expected = np.empty((IMAGES, CLASSES))
    for b in range(IMAGES):
        best = [max(max(cosine(images[b], features[j, m]) for j in range(CLASSES)), 0) for m in range(DOMAINS)]
        weights = np.asarray(best) / sum(best)
        for j in range(CLASSES):
            mixture = sum(weights[m] * (features[j, m] / features[j, m].norm()).numpy() for m in range(DOMAINS))
            mixture = mixture + (general[j] / general[j].norm()).numpy() * with_global
            expected[b, j] = SCALE * cosine(images[b], mixture)
    found = ensemble_logits(images, features, general if with_global else None, SCALE)
    assert np.allclose(found.numpy(), expected, atol=1e-4)
