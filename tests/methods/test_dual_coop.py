"""DualCoOp: loss label by label and region by region, labels independent of each other, and data that it refuses."""

import pytest
import torch

from fedvlp import DualCoOp, Federation, IconDomains
from fedvlp.utils.errors import UserError
from tests.helpers.slow import CLASSES, assert_step, cosine, slow_texts, spread

TARGETS = torch.tensor([[1, 0, torch.nan], [0, 0, 1], [1, torch.nan, 0]])
LABELS = range(len(TARGETS))


def make(clip, **options):
    torch.manual_seed(0)
    module = DualCoOp([*CLASSES, "¬image"], clip, prompt_length=4, **options)
    spread([module.prompts], 0.5)
    return module


def slow_pair(module, image, positive, negative):
    """Compute both logits of one image and label; the positive similarities weight the regions for both."""
    tower = module.clip.image
    tokens = module.clip.model.visual.transformer(tower.embed(image[None]))[0]
    regions = [tower.project(token).detach() for token in tokens[1:]]
    weights = [(module.region_scale * cosine(region, positive)).exp() for region in regions]
    logits = []
    for text in (positive, negative):
        products = [weight * cosine(region, text) for weight, region in zip(weights, regions, strict=True)]
        logits.append(module.clip.logit_scale * sum(products) / sum(weights))
    return torch.stack(logits)


@pytest.mark.parametrize("class_specific", [False, True])
def test_loss_and_gradients_match_the_paper(clip, images, class_specific):
    options = {"region_scale": 7.0, "positive_focus": 1.5, "negative_focus": 3.0, "margin": 0.1}
    module = make(clip, class_specific=class_specific, **options)
    prompts = module.prompts.unflatten(1, (-1, 4)) if class_specific else module.prompts
    positive, negative = (slow_texts(clip, prompt) for prompt in prompts)
    losses = []
    for image, targets in zip(images, TARGETS.tolist(), strict=True):
        for label, target in enumerate(targets):
            probability = slow_pair(module, image, positive[label], negative[label]).softmax(0)[0]
            if target == 1:
                losses.append(-((1 - probability.item()) ** 1.5) * probability.log())
            elif target == 0 and probability > 0.1:
                losses.append(-((probability.item() - 0.1) ** 3) * (1 - probability + 0.1).log())
    assert len(losses) > 4
    assert_step(module, images, TARGETS, sum(losses) / len(images))


@torch.no_grad()
def test_a_logit_depends_on_neither_other_labels_nor_batch(clip, images):
    module = make(clip)
    logits = module(images)
    assert (logits[:, -1] == 0).all()
    others = module.for_classes(["star", "cat", "tree", "red circle", "¬thing"])
    torch.testing.assert_close(others(images)[:, [3, 0]], logits[:, :2], atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(torch.cat([module(image[None]) for image in images]), logits, atol=1e-3, rtol=1e-4)


def test_images_with_one_label_are_refused(tmp_path):
    data = IconDomains(num_classes=2, held_out="pixel", cache_dir=None)
    federation = Federation(rounds=1, accelerator="cpu", default_root_dir=str(tmp_path))
    with pytest.raises(UserError, match="DualCoOp needs images with several labels"):
        federation.fit(DualCoOp(data.class_names, clip="fedvlp-tiny"), data)
