"""FedMGP: losses and gradients group by group, the draws of groups, and the groups that clients get back."""

from itertools import combinations

import pytest
import torch

from fedvlp import IVLP, FedMGP
from fedvlp.clip import PromptedImageEncoder
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.utils.errors import UserError
from tests.helpers.slow import CLASSES, assert_step, begin, cosine, slow_cross_entropy, slow_texts, spread, unit

LABELS = torch.tensor([2, 0, 1, 2])
NAMES = [f"of a {name}" for name in CLASSES]  # two vectors replace "a photo"


def make(clip, **options):
    torch.manual_seed(0)
    module = FedMGP(CLASSES, clip, **{"num_groups": 3, **options})
    spread([*module.prompts.values(), *module.global_prompts.values()], 0.2)
    return module


def slow_distance(groups):
    """Average the absolute differences, one pair of groups and one text or image at a time."""
    pairs = list(combinations(groups, 2))
    terms = [(unit(a) - unit(b)).abs().mean() for one, other in pairs for a, b in zip(one, other, strict=True)]
    return sum(terms) / len(terms)


@pytest.mark.parametrize("diversity_weight", [3.0, -0.7])
def test_loss_and_gradients_match_the_released_equations(clip, images, diversity_weight):
    module = make(clip, diversity_weight=diversity_weight)
    encoder = PromptedImageEncoder(clip)
    texts = [slow_texts(clip, prompt, names=NAMES) for prompt in module.prompts["text"]]
    features = [
        [encoder(image[None], prompt[None]).features[0] for image in images] for prompt in module.prompts["visual"]
    ]
    losses = [slow_cross_entropy(clip, *pair, LABELS) for pair in zip(features, texts, strict=True)]
    distance = (slow_distance(texts) + slow_distance(features)) / 2
    assert_step(module, images, LABELS, sum(losses) / 3 - diversity_weight * distance)


def test_equal_groups_classify_like_one_group_in_any_order(clip, images):
    module = make(clip)
    before = module(images)
    with torch.no_grad():
        for prompts in module.prompts.values():
            prompts.copy_(prompts[[2, 0, 1]])
        torch.testing.assert_close(module(images), before)
        single = IVLP(CLASSES, clip, prompt_length=2, init_words="a photo of a")
        for name, prompts in module.prompts.items():
            single.prompts[name].copy_(prompts[:1])
            prompts.copy_(prompts[:1].expand_as(prompts))
    torch.testing.assert_close(module(images), single(images))


def test_the_nearest_groups_are_sent_and_replaced_by_the_average(clip, images):
    """With a low temperature, the draws are the groups in the order of their similarity."""
    module = make(clip, temperature=1e-4)
    begin(module, 0)
    trained = {name: prompts.detach().clone() for name, prompts in module.prompts.items()}
    upload = module.upload_state()
    order = {}
    for tower, groups in trained.items():
        received = module.global_prompts[tower]
        nearest = [max(cosine(group.flatten(), other.flatten()).item() for other in received) for group in groups]
        order[tower] = sorted(range(3), key=nearest.__getitem__)[:0:-1]
        assert torch.equal(upload[f"global_prompts.{tower}"], groups[order[tower]])
    assert order["text"] != order["visual"]
    other = {name: value + 4 for name, value in upload.items()}
    updates = [ClientUpdate(Client(0, 0, 10), upload, 10), ClientUpdate(Client(1, 1, 30), other, 30)]
    server = module.configure_phases()[0].strategy.aggregate(ServerState.start(module.shared_state()), updates)
    module.load_state(server.shared)
    expected = {name: groups.clone() for name, groups in trained.items()}
    for tower, (first, second) in order.items():
        expected[tower][first] += 3
        expected[tower][second] += 3
    for name, groups in module.group_prompts().items():
        torch.testing.assert_close(groups, expected[name])
    logits = module(images)
    begin(module, 0, round=1)
    for name, groups in module.prompts.items():
        torch.testing.assert_close(groups.detach(), expected[name])
    assert torch.equal(module(images), logits)
    with module.shared_part_only():
        assert not torch.allclose(module(images), logits)


def test_groups_are_drawn_one_after_another_by_their_similarities(clip):
    module = make(clip, temperature=0.5)
    begin(module, 0)
    groups, received = module.prompts["text"].flatten(1), module.global_prompts["text"].flatten(1)
    shares = torch.stack([max(cosine(group, other) for other in received) / 0.5 for group in groups]).softmax(0)
    draws = torch.stack([draw(module) for _ in range(2000)])
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            expected = shares[first] * shares[second] / (1 - shares[first])
            frequency = (draws == torch.tensor([first, second])).all(1).float().mean()
            assert abs(frequency - expected) < 0.04


def draw(module):
    module.upload_state()
    return module.places[0].argmax(0)


def test_more_shared_groups_than_groups_are_rejected(clip):
    for options in ({"num_groups": 1, "shared_groups": 1}, {"num_groups": 3, "shared_groups": 4}):
        with pytest.raises(UserError, match="num_groups"):
            FedMGP(CLASSES, clip, **options)
