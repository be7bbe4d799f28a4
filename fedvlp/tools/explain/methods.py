"""Text prompts, logits by prompt, and experts of tokens, by a method's class; other methods ``register`` theirs."""

from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedvlp.clip import PromptedTextEncoder, cosine_logits
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import Inputs
from fedvlp.core.state import matches_prefix
from fedvlp.methods.diprompt import DiPrompT
from fedvlp.methods.fed_dpt import FedDPT
from fedvlp.methods.fed_maple import FedMaPLe
from fedvlp.methods.fed_prompt_src import FedPromptSRC
from fedvlp.methods.fed_tpg import FedTPG
from fedvlp.methods.ivlp import IVLP
from fedvlp.methods.plan import PLAN
from fedvlp.methods.trip.trip import TRIP


@singledispatch
def text_prompts(module: FederatedModule) -> dict[str, Float[Tensor, "L D"]]:
    """The learned vectors among a sentence's token embeddings, by a name for readers.

    By default the module's own parameters, not its submodules', in the shape of a prompt of its text encoder, and each
    prompt of a stack [E, L, D].
    """
    encoders = [child for child in module.children() if isinstance(child, PromptedTextEncoder)]
    clip: Any = module.clip
    shapes = {(encoder.prompt_length, clip.text_width) for encoder in encoders}
    prompts: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.shape[-2:] not in shapes or matches_prefix(module.train_only_personal, name):
            continue
        title = name.replace("_", " ")
        if parameter.ndim == 2:
            prompts[title] = parameter
        elif parameter.ndim == 3:
            prompts |= {f"{title.removesuffix('s')} {i}": prompt for i, prompt in enumerate(parameter, start=1)}
    return prompts


@singledispatch
def logits_by_prompt(module: FederatedModule, inputs: Inputs) -> dict[str, Float[Tensor, "B C"]]:
    """The logits under each single prompt of a method that mixes several; differentiable in the inputs."""
    return {}


@singledispatch
def token_experts(module: FederatedModule, images: Float[Tensor, "B 3 V V"]) -> Int[Tensor, "B P"] | None:
    """The expert of each token, from 0 in the order of the text prompts, -1 for a dropped token; None without any."""
    return None


@text_prompts.register
def _(module: FedTPG) -> dict[str, Tensor]:
    return {"prompt": module.prompt()}  # made by the network from the class names


@text_prompts.register
def _(module: DiPrompT) -> dict[str, Tensor]:
    prompts: dict[str, Tensor] = {}
    if module.global_prompt is not None:
        prompts["global prompt"] = module.global_prompt
    if module.query_prompt is not None and "query_prompt" not in module.train_only_personal:
        prompts["query prompt"] = module.query_prompt
    if module.domain_prompts is not None:
        for domain, prompt in zip(module.domains, module.domain_prompts, strict=True):
            prompts[f"prompt of {domain}"] = prompt
    return prompts


@logits_by_prompt.register
def _(module: TRIP, inputs: Inputs) -> dict[str, Tensor]:
    features = module.precomputed(inputs)["features"]
    scale = module.clip.logit_scale
    return {name: cosine_logits(features, module.text(prompt), scale) for name, prompt in text_prompts(module).items()}


@token_experts.register
@torch.no_grad()
def _(module: TRIP, images: Float[Tensor, "B 3 V V"]) -> Int[Tensor, "B P"] | None:
    router: Any = module.router
    _, tokens = module.clip.encode_image_tokens(images)
    if hasattr(router, "token_experts"):
        experts: Tensor = router.token_experts(images, tokens, module.expert_features)
        return experts
    # A learned router mixes experts for each token; the likeliest is shown.
    if router.options.routing == "learned_token":
        likeliest: Tensor = router.probabilities({"tokens": tokens}).argmax(dim=-1)
        return likeliest
    return None


@text_prompts.register(FedDPT)
def _(module: Any) -> dict[str, Tensor]:
    prompts = module.dual["text"](None) if "text" in module.dual else []  # None: as the server has them
    if not module.mixes:
        return dict(zip(["prompt"], prompts, strict=False))
    return {f"prompt of {domain}": prompt for domain, prompt in zip(module.domains, prompts, strict=False)}


@logits_by_prompt.register(FedDPT)
def _(module: Any, inputs: Inputs) -> dict[str, Tensor]:
    features = module.features(inputs)
    if not module.mixes:
        return {}
    logits = {}
    one_hot = torch.eye(len(features.text), device=features.image.device)
    for name, weights in zip(text_prompts(module), one_hot, strict=True):
        alone = replace(features, weights=weights.expand(len(features.image), -1))
        logits[name] = alone.logits(module.clip.logit_scale)
    return logits


@text_prompts.register(IVLP)
@text_prompts.register(FedPromptSRC)
def _(module: Any) -> dict[str, Tensor]:
    # Prompts of deeper blocks do not stand among words.
    return {"global prompt": module.prompts["text"][0]}


@text_prompts.register
def _(module: FedMaPLe) -> dict[str, Tensor]:
    return {"global prompt": module.deep_prompts()["text"][0]}


@text_prompts.register
def _(module: PLAN) -> dict[str, Tensor]:
    return {"global prompt": module.pool.globals["text"][0]}
