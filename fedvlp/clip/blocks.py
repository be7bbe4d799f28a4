"""An open_clip transformer, run block by block: tokens may be replaced between blocks, and the last block may be cut.

First the masks: which tokens of a row see which, chunk by chunk, and attention that reads no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from open_clip import transformer as open_clip_transformer
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from fedvlp.utils.errors import UserError

Between = Callable[[Tensor], Tensor]
"""Changes tokens [sequences, length, width] between two blocks, for example by replacing those of a prompt."""

Branch = Callable[[Tensor], Tensor]
"""Makes of tokens [sequences, tokens, width], as attention reads them, what is added to the block's output."""

Heads = Float[Tensor, "sequences heads tokens head"]
"""Queries, keys or values."""

Hidden = Float[Tensor, "sequences length width"]
"""All tokens of some sequences, or what is computed of each of them."""

Queries = Float[Tensor, "sequences queries width"]
"""Some tokens of these sequences."""


@dataclass(frozen=True)
class ChunkedMask:
    """A row of chunks behind one prefix: a token sees the prefix and its own chunk, as far as an additive mask allows.

    A row of S tokens in one chunk has a mask of S x S, which attention fills whatever is hidden in it. In chunks of T
    tokens behind a prefix of P it fills S x (P + T).

    Attributes:
        prefix: P, the number of first tokens, which all chunks see.
        masks: For each chunk 0 where a token (row) sees another (column), -inf elsewhere. Columns are the prefix, then
            the chunk; rows are those tokens of the chunk whose queries are taken. The first chunk begins with the
            prefix itself.
    """

    prefix: int
    masks: tuple[Float[Tensor, "_ _"], ...]

    @property
    def length(self) -> int:
        """The number of tokens in the row."""
        return sum(self._lengths)

    def attend(self, query: Queries, key: Hidden, value: Hidden, num_heads: int) -> Queries:
        """Returns what tokens read from those that they see."""
        queries = torch.split(query, [len(mask) for mask in self.masks], dim=1)
        chunks = zip(queries, self._seen(key), self._seen(value), self.masks, strict=True)
        # Each chunk is attended separately: no score is computed that the mask would hide.
        read = [attend(q, k, v, num_heads, mask) for q, k, v, mask in chunks]
        return read[0] if len(read) == 1 else torch.cat(read, dim=1)

    def select_queries(self, indices: Sequence[Int[Tensor, "_"]]) -> ChunkedMask:
        """Returns the mask for the queries of some of each chunk's tokens; indices count from the chunk's start."""
        return ChunkedMask(self.prefix, tuple(mask[chosen] for mask, chosen in zip(self.masks, indices, strict=True)))

    def to(self, dtype: torch.dtype) -> ChunkedMask:
        """Returns the mask in the type of the tokens."""
        return ChunkedMask(self.prefix, tuple(mask.to(dtype) for mask in self.masks))

    @property
    def _lengths(self) -> list[int]:
        lengths = [mask.shape[1] - self.prefix for mask in self.masks]
        # The first chunk's mask begins with the prefix itself.
        lengths[0] += self.prefix
        return lengths

    def _seen(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yields what each chunk sees of keys or values."""
        chunks = torch.split(tokens, self._lengths, dim=1)
        yield chunks[0]
        # Later chunks get the prefix's keys and values, but not its queries, which the first chunk answers.
        shared = chunks[0][:, : self.prefix]
        for chunk in chunks[1:]:
            yield torch.cat([shared, chunk], dim=1)


@dataclass(frozen=True)
class BlockDiagonalMask:
    """The masks of rows that are joined to one, none of which sees another's tokens.

    Attributes:
        rows: Each row's mask.
    """

    rows: tuple[ChunkedMask, ...]

    def attend(self, query: Queries, key: Hidden, value: Hidden, num_heads: int) -> Queries:
        """Returns what tokens read from those that they see."""
        lengths = [row.length for row in self.rows]
        queries = torch.split(query, [sum(map(len, row.masks)) for row in self.rows], dim=1)
        keys = torch.split(key, lengths, dim=1)
        values = torch.split(value, lengths, dim=1)
        # Rows see nothing of each other: a joint mask would only add scores of -inf.
        rows = zip(self.rows, queries, keys, values, strict=True)
        return torch.cat([row.attend(q, k, v, num_heads) for row, q, k, v in rows], dim=1)


@dataclass(frozen=True)
class SequenceMask:
    """A mask of each sequence's own, for all of its tokens at once.

    Attributes:
        mask: 0 where a token (row) sees another (column), -inf elsewhere; an axis of length 1 is the same for all.
    """

    mask: Float[Tensor, "_ _ length"]

    def attend(self, query: Queries, key: Hidden, value: Hidden, num_heads: int) -> Queries:
        """Returns what tokens read from those that they see."""
        return attend(query, key, value, num_heads, self.mask[:, None])

    def select_queries(self, indices: Int[Tensor, "queries"]) -> SequenceMask:
        """Returns the mask for the queries of some tokens."""
        return self if self.mask.shape[1] == 1 else SequenceMask(self.mask[:, indices])


Mask = ChunkedMask | BlockDiagonalMask | SequenceMask
"""Which tokens of a row see which."""


def attend(
    query: Queries,
    key: Hidden,
    value: Hidden,
    num_heads: int,
    mask: Float[Tensor, "*sequences_and_heads _ length"] | None = None,
) -> Queries:
    """Returns what tokens read from others in all heads; a mask is added to the scores before the softmax."""
    query = _split_heads(query, num_heads)
    key = _split_heads(key, num_heads)
    value = _split_heads(value, num_heads)
    if keeps_scores(query, key):
        scores: Tensor = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        read = (scores if mask is None else scores + mask).softmax(dim=-1) @ value
    else:
        read = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return read.transpose(1, 2).flatten(2)


def keeps_scores(
    query: Float[Tensor, "sequences heads queries head"], key: Float[Tensor, "sequences heads length head"]
) -> bool:
    """Whether attention is written out, with the scores of all heads kept for the gradient, in place of the kernel."""
    # On processors the kernel's backward pass in bfloat16 takes two to six times as long. Scores take 2 S bytes a
    # token and head, beside 1.5 kB that a block keeps: up to 320 tokens, which all CLIPs of 224 pixels have, at most
    # 640. With 577 tokens 16 images under ViT-L would take 4 GB, and little would be gained.
    is_slow = query.dtype == torch.bfloat16 and query.device.type == "cpu" and query.requires_grad
    return is_slow and key.shape[-2] <= 320


def _split_heads(tokens: Tensor, num_heads: int) -> Float[Tensor, "sequences heads tokens width"]:
    return torch.unflatten(tokens, -1, (num_heads, -1)).transpose(1, 2)


class Blocks:
    """The blocks of a frozen open_clip transformer; sequences come first in all that it takes and returns.

    Nothing is written onto the transformer. A copy has a copy of the transformer.

    Args:
        transformer: The transformer of a text or an image tower.
    """

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer
        self._branches: Mapping[int, Branch] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._blocks)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tokens that go in and come out, also where large weights are of another."""
        dtype: torch.dtype = self._blocks[0].ln_1.weight.dtype if self.is_cast else self._transformer.get_cast_dtype()
        return dtype

    @property
    def is_cast(self) -> bool:
        """Whether large weights are of another type than the tokens."""
        return is_cast(self._blocks[0])

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type that attention is computed in."""
        if self.is_cast:
            dtype: torch.dtype = self._blocks[0].mlp.c_fc.weight.dtype
            return dtype
        device = next(self._transformer.parameters()).device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.dtype

    def run(
        self, index: int, hidden: Hidden, mask: Mask | None = None, indices: Int[Tensor, "queries"] | None = None
    ) -> Hidden | Queries:
        """Compute the output of a block, by index from 0, for all tokens or for the tokens at ``indices``.

        Blocks of CLIP's own kind compute only these tokens. The mask belongs to the returned tokens, which see all
        tokens without it.
        """
        output = self._run_block(index, hidden, mask, indices)
        branch = self._branches.get(index)
        if branch is None:
            return output
        return output + branch(self.attention_inputs(index, hidden if indices is None else hidden[:, indices]))

    def run_before_last(self, hidden: Hidden, between: Sequence[Between] = (), mask: Mask | None = None) -> Hidden:
        """Returns what goes into the last block; `between[j]` changes the tokens between blocks j + 1 and j + 2."""
        for index in range(len(self) - 1):
            hidden = self.run(index, hidden, mask)
            hidden = between[index](hidden) if index < len(between) else hidden
        return hidden

    def run_last(self, hidden: Hidden, indices: Int[Tensor, "queries"], mask: Mask | None = None) -> Queries:
        """Compute the last block's output for the tokens at ``indices``, as ``run`` does."""
        return self.run(len(self) - 1, hidden, mask, indices)

    def last_scores(self, hidden: Hidden, queries: slice, keys: Int[Tensor, "keys"]) -> Float[Tensor, "sequences keys"]:
        """Compute <q, k> / sqrt(head width) before the softmax of the last block, averaged over heads and queries."""
        last = self._blocks[-1]
        attention = last.attn
        width = hidden.shape[-1]
        weight = attention.in_proj_weight
        bias = attention.in_proj_bias
        # The first two thirds of the joint projection are those of queries and keys.
        q = linear(last.ln_1(hidden[:, queries]), weight[:width].to(bias.dtype), bias[:width]).mean(dim=1)
        k = linear(last.ln_1(hidden[:, keys]), weight[width : 2 * width].to(bias.dtype), bias[width : 2 * width])
        products: Tensor = torch.einsum("sw,skw->sk", q, k)  # the sum over heads of each head's product
        return products / float(attention.num_heads * attention.head_dim**0.5)

    def attention_inputs(self, index: int, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Returns what the attention of the block of this index reads of tokens, normalised in most kinds of blocks."""
        inputs: Tensor = self._blocks[index].ln_1(hidden)
        return inputs

    def heads(self, index: int, inputs: Hidden) -> tuple[Heads, Heads, Heads]:
        """Returns queries, keys and values of a block's attention, of what goes into it."""
        attention = self._blocks[index].attn
        joint = linear(inputs, attention.in_proj_weight.to(inputs.dtype), attention.in_proj_bias)
        query, key, value = joint.chunk(3, dim=-1)
        heads = attention.num_heads
        return _split_heads(query, heads), _split_heads(key, heads), _split_heads(value, heads)

    def cast(self, dtype: torch.dtype) -> None:
        """Rounds the large weights of each block of CLIP's own kind to a type; products are taken in it from then."""
        for block in filter(is_standard_block, self):
            attention: Any = block.attn
            perceptron: Any = block.mlp
            attention.in_proj_weight = _frozen(attention.in_proj_weight, dtype)
            for layer in (attention.out_proj, perceptron.c_fc, perceptron.c_proj):
                layer.weight = _frozen(layer.weight, dtype)

    @property
    def _blocks(self) -> Any:
        return self._transformer.resblocks

    def _run_block(self, index: int, hidden: Tensor, mask: Mask | None, indices: Tensor | None) -> Tensor:
        block = self._blocks[index]
        if is_standard_block(block):
            return run_block(block, hidden, mask, indices)
        # In image towers, whose blocks may be of another kind still, all tokens see each other.
        options: dict[str, Tensor] = {}
        if isinstance(mask, SequenceMask):
            # PyTorch's attention layers take the mask of every head.
            whole = mask.mask.expand(hidden.shape[0], mask.mask.shape[-1], -1)
            options["attn_mask"] = whole.repeat_interleave(block.attn.num_heads, dim=0)
        output: Tensor = block(hidden, **options)
        return output if indices is None else output[:, indices]


def with_branches(blocks: Blocks | None, branches: Mapping[int, Branch], tower: str) -> Blocks:
    """Returns a tower's blocks with branches beside some, by index from 0; a tower of this name without any is refused.

    Weights are shared. Beside the last block only those tokens pass that are read.
    """
    if blocks is None:
        raise UserError(
            f"Branches run beside the blocks of ViTs and of open_clip's own text towers, but this model's {tower} has "
            "others. Choose another --model.clip.name, for example ViT-B-16."
        )
    branched = copy(blocks)
    branched._branches = branches
    return branched


def check_depth(depth: int, blocks: int, tower: str) -> None:
    """Refuses prompts for more blocks than there are; the tower's name is for the message."""
    if depth > blocks:
        raise UserError(
            f"Prompts for {depth} blocks were given, but the {tower} tower has {blocks}. Use a depth of at most "
            f"{blocks}."
        )


def is_standard_block(block: nn.Module) -> bool:
    """Whether a block is CLIP's own kind: self-attention, then a multilayer perceptron."""
    return _computes_as(block, ResidualAttentionBlock) and _computes_as(block.attn, nn.MultiheadAttention)


def _computes_as(module: Any, kind: type[nn.Module]) -> bool:
    """Whether a module is of a kind and no subclass changes what it computes; `torch.export` shows it by a subclass."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def _frozen(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(weight.detach().to(dtype), requires_grad=False)


def is_cast(block: Any) -> bool:
    """Whether a block's large weights are of another type than its other parameters."""
    return is_standard_block(block) and bool(block.mlp.c_fc.weight.dtype != block.ln_1.weight.dtype)


def run_block(
    block: Any, hidden: Hidden, mask: Mask | None, indices: Int[Tensor, "queries"] | None = None
) -> Float[Tensor, "sequences outputs width"]:
    """Returns a block's output for all tokens, or for those at some indices alone.

    It makes none of the copies of a general attention layer, and no gradients of weights. The mask is of the returned
    tokens, which see everything without one.
    """
    # Blocks whose weights were cast compute in no other type than these, whatever the caller's autocast says.
    with torch.autocast(hidden.device.type, enabled=False) if is_cast(block) else nullcontext():
        keys = block.ln_1(hidden)
        queries = keys
        if indices is not None:
            # Keys and values are needed for all tokens, queries and the perceptron only for the returned tokens.
            queries = keys[:, indices]
            hidden = hidden[:, indices]
        hidden = hidden + block.ls_1(_self_attention(block.attn, queries, keys, mask))
        output: Tensor = hidden + block.ls_2(_perceptron(block.mlp, block.ln_2(hidden)))
    return output


def _self_attention(layer: nn.MultiheadAttention, queries: Tensor, keys: Tensor, mask: Mask | None) -> Tensor:
    width = layer.embed_dim
    weight = layer.in_proj_weight
    bias = layer.in_proj_bias
    if queries is keys:
        # One product for all three is faster than three.
        query, key, value = multiply(keys, weight, bias).chunk(3, dim=-1)
    else:
        query = multiply(queries, weight[:width], bias[:width])
        key, value = multiply(keys, weight[width:], bias[width:]).chunk(2, dim=-1)
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
    # The products of a rounded weight are in bfloat16, also outside autocast.
    if weight.dtype != torch.bfloat16:
        return linear(inputs, weight, bias)
    return linear(inputs.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


class QuickGELU(torch.autograd.Function):
    """x sigmoid(1.702 x), with which OpenAI's CLIP was trained; it keeps one tensor for the gradient instead of two."""

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
