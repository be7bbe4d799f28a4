"""FedMVP: its loss and gradients image by image, and its attributes."""

import pytest
import torch
import torch.nn.functional as F

from fedvlp import FedMVP
from fedvlp.clip.image_towers import VisionTransformerTower
from fedvlp.clip.zero_shot import TEMPLATES
from fedvlp.utils.errors import UserError
from tests.helpers.slow import CLASSES

ATTRIBUTES = {
    "star": ["five points", "sharp tips"],
    "red circle": ["a round outline", "a single colour"],
    "big square": ["four corners", "straight sides"],
}
LABELS = torch.tensor([0, 2, 1])


def make(clip, attributes=ATTRIBUTES, **options):
    torch.manual_seed(0)
    return FedMVP(CLASSES, clip, **{"prompt_length": 2, "heads": 2, "attributes": attributes, **options})


def text_feature(clip, text):
    return F.normalize(clip.encode_text(clip.tokenizer([text]))[0], dim=0).detach()


def attribute_texts(name):
    return [f"a photo of a {name}, {attribute}." for attribute in ATTRIBUTES[name]]


def reference_prompts(former, patches, texts):
    """Compute P(A', E) of one image per head and attribute, and average over equal parts of the patches."""
    width = patches.shape[1]
    values = [former.project(text) for text in texts]
    keys = [former.attribute_norm(value) for value in values]
    queries = former.patch_norm(patches)
    weight = former.attention.in_proj_weight
    bias = former.attention.in_proj_bias
    size = width // former.attention.num_heads
    heads = []
    for head in range(former.attention.num_heads):
        query_rows, key_rows, value_rows = (
            slice(part * width + head * size, part * width + (head + 1) * size) for part in range(3)
        )
        query = queries @ weight[query_rows].T + bias[query_rows]
        scores = [query @ (weight[key_rows] @ key + bias[key_rows]) / size**0.5 for key in keys]
        shares = torch.stack(scores).softmax(0)
        heads.append(
            sum(
                share[:, None] * (weight[value_rows] @ value + bias[value_rows])
                for share, value in zip(shares, values, strict=True)
            )
        )
    found = former.attention.out_proj(torch.cat(heads, dim=1))
    norm, widen = former.mlp
    hidden = widen(norm(found))
    found = found + former.narrow(hidden[:, : 4 * width] * F.gelu(hidden[:, 4 * width :]))
    return torch.stack([part.mean(0) for part in found.chunk(former.prompt_length)])


def reference_loss(module, images, labels):
    clip = module.clip
    tower = clip.image
    assert isinstance(tower, VisionTransformerTower)
    texts = [text_feature(clip, text) for name in CLASSES for text in attribute_texts(name)]
    losses = []
    for image, label in zip(images, labels, strict=True):
        tokens = tower.embed(image[None])[0]
        prompts = clip.model.visual.ln_pre(reference_prompts(module.former, tokens[1:], texts))
        hidden = clip.model.visual.transformer(torch.cat([tokens, prompts])[None])[0, 0]
        feature = clip.model.visual.ln_post(hidden) @ clip.model.visual.proj
        cosines = [F.cosine_similarity(feature, text, dim=0) for text in texts]
        logits = clip.logit_scale * torch.stack([(cosines[2 * c] + cosines[2 * c + 1]) / 2 for c in range(3)])
        distance = 1 - F.cosine_similarity(feature, clip.encode_image(image[None])[0].detach(), dim=0)
        losses.append(torch.logsumexp(logits, 0) - logits[label] + module.consistency_weight * distance)
    return sum(losses) / len(losses)


def test_loss_and_gradients_match_image_by_image(clip, images):
    module = make(clip, consistency_weight=3.0)
    loss = module.training_step((images, LABELS), 0)
    expected = reference_loss(module, images, LABELS)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    trained = module.trainable_by_name()
    found = torch.autograd.grad(loss, list(trained.values()))
    wanted = torch.autograd.grad(expected, list(trained.values()))
    for name, one, other in zip(trained, found, wanted, strict=True):
        largest = other.abs().max().item()
        assert largest > 1e-6 or name == "former.attribute_norm.bias", "which shifts all keys equally"
        torch.testing.assert_close(one, other, atol=max(1e-4 * largest, 1e-8), rtol=1e-4)


def test_templates_replace_missing_attributes(clip):
    module = make(clip, attributes=None, templates=3)
    assert module.attributes.shape[:2] == (3, 3)
    for label, name in enumerate(CLASSES):
        for index, template in enumerate(TEMPLATES[:3]):
            wanted = text_feature(clip, template.replace("{}", name))
            torch.testing.assert_close(module.attributes[label, index], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{}, {"star": ["five points", "sharp tips"]}, ATTRIBUTES | {"star": ["five points"]}])
def test_all_classes_need_equally_many_attributes(clip, wrong):
    with pytest.raises(UserError, match="equally many attributes"):
        make(clip, attributes=wrong)
