"""Image features of `[image tokens][prompt]`, with learned prompt tokens in some or all blocks and a frozen CLIP."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedvlp.clip.backbone import CLIP
from fedvlp.clip.blocks import check_depth
from fedvlp.clip.image_towers import VisionTransformerTower


@dataclass(frozen=True)
class PromptedImages:
    """Output of the prompted image tower for a batch.

    Attributes:
        features: Joint features of the images, pooled from their own tokens, not normalised.
        prompt_features: Joint features of each prompt token's last output, not normalised.
        scores: Attention of the features to each prompt token before the softmax (`VisionTransformerTower.scores`). In
            CLIP's own ViT, the last block's class query is multiplied with each prompt token's key.
    """

    features: Float[Tensor, "B d"]
    prompt_features: Float[Tensor, "B L d"]
    scores: Float[Tensor, "B L"]


class PromptedImageEncoder(nn.Module):
    """Image tower with learned tokens after the image's own, differentiable only in the learned tokens.

    `prompts[0]` enters before `ln_pre`, without positions. `prompts[j]` replaces the prompt tokens before block j + 1.
    Blocks without their own prompt process the tokens unchanged. Features are pooled only from the image's own tokens
    (Jia et al., "Visual Prompt Tuning", ECCV 2022). Raises UserError if its image tower is not a ViT.

    Args:
        clip: The frozen CLIP, shared and not copied.

    Attributes:
        depth: The number of blocks, which is the largest J.
    """

    def __init__(self, clip: CLIP) -> None:
        super().__init__()
        self.clip = clip
        self.depth = len(self._tower.blocks)

    def forward(self, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "J L W"]) -> PromptedImages:
        """Compute features of images and prompt tokens, and the scores of the prompt tokens.

        Raises UserError if there are fewer than J blocks.

        Args:
            images: Pixels after CLIP's transform.
            prompts: L vectors for each of the first J blocks.
        """
        tower = self._tower
        hidden = run_before_last_block(tower, images, prompts.unbind())  # [B, P + L, W]
        # Fused attention returns no scores, so these few are computed separately.
        scores = tower.scores(hidden)
        indices = torch.arange(hidden.shape[1], device=hidden.device)
        read = indices[tower.read]
        last = tower.blocks.run_last(hidden, torch.cat([read, indices[tower.num_tokens :]]))
        image_tokens, prompt_tokens = torch.split(last, [len(read), prompts.shape[1]], dim=1)
        return PromptedImages(tower.pool(image_tokens), tower.project(prompt_tokens), scores)

    def encode(
        self, images: Float[Tensor, "B 3 V V"], prompts: Float[Tensor, "J L W"] | None = None
    ) -> Float[Tensor, "B d"]:
        """Compute only `forward(images, prompts).features`, at less cost; without prompts, CLIP's own features."""
        if prompts is None or not prompts.numel():
            return self.clip.encode_image(images)
        return self._features(run_before_last_block(self._tower, images, prompts.unbind()))

    def encode_conditional(
        self,
        images: Float[Tensor, "B 3 V V"],
        make_prompts: Callable[[Float[Tensor, "B patches W"]], Float[Tensor, "B L W"]],
    ) -> Float[Tensor, "B d"]:
        """Compute joint features, not normalised, with prompts that `make_prompts` computes from embedded patches."""
        tower = self._tower
        tokens = tower.embed(images)
        prompts = tower.embed_prompt(make_prompts(tokens[:, tower.num_prefix :]).to(tokens.dtype))
        return self._features(tower.blocks.run_before_last(torch.cat([tokens, prompts], dim=1)))

    @property
    def _tower(self) -> VisionTransformerTower:
        return self.clip.image.require_prompts()

    def _features(self, hidden: Float[Tensor, "B tokens W"]) -> Float[Tensor, "B d"]:
        tower = self._tower
        read = torch.arange(tower.num_tokens, device=hidden.device)[tower.read]
        return tower.pool(tower.blocks.run_last(hidden, read))


def run_before_last_block(
    tower: VisionTransformerTower, images: Float[Tensor, "B 3 V V"], prompts: Sequence[Float[Tensor, "*each L W"]]
) -> Float[Tensor, "B tokens W"]:
    """Run a tower up to its last block; each of its first blocks has one prompt for all images, or one for each."""
    check_depth(len(prompts), len(tower.blocks), "image")
    # The first prompt enters with the image, and the others replace its tokens between blocks.
    first = tower.embed_prompt(prompts[0].to(tower.blocks.dtype))
    tokens = tower.embed(images)  # [B, P, W]
    between = [partial(_append_prompt, tokens.shape[1], prompt) for prompt in prompts[1:]]
    return tower.blocks.run_before_last(_append_prompt(tokens.shape[1], first, tokens), between)


def _append_prompt(
    num_tokens: int, prompt: Float[Tensor, "*each L W"], hidden: Float[Tensor, "B tokens W"]
) -> Float[Tensor, "B longer W"]:
    return torch.cat([hidden[:, :num_tokens], prompt.to(hidden.dtype).expand(hidden.shape[0], -1, -1)], dim=1)
