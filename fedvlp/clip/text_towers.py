"""The text tower of an open_clip model, fed with embedded tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from jaxtyping import Float, Int
from torch import Tensor, nn

from fedvlp.clip.blocks import Between, Blocks, Mask, is_standard_block
from fedvlp.utils.errors import UserError


class TextTower:
    """A causal CLIP text tower: token embedding, open_clip's unmodified transformer, and the projection of EOT.

    It refers to the open_clip model, whose weights it does not copy, so it follows the model to any device and
    precision.

    Args:
        model: An open_clip `CLIP` or `CustomTextCLIP`.

    Attributes:
        unsuited: Why prompts cannot be learned in it, for a message; None if they can.
        blocks: The transformer; in an unsuited tower, which `for_prompts` refuses, it cannot be run.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tower: Any = getattr(model, "text", model)
        self._pool = getattr(self._tower, "text_pool_type", None) or getattr(self._tower, "pool_type", None)
        self.blocks = Blocks(getattr(self._tower, "transformer", None))
        self.unsuited = self._why_unsuited()

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def width(self) -> int:
        """D, the width of a token."""
        return int(self._tower.token_embedding.embedding_dim)

    def for_prompts(self) -> TextTower:
        """Returns this tower, refused unless it is causal and read at its end-of-text token."""
        if self.unsuited is not None:
            raise UserError(
                "Prompts are learned in a causal CLIP text transformer that is read at its end-of-text token, but this "
                f"model's text tower {self.unsuited}. Choose another --model.clip.name, for example ViT-B-16."
            )
        return self

    def embed(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Returns token embeddings, without positions."""
        embeddings: Tensor = self._tower.token_embedding(ids)
        return embeddings

    def positions(self, indices: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Returns the positional embeddings at these positions of a sequence."""
        embeddings: Tensor = self._tower.positional_embedding[indices]
        return embeddings

    def transform(
        self, tokens: Float[Tensor, "sequences length D"], mask: Mask, between: Sequence[Between] = ()
    ) -> Float[Tensor, "sequences length D"]:
        """Returns the last block's output for embedded tokens.

        Args:
            tokens: Embedded tokens with their positions.
            mask: Which tokens see which.
            between: `between[j]` changes the tokens between blocks j + 1 and j + 2.
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
        return self.blocks.run_last(hidden, indices, query_mask)

    def project(self, ends: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch d"]:
        """Returns joint features, not normalised, from the last block's output at end-of-text tokens."""
        normalised: Tensor = self._tower.ln_final(ends)
        # Some models have a linear layer with a bias, others a bare matrix, a few none.
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

    def _why_unsuited(self) -> str | None:
        """Says why prompts cannot be learned in this tower; None if they can."""
        tower = self._tower
        if getattr(tower, "transformer", None) is None or not hasattr(tower, "token_embedding"):
            return "is not open_clip's own transformer"
        if getattr(tower, "attn_mask", None) is None:
            return "is not causal"
        if getattr(tower, "cls_emb", None) is not None:
            return "appends a class token"
        # Features must be those of one token, behind which padding has no effect.
        if self._pool not in ("argmax", "eos"):
            return f"pools its tokens by '{self._pool}'"
        # Only attention of CLIP's own kind can be computed chunk by chunk.
        return None if all(map(is_standard_block, self.blocks)) else "has attention of another kind than CLIP's"
