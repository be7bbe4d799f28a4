"""The text tower of an open_clip model, fed with embeddings and an attention mask of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip.towers.attention_mask import ChunkedMask, Mask
from fedvlp.clip.towers.blocks import Between, Blocks
from fedvlp.utils.errors import UserError


class TextTower:
    """A causal CLIP text tower: token embedding, open_clip's unmodified transformer, and the projection of EOT.

    It refers to the open_clip model, whose weights it does not copy, so it follows the model to any device and
    precision.

    Args:
        model: An open_clip `CLIP` or `CustomTextCLIP`.

    Attributes:
        blocks: The transformer; in an unsuited tower, which `for_prompts` refuses, it cannot be run.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tower: Any = getattr(model, "text", model)
        self._pool = getattr(self._tower, "text_pool_type", None) or getattr(self._tower, "pool_type", None)
        self._end_id = int(getattr(self._tower, "text_eos_id", None) or getattr(self._tower, "eos_id", None) or 0)
        self._unsuited = _unsuited(self._tower, self._pool)
        self.blocks = Blocks(getattr(self._tower, "transformer", None))

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def context_length(self) -> int:
        """The largest number of tokens in a sequence."""
        return int(self._tower.context_length)

    @property
    def width(self) -> int:
        """D, the width of a token."""
        return int(self._tower.token_embedding.embedding_dim)

    @property
    def is_suited(self) -> bool:
        """Whether prompts can be learned in it."""
        return self._unsuited is None

    def for_prompts(self) -> TextTower:
        """Returns this tower, refused where prompts cannot be learned in it.

        Raises:
            UserError: If the tower is not causal or does not read its features at the end-of-text token.
        """
        if self._unsuited is not None:
            raise UserError(
                "Prompts are learned in a causal CLIP text transformer that is read at its end-of-text token, but this "
                f"model's text tower {self._unsuited}. Choose another --model.clip.name, for example ViT-B-16."
            )
        return self

    def features(self, ids: Int[Tensor, "texts context"]) -> Float[Tensor, "texts d"]:
        """Returns joint features of padded texts, not normalised, as open_clip's own forward pass does."""
        places = torch.arange(ids.shape[1], device=ids.device)
        # Each token follows the one before it: the usual causal mask.
        mask = causal_mask(range(-1, len(places) - 1)).to(ids.device, self.blocks.compute_dtype)
        hidden = self.transform(self.embed(ids) + self.positions(places), ChunkedMask(0, (mask,)))
        ends = [len(row) - 1 for row in self.trim(ids)]
        return self.project(hidden[range(len(ids)), ends])

    def trim(self, ids: Int[Tensor, "sequences context"]) -> list[list[int]]:
        """Returns each sequence's token ids through the end-of-text token, without padding."""
        # OpenAI's end-of-text token has the largest id of the vocabulary.
        ends = ids.argmax(dim=-1) if self._pool == "argmax" else (ids == self._end_id).int().argmax(dim=-1)
        return [row[: int(end) + 1].tolist() for row, end in zip(ids, ends, strict=True)]

    def embed(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Returns token embeddings, without positions."""
        embeddings: Tensor = self._tower.token_embedding(ids)
        return embeddings

    def positions(self, indices: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Returns the positional embeddings at these positions of a sequence."""
        embeddings: Tensor = self._tower.positional_embedding[indices]
        return embeddings

    def transform(
        self,
        tokens: Float[Tensor, "sequences length D"],
        mask: Mask,
        between: Sequence[Between] = (),
    ) -> Float[Tensor, "sequences length D"]:
        """Returns the last block's output for embedded tokens.

        Args:
            tokens: Embedded tokens with their positions.
            mask: Which tokens see which.
            between: `between[j]` changes the tokens between blocks j + 1 and j + 2.

        Raises:
            UserError: If there are more changes than places between blocks.
        """
        hidden = self._before_last(tokens, mask, between)
        return self.blocks.run(len(self.blocks) - 1, hidden, mask)

    def transform_at(
        self,
        tokens: Float[Tensor, "sequences length D"],
        mask: Mask,
        indices: Int[Tensor, "queries"],
        query_mask: Mask,
        between: Sequence[Between] = (),
    ) -> Float[Tensor, "sequences queries D"]:
        """Returns `transform(tokens, mask, between)[:, indices]`, for which alone the last block is run."""
        hidden = self._before_last(tokens, mask, between)
        return self.blocks.run_last(hidden, indices, mask, query_mask)

    def project(self, ends: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch d"]:
        """Returns joint features, not normalised, from the last block's output at end-of-text tokens."""
        normalised: Tensor = self._tower.ln_final(ends)
        projection = self._tower.text_projection
        if projection is None:
            return normalised
        if isinstance(projection, nn.Linear):
            projected: Tensor = projection(normalised)
            return projected
        return normalised @ cast(Tensor, projection)

    def _before_last(self, tokens: Tensor, mask: Mask, between: Sequence[Between]) -> Tensor:
        """Returns what goes into the last block."""
        # A prompt in the first block and one for each change.
        self.blocks.check_depth(1 + len(between), "text")
        return self.blocks.run_before_last(tokens.to(self.blocks.dtype), between, mask)


def causal_mask(parents: Sequence[int]) -> Float[Tensor, "length length"]:
    """Returns the additive mask under which a token sees itself, the one it follows, and all that this one sees.

    Args:
        parents: The place of the token that each one follows, always an earlier one; -1 for none.

    Example:
        >>> causal_mask([-1, 0, 0])
        tensor([[0., -inf, -inf],
                [0., 0., -inf],
                [0., -inf, 0.]])
    """
    visible = torch.eye(len(parents), dtype=torch.bool)
    for place, parent in enumerate(parents):
        if parent >= 0:
            # Parents come first, so all that the parent sees is known by now.
            visible[place] |= visible[parent]
    return torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))


def _unsuited(tower: Any, pool: str | None) -> str | None:
    """Returns why prompts cannot be learned in this tower, or None if they can."""
    if getattr(tower, "transformer", None) is None or not hasattr(tower, "token_embedding"):
        return "is not open_clip's own transformer"
    if getattr(tower, "attn_mask", None) is None:
        return "is not causal"
    if getattr(tower, "cls_emb", None) is not None:
        return "appends a class token"
    if pool not in ("argmax", "eos"):
        return f"pools its tokens by '{pool}'"
    return None
