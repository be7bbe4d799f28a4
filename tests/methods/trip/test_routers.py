"""Every router of TRIP: its definition, image by image, and properties that all routers share."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from fedvlp import TRIP, PromptFL
from fedvlp.methods.trip.clustering import capacity_kmeans, cluster_capacities
from fedvlp.methods.trip.hashing import image_seeds, random_start

CLASSES = ["red circle", "star", "big square"]
LABELS = range(9)  # the fixture makes one image per label
OWN = [
    {"routing": "token", "cluster_start": "keys"},
    {"routing": "token", "key_init": "binary", "train_capacity": None},
    {"matched_to": "experts"},
    {"routing": "uniform"},
    {"routing": "random"},
    {"routing": "random_tokens"},
    {"routing": "learned_token"},
    {"routing": "learned_image"},
]
ALL = [{"routing": "token"}, *OWN]


def make(clip, **options):
    torch.manual_seed(0)
    module = TRIP(CLASSES, clip, num_experts=3, prompt_length=4, **options)
    with torch.no_grad():
        module.experts.mul_(20)  # larger, so that experts differ
    return module


def route(module, images, training):
    return module.train(training).router(module.precompute(images), module.expert_features)


@pytest.mark.parametrize("options", ALL, ids=str)
def test_weights_sum_to_one_and_are_reproducible(clip, images, options):
    weights = route(make(clip, **options), images, training=True)
    torch.testing.assert_close(weights.sum(1), torch.ones(9))
    assert (weights >= 0).all()
    torch.manual_seed(77)
    assert torch.equal(route(make(clip, **options), images, training=True), weights)


@pytest.mark.parametrize("options", OWN, ids=str)
def test_weights_do_not_depend_on_the_batch(clip, images, options):
    module = make(clip, **options)
    order = torch.tensor([4, 0, 8, 2])
    for training in (True, False):
        weights = route(module, images, training)
        torch.testing.assert_close(route(module, images[order], training), weights[order])
        torch.testing.assert_close(route(module, images[3:4], training), weights[3:4])


def test_keys_are_constants_that_are_broadcast_once(clip):
    for options in ALL:
        module = make(clip, **options)
        has_keys = options.get("routing", "token") == "token" and "matched_to" not in options
        assert module.broadcast_once == (("router.keys",) if has_keys else ())
        assert [name for name, _ in module.named_buffers() if "keys" in name] == list(module.broadcast_once)
    assert make(clip).router.keys.shape == (3, clip.image_width)


def test_uniform_routing_equals_the_mean_prompt(clip, images):
    module = make(clip, routing="uniform")
    promptfl = PromptFL(CLASSES, clip, prompt_length=4)
    promptfl.load_state({"prompt": module.experts.detach().mean(0)})
    torch.testing.assert_close(module(images), promptfl(images), rtol=1e-4, atol=1e-3)


def test_learned_token_routing_averages_the_tokens_probabilities(clip, images):
    module = make(clip, routing="learned_token")
    with torch.no_grad():
        module.router.linear.weight.mul_(3)
    weight, bias = (parameter.detach().double().numpy() for parameter in module.router.linear.parameters())
    tokens = clip.encode_image_tokens(images)[1].double().numpy()
    weights = route(module, images, training=True).detach()
    for image in range(9):
        powers = np.exp(tokens[image] @ weight.T + bias)
        probabilities = powers / powers.sum(1, keepdims=True)
        np.testing.assert_allclose(weights[image].numpy(), probabilities.mean(0), atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_without_keys_clusters_are_matched_to_experts_in_the_joint_space(clip, images, training):
    module = make(clip, matched_to="experts")
    tokens = clip.encode_image_tokens(images)[1]
    start = random_start(image_seeds(images), tokens.shape[1], 3, 0)
    capacities = cluster_capacities(tokens.shape[1], 3, 1.0 if training else 2.0)
    clusters = capacity_kmeans(tokens, start, capacities)
    text = torch.stack([module.text(expert) for expert in module.experts]).detach().double().numpy()  # [E, C, d]
    means = (text / np.linalg.norm(text, axis=2, keepdims=True)).mean(1)
    weights = route(module, images, training)
    visual = clip.model.visual
    for image in range(9):
        centroids = (visual.ln_post(clusters.centroids[image].float()) @ visual.proj).double().numpy()
        lengths = np.outer(np.linalg.norm(centroids, axis=1), np.linalg.norm(means, axis=1))
        experts = linear_sum_assignment(1 - centroids @ means.T / lengths)[1]
        sizes = clusters.sizes[image].numpy()
        for cluster, expert in enumerate(experts):
            assert weights[image, expert].item() == pytest.approx(sizes[cluster] / sizes.sum(), abs=1e-6)


@pytest.mark.parametrize("routing", ["random", "random_tokens"])
def test_random_weights_depend_on_pixels_and_seed(clip, images, routing):
    weights = make(clip, routing=routing).precompute(images)["weights"]
    assert len({tuple(row) for row in weights.tolist()}) > 1  # with few tokens, two images may get equal weights
    changed = images.clone()
    changed[0, 0, 0, 0] += 1e-3
    again = make(clip, routing=routing).precompute(changed)["weights"]
    assert torch.equal(again[1:], weights[1:])
    assert image_seeds(changed)[0] != image_seeds(images)[0]
    assert not torch.equal(make(clip, routing=routing, key_seed=1).precompute(images)["weights"], weights)
