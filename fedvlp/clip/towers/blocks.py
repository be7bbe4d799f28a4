"""An open_clip transformer, run block by block: tokens may be replaced between blocks, the last block may be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from open_clip import transformer as open_clip_transformer
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from fedvlp.clip.towers.attention_mask import Mask, attend
from fedvlp.utils.errors import UserError
from fedvlp.utils.processor import has_bfloat16_tiles

Between = Callable[[Tensor], Tensor]
"""Changes tokens [sequences, length, width] between two blocks, for example by replacing those of a prompt."""


class Blocks:
    """The blocks of a frozen open_clip transformer; sequences come first in all that it takes and returns.

    Compiled code belongs to this object; nothing is written onto the transformer. A copy has a copy of the transformer,
    and is compiled if this is.

    Args:
        transformer: The transformer of a text or an image tower.
    """

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer
        self._run_block: Callable[..., Tensor] = run_block

    def __reduce__(self) -> tuple[Callable[..., Blocks], tuple[Any, bool]]:
        # Compiled code cannot be pickled.
        return _copy, (self._transformer, self._run_block is not run_block)

    def __len__(self) -> int:
        return len(self._transformer.resblocks)

    def __iter__(self) -> Iterator[nn.Module]:
        """Iterates over open_clip's blocks, for example to put hooks on them."""
        return iter(self._transformer.resblocks)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tokens that go in and come out, also where large weights are of another."""
        dtype: torch.dtype = self._first.ln_1.weight.dtype if self.is_cast else self._transformer.get_cast_dtype()
        return dtype

    @property
    def is_cast(self) -> bool:
        """Whether large weights are of another type than the tokens."""
        return self._transformer is not None and is_cast(self._first)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type that attention is computed in."""
        if self.is_cast:
            return attention_dtype(self._first) or self._first.mlp.c_fc.weight.dtype
        device = next(self._transformer.parameters()).device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.dtype

    @property
    def ends_with_standard_block(self) -> bool:
        """Whether the last block is CLIP's own kind, whose queries can be run alone and whose keys can be read."""
        return is_standard_block(self._transformer.resblocks[-1])

    def run(
        self, index: int, hidden: Float[Tensor, "sequences length width"], mask: Mask | None = None
    ) -> Float[Tensor, "sequences length width"]:
        """Returns the output of the block of this index, from 0; without a mask all tokens see each other."""
        block = self._transformer.resblocks[index]
        if is_standard_block(block):
            run = partial(self._run_block, block, attention=attention_dtype(block))
        else:
            run = partial(self._run_other_block, block)
        with self._own_types(hidden):
            # Activations are then computed again in the backward pass, which saves memory for time.
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
            indices: Which tokens are returned.
            mask: What all tokens see; None for everything.
            query_mask: What the returned tokens see.
        """
        last = self._transformer.resblocks[-1]
        if not is_standard_block(last):
            return self.run(len(self) - 1, hidden, mask)[:, indices]
        with self._own_types(hidden):
            return self._run_block(last, hidden, query_mask, indices, attention_dtype(last))

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
        # The first two thirds of the joint projection are those of queries and keys.
        q = linear(last.ln_1(hidden[:, query]), weight[:width].to(bias.dtype), bias[:width])
        k = linear(last.ln_1(hidden[:, keys]), weight[width : 2 * width].to(bias.dtype), bias[width : 2 * width])
        products: Tensor = torch.einsum("sw,skw->sk", q, k)  # the sum over heads of each head's product
        return products / float(attention.num_heads * attention.head_dim**0.5)

    def cast(self, dtype: torch.dtype) -> None:
        """Rounds the large weights of each block of CLIP's own kind to a type; products are taken in it from then."""
        for block in filter(is_standard_block, self):
            for layer, name in _large_weights(block):
                weight = getattr(layer, name).detach().to(dtype)
                setattr(layer, name, nn.Parameter(weight, requires_grad=False))

    def compile(self) -> None:
        """Fuses the steps of a block, once for all blocks; each new kind of input takes a while."""
        self._run_block = torch.compile(run_block)

    def check_depth(self, depth: int, tower: str) -> None:
        """Refuses prompts for more blocks than there are.

        Args:
            depth: The number of blocks that get their own prompts.
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
    def _first(self) -> Any:
        return self._transformer.resblocks[0]

    def _own_types(self, hidden: Tensor) -> AbstractContextManager[Any]:
        """Returns a context in which blocks whose weights were cast compute in no other type."""
        return torch.autocast(hidden.device.type, enabled=False) if self.is_cast else nullcontext()

    def _run_other_block(self, block: nn.Module, hidden: Tensor, mask: Mask | None) -> Tensor:
        """Returns the output of a block that is not CLIP's own kind."""
        batch_first = self._transformer.batch_first
        # open_clip's own forward knows no chunks.
        dense_mask = None if mask is None else mask.dense()
        hidden = hidden if batch_first else hidden.transpose(0, 1)
        hidden = block(hidden, None, None, dense_mask)
        return hidden if batch_first else hidden.transpose(0, 1)


def _copy(transformer: Any, is_compiled: bool) -> Blocks:
    blocks = Blocks(transformer)
    if is_compiled:
        blocks.compile()
    return blocks


def is_standard_block(block: nn.Module) -> bool:
    """Whether a block is CLIP's own kind: self-attention, then a multilayer perceptron."""
    return _computes_as(block, ResidualAttentionBlock) and _computes_as(block.attn, nn.MultiheadAttention)


def _computes_as(module: Any, kind: type[nn.Module]) -> bool:
    """Whether a module is of a kind and no subclass changes what it computes; `torch.export` shows it by a subclass."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def _large_weights(block: Any) -> list[tuple[nn.Module, str]]:
    """Returns the layers of a block that have a large weight, and its name."""
    return [
        (block.attn, "in_proj_weight"),
        (block.attn.out_proj, "weight"),
        (block.mlp.c_fc, "weight"),
        (block.mlp.c_proj, "weight"),
    ]


def is_cast(block: Any) -> bool:
    """Whether a block's large weights are of another type than its other parameters."""
    return is_standard_block(block) and bool(block.mlp.c_fc.weight.dtype != block.ln_1.weight.dtype)


def attention_dtype(block: Any) -> torch.dtype | None:
    """Returns the type of a block's attention, None for that of its products."""
    # With the bfloat16 units of AVX512 the backward pass of PyTorch's attention takes twice as long in bfloat16 as in
    # float32. Processors with AMX, and GPUs, gain.
    if not is_cast(block) or block.mlp.c_fc.weight.device.type != "cpu" or has_bfloat16_tiles():
        return None
    dtype: torch.dtype = block.ln_1.weight.dtype
    return dtype


def run_block(
    block: Any,
    hidden: Float[Tensor, "sequences length width"],
    mask: Mask | None,
    indices: Int[Tensor, "queries"] | None = None,
    attention: torch.dtype | None = None,
) -> Float[Tensor, "sequences outputs width"]:
    """Returns a block's output for all tokens, or for those at some indices alone.

    It makes none of the copies of a general attention layer, and no gradients of weights.

    Args:
        block: A block of CLIP's own kind.
        hidden: What goes into the block.
        mask: What each of the returned tokens sees; None for everything.
        indices: Which tokens are returned; None for all.
        attention: The type of attention; None for that of the products.
    """
    keys = block.ln_1(hidden)
    queries = keys
    if indices is not None:
        # Keys and values are needed of all tokens, queries and the perceptron of those that are returned alone.
        queries = keys[:, indices]
        hidden = hidden[:, indices]
    hidden = hidden + block.ls_1(_self_attention(block.attn, queries, keys, mask, attention))
    output: Tensor = hidden + block.ls_2(_perceptron(block.mlp, block.ln_2(hidden)))
    return output


def _self_attention(
    layer: nn.MultiheadAttention, queries: Tensor, keys: Tensor, mask: Mask | None, dtype: torch.dtype | None
) -> Tensor:
    width = layer.embed_dim
    weight = layer.in_proj_weight
    bias = layer.in_proj_bias
    if queries is keys:
        # One product for all three is faster than three.
        query, key, value = multiply(keys, weight, bias).to(dtype).chunk(3, dim=-1)
    else:
        query = multiply(queries, weight[:width], bias[:width]).to(dtype)
        key, value = multiply(keys, weight[width:], bias[width:]).to(dtype).chunk(2, dim=-1)
    read = (attend if mask is None else mask.attend)(query, key, value, layer.num_heads)
    return multiply(read, layer.out_proj.weight, layer.out_proj.bias)


def _perceptron(perceptron: Any, hidden: Tensor) -> Tensor:
    first = perceptron.c_fc
    second = perceptron.c_proj
    activate = QuickGELU.apply if isinstance(perceptron.gelu, open_clip_transformer.QuickGELU) else perceptron.gelu
    return multiply(activate(multiply(hidden, first.weight, first.bias)), second.weight, second.bias)


def multiply(
    inputs: Float[Tensor, "*rows i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, "o"] | None
) -> Float[Tensor, "*rows o"]:
    """Returns x W^T + b, in bfloat16 where W is: a frozen weight that was rounded is never cast back."""
    if weight.dtype != torch.bfloat16:
        return linear(inputs, weight, bias)
    return linear(inputs.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


class QuickGELU(torch.autograd.Function):
    """x sigmoid(1.702 x), with which OpenAI's CLIP was trained; it keeps one tensor for the gradient instead of two."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Returns x sigmoid(1.702 x)."""
        return (1.702 * inputs).sigmoid_().mul_(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Saves the input alone."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Returns the gradient: that of silu at 1.702 x, as x sigmoid(1.702 x) = silu(1.702 x) / 1.702."""
        (inputs,) = ctx.saved_tensors
        result: Tensor = torch.ops.aten.silu_backward(gradient, 1.702 * inputs)
        return result
