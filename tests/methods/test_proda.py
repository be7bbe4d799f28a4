"""ProDA: loss and gradients from the explicit covariance, and the prompts that a step trains."""

import torch
import torch.nn.functional as F

from fedvlp import ProDA
from tests.helpers.slow import CLASSES, assert_same, plain_encoder, spread, unit

LABELS = torch.tensor([2, 0, 1, 2])
PLACES = ["front", "front", "middle", "middle", "end", "end", "end", "end"]


def make(clip, **options):
    torch.manual_seed(5)
    module = ProDA(CLASSES, clip, prompt_length=4, num_prompts=8, **options)
    spread([module.prompts], 0.1)
    return module


def slow_variance(images, texts, labels):
    """Compute each dimension's covariance [C, C], and from it the variance of every logit difference."""
    mean = sum(texts) / len(texts)
    covariances = []
    for dimension in range(texts.shape[-1]):
        deviations = [one[:, dimension] - mean[:, dimension] for one in texts]
        covariances.append(sum(torch.outer(each, each) for each in deviations) / (len(texts) + 1))
    rows = []
    for image, label in zip(images, labels.tolist(), strict=True):
        row = []
        for name in range(texts.shape[1]):
            spread = [each[name, name] + each[label, label] - 2 * each[name, label] for each in covariances]
            row.append(image.square() @ torch.stack(spread))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def nameless_feature(clip, prompt):
    """Encode "[prompt]." with open_clip's own tower."""
    model = clip.model
    (row,) = model.token_embedding(clip.tokenizer(["."]))
    row = torch.cat([row[:1], prompt, row[1 : 77 - len(prompt)]])
    hidden = model.transformer((row + model.positional_embedding)[None], attn_mask=model.attn_mask)[0]
    return model.ln_final(hidden)[len(prompt) + 2] @ model.text_projection


def slow_loss(clip, images, prompts, drawn, weight):
    """Compute the loss, one prompt and one class at a time."""
    texts = []
    for number in drawn:
        row = []
        for name in CLASSES:
            encoder = plain_encoder(clip, [name], prompt_length=4, class_position=PLACES[number])
            row.append(unit(encoder(prompts[number])[0]))
        texts.append(torch.stack(row))
    features = torch.stack([unit(feature) for feature in clip.encode_image(images)])
    mean = sum(texts) / len(texts)
    scale = clip.logit_scale
    logits = scale * features @ mean.T + scale**2 / 2 * slow_variance(features, torch.stack(texts), LABELS)
    loss = F.cross_entropy(logits, LABELS)
    nameless = [unit(nameless_feature(clip, prompt)) for prompt in prompts]
    pairs = [(one @ other).abs() for one in nameless for other in nameless if one is not other]
    return loss + weight * sum(pairs) / len(pairs)


def test_loss_and_gradient_match_the_paper(clip, images):
    method = make(clip, prompts_per_step=3, orthogonality_weight=20.0)
    torch.manual_seed(0)
    loss = method.training_step((images, LABELS), 0)
    torch.manual_seed(0)
    prompts = method.prompts.detach().clone().requires_grad_()
    expected = slow_loss(clip, images, prompts, torch.randperm(8)[:3].tolist(), 20.0)
    (gradient,) = assert_same(loss, expected, [method.prompts], [prompts])
    assert gradient.flatten(1).any(dim=1).all()


def test_a_step_trains_only_its_drawn_prompts(clip, images):
    method = make(clip, prompts_per_step=3, orthogonality_weight=0.0)
    trained = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        drawn = torch.randperm(8)[:3]
        torch.manual_seed(seed)
        method.zero_grad()
        method.training_step((images, LABELS), 0).backward()
        trained.append(method.prompts.grad.flatten(1).any(dim=1).nonzero().flatten().tolist())
        assert trained[-1] == drawn.sort().values.tolist()
    assert trained[0] != trained[1]
