"""Losses and logits on the text features of all pairs of a class and a domain, and their ensemble (DiPrompT)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.ops.losses import cosine_logits, distillation_kl


def pair_logits(
    image_features: Float[Tensor, "B d"], features: Float[Tensor, "C M d"], scale: float
) -> Float[Tensor, "B C M"]:
    """Returns CLIP's logits of each image with each pair of a class and a domain."""
    return cosine_logits(image_features, features.flatten(0, 1), scale).view(-1, *features.shape[:2])


def given_class(logits: Float[Tensor, "B C M"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B M"]:
    """Returns each image's logits of the domains together with its class."""
    return logits[torch.arange(len(labels), device=labels.device), labels]


def given_domain(logits: Float[Tensor, "B C M"], domains: Int[Tensor, "B"]) -> Float[Tensor, "B C"]:
    """Returns each image's logits of the classes together with its domain."""
    return logits[torch.arange(len(domains), device=domains.device), :, domains]


def domain_contrast(features: Float[Tensor, "C M d"], handwritten: Float[Tensor, "C M d"]) -> Float[Tensor, "M"]:
    """Returns how unlike its handwritten prompt and like the other domains' each domain's prompt is (DiPrompT, Eq. 3).

    For each domain, the mean over classes of -log e^p / (e^p + sum_i e^{n_i}), p being the cosine of the prompt's
    feature with the handwritten prompt's, n_i those with the other domains' features, which get no gradient.

    Args:
        features: Z_j^m of the domains' learned prompts, of any length.
        handwritten: Those of "a photo of a <class> with the domain of <domain>", of any length.

    Example:
        >>> features = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # one class, two domains
        >>> domain_contrast(features, torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]))  # log 2, log(1 + 1 / e)
        tensor([0.6931, 0.3133])
    """
    with torch.autocast(features.device.type, enabled=False):
        own = F.normalize(features.float(), dim=-1)
        positive = (own * F.normalize(handwritten.float(), dim=-1)).sum(-1)  # [C, M]
        cosines = torch.einsum("cmd,cnd->cmn", own, own.detach())
        itself = torch.eye(own.shape[1], dtype=torch.bool, device=own.device)
        cosines = torch.where(itself, positive[..., None], cosines)
        return -cosines.log_softmax(-1).diagonal(dim1=1, dim2=2).mean(0)


def feature_shift(
    features: Float[Tensor, "C M d"], before: Float[Tensor, "C M d"], labels: Int[Tensor, "B"]
) -> Float[Tensor, ""]:
    """Returns the mean over images of sum_m ||Z_{y,m} - hatZ_{y,m}||^2 (DiPrompT, L_mse of Eq. 7).

    Example:
        >>> features = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]])  # two classes, one domain
        >>> feature_shift(features, torch.zeros(2, 1, 2), torch.tensor([0, 1])).item()
        2.5
    """
    squares = (features.float() - before.float()).square().sum((1, 2))  # [C]
    return squares[labels].mean()


def domain_terms(
    image_features: Float[Tensor, "B d"],
    labels: Int[Tensor, "B"],
    domains: Int[Tensor, "B"],
    features: Float[Tensor, "C M d"],
    handwritten: Float[Tensor, "C M d"],
    scale: float,
) -> dict[str, Tensor]:
    """Returns the two terms of L_D, each image counting for its domain's prompt alone (DiPrompT, Eq. 3).

    Args:
        image_features: f(x), of any length.
        labels: The classes.
        domains: m*, the domain of each image.
        features: Z_j^m of the domains' learned prompts.
        handwritten: Those of the handwritten prompt.
        scale: CLIP's logit scale.
    """
    logits = given_domain(pair_logits(image_features, features, scale), domains)
    contrast = domain_contrast(features, handwritten)[domains].mean()
    return {"domain": F.cross_entropy(logits, labels), "contrast": contrast}


def query_terms(
    image_features: Float[Tensor, "B d"],
    labels: Int[Tensor, "B"],
    features: Float[Tensor, "C M d"],
    before: Float[Tensor, "C M d"],
    scale: float,
    domains: Int[Tensor, "B"] | None = None,
) -> dict[str, Tensor]:
    """Returns -log sum_m P(y, m | x) and the two terms that hold the Q-prompt back (DiPrompT, Eqs. 6, 7).

    Where the domain m of each image is known, the first term is -log P(y, m | x).

    Args:
        image_features: f(x), of any length.
        labels: The classes.
        features: Z_{j,m}^Q.
        before: Those of the averaged Q-prompt.
        scale: CLIP's logit scale.
        domains: m, if it is known.
    """
    logits = pair_logits(image_features, features, scale)
    logits_before = pair_logits(image_features, before, scale)
    query = F.cross_entropy(logits.logsumexp(-1), labels)
    if domains is not None:
        query = query + F.cross_entropy(given_class(logits, labels), domains)  # P(y | x) P(m | y, x)
    return {
        "query": query,
        "mse": feature_shift(features, before, labels),
        "kl": distillation_kl(given_class(logits_before, labels), given_class(logits, labels)),
    }


def domain_weights(image_features: Float[Tensor, "B d"], features: Float[Tensor, "C M d"]) -> Float[Tensor, "B M"]:
    """Returns w_m, each domain's best cosine over the classes as a share of the sum over domains (DiPrompT, Eq. 8).

    A negative cosine counts as zero; where none is positive, all domains weigh the same.

    Example:
        >>> domain_weights(torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.6, 0.8], [0.2, 0.96**0.5]]]))
        tensor([[0.7500, 0.2500]])
    """
    best = pair_logits(image_features, features, scale=1.0).amax(1)  # [B, M]
    best = best.clamp_min(torch.finfo(torch.float32).tiny)
    return best / best.sum(-1, keepdim=True)


def ensemble_logits(
    image_features: Float[Tensor, "B d"],
    features: Float[Tensor, "C M d"],
    global_features: Float[Tensor, "C d"] | None,
    scale: float,
) -> Float[Tensor, "B C"]:
    """Returns the logits under sum_m w_m Z_j^m + Z_j^G, each Z normalised before (DiPrompT, Eq. 8).

    Args:
        image_features: f(x), of any length.
        features: Z_j^m, of any length.
        global_features: Z_j^G, of any length; None for the domains alone.
        scale: CLIP's logit scale.
    """
    with torch.autocast(image_features.device.type, enabled=False):
        weights = domain_weights(image_features, features)
        mixture = torch.einsum("bm,cmd->bcd", weights, F.normalize(features.float(), dim=-1))
        if global_features is not None:
            mixture = mixture + F.normalize(global_features.float(), dim=-1)
    return cosine_logits(image_features, mixture, scale)
