"""StableFDG: image by image with the same draws, attention position by position, and properties of the draws."""

import pytest
import torch

from fedvlp import FineTuning, StableFDG
from fedvlp.methods.stable_fdg import FeatureHighlighter, diverse, explored, find_partners, mixed, oversampled
from tests.helpers.slow import CLASSES, assert_same, begin, slow_logits

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, client=1, **options):
    """Create a method with nonzero attention and the styles of clients 0 and 3 of 4."""
    torch.manual_seed(5)
    module = StableFDG(CLASSES, 4, clip, **options)
    with torch.no_grad():
        module.highlighter.classes.normal_()
    for slot in (0, 3):
        module.statistics.clients[slot].copy_(torch.rand_like(module.statistics.clients[slot]) + 0.1 * slot + 0.2)
    begin(module, client)
    return module


def slow_highlight(highlighter, features, other):
    """Compute the highlighter's logits of one image and its partner, position by position."""

    def unit(layer, row):
        value = layer.weight @ row + layer.bias
        return value / value.square().sum().sqrt()

    queries = [
        (unit(highlighter.query, one) + unit(highlighter.query, two)) / 2
        for one, two in zip(features, other, strict=True)
    ]
    keys = torch.stack([unit(highlighter.key, row) for row in features])
    scores = (torch.stack(queries) @ keys.T).mean(0)  # over the query positions
    total = sum(score.exp() for score in scores)
    summed = sum(score.exp() / total * row for score, row in zip(scores, features, strict=True))
    centred = summed - summed.mean()
    scaled = centred / (centred.square().mean() + 1e-5).sqrt()
    return torch.stack([vector @ scaled for vector in highlighter.classes])


def test_attention_matches_the_paper():
    torch.manual_seed(3)
    highlighter = FeatureHighlighter(6, 3, size=4)
    with torch.no_grad():
        highlighter.classes.normal_()
    features = torch.randn(3, 5, 6, requires_grad=True)
    partners = torch.tensor([1, 0, 2])
    found = highlighter(features, partners)
    expected = torch.stack(
        [slow_highlight(highlighter, features[i], features[j]) for i, j in enumerate(partners.tolist())]
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    inputs = [features, *highlighter.parameters()]
    weights = torch.randn(3, 3)
    slow = torch.autograd.grad((expected * weights).sum(), inputs, retain_graph=True)
    for one, other in zip(torch.autograd.grad((found * weights).sum(), inputs), slow, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert highlighter.weights(features, partners).sum(1).tolist() == pytest.approx([1, 1, 1])


def find_seed(explores, shifts):
    """Find a seed for these decisions of a step."""
    for seed in range(100):
        torch.manual_seed(seed)
        if (torch.rand(2) < 0.5).tolist() == [explores, shifts]:
            return seed
    raise AssertionError


def slow_style(tokens):
    mean = tokens.mean(0)
    return torch.stack([mean, ((tokens - mean).square().mean(0) + 1e-5).sqrt()])


def slow_loss(module, images, labels, styles):
    """Compute the loss image by image: first block, style change, other blocks, both parts of the logits."""
    tower = module.image_tower
    partners = find_partners(labels).tolist()
    last = []
    for image, style in zip(images, styles, strict=True):
        tokens = tower.blocks.run(0, tower.embed(image[None]))[0]
        own = slow_style(tokens[1:].detach())
        changed = [(patch - own[0]) / own[1] * style[1] + style[0] for patch in tokens[1:]]
        tokens = torch.stack([tokens[0], *changed])[None]
        for index in range(1, len(tower.blocks)):
            tokens = tower.blocks.run(index, tokens)
        last.append(tokens)
    losses = []
    for index, label in enumerate(labels.tolist()):
        joint = tower.pool(last[index])[0]
        highlight = slow_highlight(module.highlighter, last[index][0, 1:], last[partners[index]][0, 1:])
        logits = slow_logits(module.clip, joint, module.text_features) + highlight
        losses.append(-logits.log_softmax(0)[label])
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("explores", "shifts"), [(True, False), (False, True)])
def test_loss_and_gradients_match_the_paper(clip, images, explores, shifts):
    module = make(clip)
    seed = find_seed(explores, shifts)
    torch.manual_seed(seed)
    torch.rand(2)
    tokens = module.image_tower.blocks.run(0, module.image_tower.embed(images)).detach()
    styles = [slow_style(each[1:]) for each in tokens]
    order = [0, 1, 2, 3]
    if explores:
        order += oversampled(LABELS, 4).tolist()
        mean = sum(styles) / 4
        led = [styles[i] + 3.0 * (styles[i] - mean) for i in order[4:]]
        styles = [*styles, *(torch.stack([one[0], one[1].clamp_min(0)]) for one in led)]
        shares = torch.distributions.Beta(0.1, 0.1).sample(torch.Size([8])).tolist()
        mixed_with = torch.randperm(8).tolist()
        styles = [shares[i] * styles[i] + (1 - shares[i]) * styles[mixed_with[i]] for i in range(8)]
    else:
        other = [0, 3][int(torch.randint(2, ()))]
        mean, deviation = module.statistics.clients[other]
        drawn = mean + deviation * torch.randn(4, *mean.shape)
        kept = diverse(torch.stack(styles).flatten(1), 2).tolist()
        styles = [styles[i] if i in kept else torch.stack([drawn[i, 0], drawn[i, 1].clamp_min(0)]) for i in range(4)]
    expected = slow_loss(module, images[order], LABELS[order], styles)
    torch.manual_seed(seed)
    assert_same(module.training_step((images, LABELS), 0), expected, list(module.trainable_by_name().values()))


def test_a_client_uploads_the_mean_and_deviation_of_its_images_styles(clip, images):
    module = make(clip)
    module.training_step((images[:3], LABELS[:3]), 0)
    module.training_step((images[3:], LABELS[3:]), 1)
    tokens = module.image_tower.blocks.run(0, module.image_tower.embed(images)).detach()
    styles = torch.stack([slow_style(each[1:]) for each in tokens])
    begin(module, 1, phase=1)
    expected = torch.stack([styles.mean(0), styles.std(0, correction=0)])
    torch.testing.assert_close(module.upload_state()["statistics.clients"], expected, atol=1e-5, rtol=1e-5)


def test_draws_are_diverse_balanced_and_within_range():
    far = torch.tensor([[0.0, 0.0], [0.0, 0.01], [9.0, 9.0], [9.0, 9.01]])
    for _ in range(10):
        assert {int(i) // 2 for i in diverse(far, 2)} == {0, 1}
    assert len(diverse(torch.ones(4, 2), 3)) == 1
    labels = torch.tensor([0, 0, 0, 2, 2, 5])
    extra = oversampled(labels, 6)
    assert torch.cat([labels, labels[extra]]).unique(return_counts=True)[1].tolist() == [4, 4, 4]
    style = torch.tensor([[[2.0], [1.0]], [[6.0], [3.0]]])
    assert explored(style, torch.tensor([1, 0]), 3.0).flatten().tolist() == [2, 1, 6, 3, 12, 6, -4, 0]
    both = mixed(style)
    share = (both[:, 0] - 2) / 4
    assert all((share >= 0) & (share <= 1))
    torch.testing.assert_close((both[:, 1] - 1) / 2, share)


def test_it_starts_as_fine_tuning_and_ignores_the_order_of_images(clip, images):
    module, plain = StableFDG(CLASSES, 4, clip), FineTuning(CLASSES, clip)
    torch.testing.assert_close(module(images), plain(images))
    trained = make(clip)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(trained(images[order]), trained(images)[order])
    assert not torch.allclose(trained(images), plain(images), atol=1e-2)
