"""An open_clip transformer, run block by block: tokens may be replaced between blocks, the last block may be cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from open_clip import transformer
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from fedvlp.clip.towers.chunked_mask import Mask, attend
from fedvlp.clip.towers.packed_weights import PackedWeights
from fedvlp.clip.towers.quick_gelu import QuickGELU
from fedvlp.utils.errors import UserError

Between = Callable[[Tensor], Tensor]
"""Changes tokens [sequences, length, width] between two blocks, for example by replacing those of a prompt."""

Linear = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Returns x W^T + b for x, W and b."""


class Blocks:
    """A view on an open_clip transformer, never a copy; sequences come first in all that it takes and returns.

    Args:
        transformer: The transformer of a text or an image tower.
    """

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer

    def __len__(self) -> int:
        return len(self._transformer.resblocks)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights, in which tokens go in."""
        dtype: torch.dtype = self._transformer.get_cast_dtype()
        return dtype

    @property
    def are_plain(self) -> bool:
        """Whether the last block is CLIP's own kind, whose queries can be run alone and whose keys can be read."""
        return _is_plain(self._transformer.resblocks[-1])

    def run(self, index: int, hidden: Tensor, mask: Mask | None = None) -> Float[Tensor, "sequences length width"]:
        """Returns the output of the block of this index, from 0."""
        block = self._transformer.resblocks[index]
        run = partial(self._run_plain, block, self._linear) if _is_plain(block) else partial(self._run_other, block)
        if self._transformer.grad_checkpointing:
            return checkpoint(run, hidden, mask, use_reentrant=False)
        return run(hidden, mask)

    def run_before_last(
        self,
        hidden: Float[Tensor, "sequences length width"],
        between: Sequence[Between] = (),
        mask: Mask | None = None,
    ) -> Float[Tensor, "sequences length width"]:
        """Returns what goes into the last block; `between[j]` changes the tokens between blocks j + 1 and j + 2."""
        for index in range(len(self) - 1):
            hidden = self.run(index, hidden, mask)
            hidden = between[index](hidden) if index < len(between) else hidden
        return hidden

    def run_last(
        self,
        hidden: Float[Tensor, "sequences length width"],
        places: Int[Tensor, "places"],
        mask: Mask | None = None,
        mask_at: Mask | None = None,
    ) -> Float[Tensor, "sequences places width"]:
        """Returns the last block's output at these places, for which alone it is run where that can be.

        Args:
            hidden: What goes into the last block.
            places: Where it is read.
            mask: What all tokens see; None for everything.
            mask_at: What the tokens at these places see.
        """
        last = self._transformer.resblocks[-1]
        if not _is_plain(last):
            return self.run(len(self) - 1, hidden, mask)[:, places]
        return self._run_plain(last, self._linear, hidden, mask_at, places)

    def last_scores(
        self, hidden: Float[Tensor, "sequences length width"], query: int, keys: Int[Tensor, "keys"]
    ) -> Float[Tensor, "sequences keys"]:
        """Returns <q, k> / sqrt(head width) before the softmax of the last block, averaged over heads.

        Args:
            hidden: What goes into the last block.
            query: Place of the token that asks.
            keys: Places of the tokens that are asked.
        """
        last = self._transformer.resblocks[-1]
        attention, width = last.attn, hidden.shape[-1]
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        asking = linear(last.ln_1(hidden[:, query]), weight[:width], bias[:width])
        asked = last.ln_1(hidden[:, keys])
        asked = linear(asked, weight[width : 2 * width], bias[width : 2 * width])
        products: Tensor = torch.einsum("sw,skw->sk", asking, asked)  # the sum over heads of each head's product
        return products / float(attention.num_heads * attention.head_dim**0.5)

    def pack(self) -> None:
        """Lets products with large weights be oneDNN's, where there are such; see `PackedWeights`."""
        self._transformer.packs = PackedWeights()

    def forget(self) -> None:
        """Frees the copies of weights that products took; the next ones make them anew."""
        packs: PackedWeights | None = getattr(self._transformer, "packs", None)
        if packs is not None:
            packs.forget()

    def compile(self) -> None:
        """Lets the steps of a block be fused, once for all blocks; each new kind of input takes a while."""
        self._transformer.compiled, self._transformer.packs = torch.compile(_run_plain), None

    def check_depth(self, depth: int, tower: str) -> None:
        """Refuses prompts for more blocks than there are.

        Raises:
            UserError: If `depth`, the number of blocks that get prompts of their own, is larger than the tower.
        """
        if depth > len(self):
            raise UserError(
                f"Prompts for {depth} blocks were given, but the {tower} tower has {len(self)}. Use a depth of at most "
                f"{len(self)}."
            )

    @property
    def _run_plain(self) -> Callable[..., Tensor]:
        return getattr(self._transformer, "compiled", _run_plain)

    @property
    def _linear(self) -> Linear:
        packs: PackedWeights | None = getattr(self._transformer, "packs", None)
        return linear if packs is None else packs.linear

    def _run_other(self, block: nn.Module, hidden: Tensor, mask: Mask | None) -> Tensor:
        """Returns the output of a block that is not CLIP's own kind."""
        batch_first, seen = self._transformer.batch_first, None if mask is None else mask.whole()
        hidden = hidden if batch_first else hidden.transpose(0, 1)
        hidden = block(hidden, None, None, seen)
        return hidden if batch_first else hidden.transpose(0, 1)


def _is_plain(block: nn.Module) -> bool:
    """Whether a block is CLIP's own kind: attention of one kind of tokens, then a perceptron."""
    return type(block) is ResidualAttentionBlock and type(block.attn) is nn.MultiheadAttention


def _run_plain(
    block: Any, linear: Linear, hidden: Tensor, mask: Mask | None, places: Tensor | None = None
) -> Float[Tensor, "sequences places width"]:
    """Returns a block's output, at some places or at all, without the copies that a general attention layer makes."""
    keys = block.ln_1(hidden)
    queries = keys if places is None else keys[:, places]
    hidden = hidden if places is None else hidden[:, places]
    hidden = hidden + block.ls_1(_attend(block.attn, linear, queries, keys, mask))
    output: Tensor = hidden + block.ls_2(_perceive(block.mlp, linear, block.ln_2(hidden)))
    return output


def _perceive(perceptron: Any, linear: Linear, hidden: Tensor) -> Tensor:
    """Returns the perceptron's output."""
    inner, outer = perceptron.c_fc, perceptron.c_proj
    activate = QuickGELU.apply if type(perceptron.gelu) is transformer.QuickGELU else perceptron.gelu
    return linear(activate(linear(hidden, inner.weight, inner.bias)), outer.weight, outer.bias)


def _attend(
    attention: nn.MultiheadAttention, linear: Linear, queries: Tensor, keys: Tensor, mask: Mask | None
) -> Tensor:
    """Returns what the queries' tokens read from the keys' tokens."""
    width, weight, bias = attention.embed_dim, attention.in_proj_weight, attention.in_proj_bias
    if queries is keys:
        query, key, value = linear(keys, weight, bias).chunk(3, dim=-1)
    else:
        query = linear(queries, weight[:width], bias[:width])
        key, value = linear(keys, weight[width:], bias[width:]).chunk(2, dim=-1)
    read = (attend if mask is None else mask.attend)(query, key, value, attention.num_heads)
    return linear(read, attention.out_proj.weight, attention.out_proj.bias)
