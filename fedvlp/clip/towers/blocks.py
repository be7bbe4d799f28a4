"""An open_clip transformer, run block by block: tokens may be replaced between blocks, the last block may be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from fedvlp.clip.towers.chunked_mask import Mask
from fedvlp.clip.towers.half_precision import attention_dtype, hold_in, is_held
from fedvlp.clip.towers.packed_weights import PackedWeights, multiply
from fedvlp.clip.towers.residual_block import Linear, is_standard_block, run_block
from fedvlp.utils.errors import UserError

Between = Callable[[Tensor], Tensor]
"""Changes tokens [sequences, length, width] between two blocks, for example by replacing those of a prompt."""


class Blocks:
    """The blocks of a frozen open_clip transformer; sequences come first in all that it takes and returns.

    Packed weights and compiled code belong to this object; nothing is written onto the transformer. A copy has a copy
    of the transformer, is compiled if this is, and begins without packed weights.

    Args:
        transformer: The transformer of a text or an image tower.
        prepack: Whether products with large weights are oneDNN's, where there are such; see `PackedWeights`.
    """

    def __init__(self, transformer: Any, prepack: bool = False) -> None:
        self._transformer = transformer
        self._packs = PackedWeights() if prepack else None
        self._run_block: Callable[..., Tensor] = run_block

    def __reduce__(self) -> tuple[Callable[..., Blocks], tuple[Any, bool, bool]]:
        # Neither packed weights nor compiled code can be pickled.
        return _copy, (self._transformer, self._packs is not None, self._run_block is not run_block)

    def __len__(self) -> int:
        return len(self._transformer.resblocks)

    def __iter__(self) -> Iterator[nn.Module]:
        """Iterates over open_clip's blocks, for example to put hooks on them."""
        return iter(self._transformer.resblocks)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tokens that go in and come out, also where large weights are held in another."""
        dtype: torch.dtype = self._first.ln_1.weight.dtype if self.is_held else self._transformer.get_cast_dtype()
        return dtype

    @property
    def is_held(self) -> bool:
        """Whether large weights are held in another type than that of the tokens."""
        return self._transformer is not None and is_held(self._first)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type that attention is computed in."""
        if self.is_held:
            return attention_dtype(self._first) or self._first.mlp.c_fc.weight.dtype
        device = next(self._transformer.parameters()).device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.dtype

    @property
    def ends_with_standard_block(self) -> bool:
        """Whether the last block is CLIP's own kind, whose queries can be run alone and whose keys can be read."""
        return is_standard_block(self._transformer.resblocks[-1])

    @property
    def num_packed(self) -> int:
        """The number of packed weights that are kept, at most one for each weight and direction."""
        return 0 if self._packs is None else len(self._packs)

    def run(
        self, index: int, hidden: Float[Tensor, "sequences length width"], mask: Mask | None = None
    ) -> Float[Tensor, "sequences length width"]:
        """Returns the output of the block of this index, from 0; without a mask all tokens see each other."""
        block = self._transformer.resblocks[index]
        if is_standard_block(block):
            run = partial(self._run_block, block, self._linear, attention=attention_dtype(block))
        else:
            run = partial(self._run_other_block, block)
        with self._own_types(hidden):
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
        indices: Int[Tensor, "queries"],
        mask: Mask | None = None,
        query_mask: Mask | None = None,
    ) -> Float[Tensor, "sequences queries width"]:
        """Returns the last block's output for some tokens, for which alone it is run where that can be.

        Args:
            hidden: What goes into the last block.
            indices: Which tokens are put out.
            mask: What all tokens see; None for everything.
            query_mask: What those that are put out see.
        """
        last = self._transformer.resblocks[-1]
        if not is_standard_block(last):
            return self.run(len(self) - 1, hidden, mask)[:, indices]
        with self._own_types(hidden):
            return self._run_block(last, self._linear, hidden, query_mask, indices, attention_dtype(last))

    def last_scores(
        self, hidden: Float[Tensor, "sequences length width"], query: int, keys: Int[Tensor, "keys"]
    ) -> Float[Tensor, "sequences keys"]:
        """Returns <q, k> / sqrt(head width) before the softmax of the last block, averaged over heads.

        Args:
            hidden: What goes into the last block.
            query: Index of the token whose query q is taken.
            keys: Indices of the tokens whose keys k are taken.
        """
        last = self._transformer.resblocks[-1]
        attention = last.attn
        width = hidden.shape[-1]
        weight = attention.in_proj_weight
        bias = attention.in_proj_bias
        q = linear(last.ln_1(hidden[:, query]), weight[:width].to(bias.dtype), bias[:width])
        k = linear(last.ln_1(hidden[:, keys]), weight[width : 2 * width].to(bias.dtype), bias[width : 2 * width])
        products: Tensor = torch.einsum("sw,skw->sk", q, k)  # the sum over heads of each head's product
        return products / float(attention.num_heads * attention.head_dim**0.5)

    def hold_in(self, dtype: torch.dtype) -> None:
        """Rounds the large weights of all blocks of CLIP's own kind to a type, in which products are taken then."""
        for block in self:
            hold_in(block, dtype)
        self.forget_packs()

    def forget_packs(self) -> None:
        """Frees the packed weights; the next products make them anew."""
        if self._packs is not None:
            self._packs.forget()

    def compile(self) -> None:
        """Lets the steps of a block be fused, once for all blocks; each new kind of input takes a while."""
        self._run_block = torch.compile(run_block)
        self._packs = None  # the compiler chooses the products

    def check_depth(self, depth: int, tower: str) -> None:
        """Refuses prompts for more blocks than there are.

        Args:
            depth: The number of blocks that get prompts of their own.
            tower: The name of the tower, for the message.

        Raises:
            UserError: If there are fewer blocks.
        """
        if depth > len(self):
            raise UserError(
                f"Prompts for {depth} blocks were given, but the {tower} tower has {len(self)}. Use a depth of at most "
                f"{len(self)}."
            )

    @property
    def _linear(self) -> Linear:
        return multiply if self._packs is None else self._packs.linear

    @property
    def _first(self) -> Any:
        return self._transformer.resblocks[0]

    def _own_types(self, hidden: Tensor) -> AbstractContextManager[Any]:
        """Returns a context in which blocks whose weights are held in a type compute in no other."""
        return torch.autocast(hidden.device.type, enabled=False) if self.is_held else nullcontext()

    def _run_other_block(self, block: nn.Module, hidden: Tensor, mask: Mask | None) -> Tensor:
        """Returns the output of a block that is not CLIP's own kind."""
        batch_first = self._transformer.batch_first
        dense_mask = None if mask is None else mask.dense()
        hidden = hidden if batch_first else hidden.transpose(0, 1)
        hidden = block(hidden, None, None, dense_mask)
        return hidden if batch_first else hidden.transpose(0, 1)


def _copy(transformer: Any, prepack: bool, is_compiled: bool) -> Blocks:
    blocks = Blocks(transformer, prepack)
    if is_compiled:
        blocks.compile()
    return blocks
