"""The logits of methods that divide an image's patches between prompts, patch by patch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedvlp.clip.image_towers import VisionTransformerTower


def slow_transport_logits(module, images, prompts, plan_of):
    """(1 - <C, T>) / tau, with T = plan_of(C) of each image and class, from a cost [N, M] to a plan as NumPy has it."""
    tower = module.clip.image
    assert isinstance(tower, VisionTransformerTower)
    rows = []
    for image in images:
        tokens = module.clip.model.visual.transformer(tower.embed(image[None]))[0]
        patches = [tower.project(token).detach() for token in tokens[1:]]
        row = []
        for label in range(len(module.class_names)):
            texts = [module.text(prompt)[label] for prompt in prompts]
            cosines = torch.stack([torch.stack([F.cosine_similarity(g, h, dim=0) for g in patches]) for h in texts])
            plan = torch.from_numpy(plan_of((1 - cosines).detach().double()))
            row.append((1 - ((1 - cosines) * plan).sum()) * module.clip.logit_scale)
        rows.append(torch.stack(row))
    return torch.stack(rows)
