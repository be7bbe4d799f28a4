"""Run an open_clip transformer block by block, with chunked attention masks.

Tokens can be replaced between blocks, and the last block can be computed for some tokens only.
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
"""Changes tokens [sequences, length, width] between two blocks, for example by replacing a prompt's tokens."""

Branch = Callable[[Tensor], Tensor]
"""Maps a block's attention inputs [sequences, tokens, width] to a tensor that is added to the block's output."""

Heads = Float[Tensor, "sequences heads tokens head"]
"""Queries, keys or values."""

Hidden = Float[Tensor, "sequences length width"]
"""One vector for each token of some sequences."""

Queries = Float[Tensor, "sequences queries width"]
"""One vector for each of some tokens of these sequences."""


@dataclass(frozen=True)
class ChunkedMask:
    """Attention mask of a row of chunks after a shared prefix: a token sees only the prefix and its own chunk.

    Attention on a row of S tokens computes S x S scores, however many are masked. With chunks of T tokens after a
    prefix of P tokens, it computes S x (P + T).

    Attributes:
        prefix: P, the number of first tokens, which all chunks see.
        masks: Additive mask of each chunk: 0 if a token (row) sees another (column), otherwise -inf. Columns are the
            prefix, then the chunk. Rows are the chunk's query tokens. The first chunk includes the prefix.
    """

    prefix: int
    masks: tuple[Float[Tensor, "_ _"], ...]

    @property
    def length(self) -> int:
        """The number of tokens in the row."""
        return sum(self._lengths)

    def attend(self, query: Queries, key: Hidden, value: Hidden, num_heads: int) -> Queries:
        """Compute the attention output of the query tokens."""
        queries = torch.split(query, [len(mask) for mask in self.masks], dim=1)
        chunks = zip(queries, self._visible(key), self._visible(value), self.masks, strict=True)
        # Chunks are attended separately, so most masked scores are never computed.
        outputs = [attend(q, k, v, num_heads, mask) for q, k, v, mask in chunks]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def select_queries(self, indices: Sequence[Int[Tensor, "_"]]) -> ChunkedMask:
        """Select the mask's rows for some tokens of each chunk; indices count from the chunk's start."""
        return ChunkedMask(self.prefix, tuple(mask[chosen] for mask, chosen in zip(self.masks, indices, strict=True)))

    def to(self, dtype: torch.dtype) -> ChunkedMask:
        """Convert the mask to the tokens' data type."""
        return ChunkedMask(self.prefix, tuple(mask.to(dtype) for mask in self.masks))

    def join(self, budget: int) -> ChunkedMask:
        """Join neighbouring chunks while their tokens and the prefix fit into a budget; a larger chunk stays as it is.

        The tokens see the same others as before, so attention gives the same output in fewer and larger computations.
        """
        joined: list[tuple[Tensor, ...]] = []
        room = 0
        for mask in self.masks:
            width = mask.shape[1] - self.prefix
            if width > room:
                joined.append(())
                room = budget - self.prefix
            joined[-1] += (mask,)
            room -= width
        return ChunkedMask(self.prefix, tuple(map(self._join_masks, joined)))

    def _join_masks(self, masks: Sequence[Tensor]) -> Tensor:
        prefixes = torch.cat([mask[:, : self.prefix] for mask in masks])
        # Outside of the blocks, tokens of two chunks don't see each other.
        visible: Tensor = torch.block_diag(*[mask[:, self.prefix :].exp() for mask in masks])  # type: ignore[no-untyped-call]
        return torch.cat([prefixes, visible.log()], dim=1)

    @property
    def _lengths(self) -> list[int]:
        lengths = [mask.shape[1] - self.prefix for mask in self.masks]
        # The first chunk's mask includes the prefix.
        lengths[0] += self.prefix
        return lengths

    def _visible(self, tokens: Tensor) -> Iterator[Tensor]:
        chunks = torch.split(tokens, self._lengths, dim=1)
        yield chunks[0]
        # Later chunks get the prefix's keys and values, but not its queries, which belong to the first chunk.
        shared = chunks[0][:, : self.prefix]
        for chunk in chunks[1:]:
            yield torch.cat([shared, chunk], dim=1)


@dataclass(frozen=True)
class BlockDiagonalMask:
    """The mask of each of some rows that are joined into one, where no row sees another row's tokens."""

    rows: tuple[ChunkedMask, ...]

    def attend(self, query: Queries, key: Hidden, value: Hidden, num_heads: int) -> Queries:
        """Compute the attention output of the query tokens."""
        lengths = [row.length for row in self.rows]
        queries = torch.split(query, [sum(map(len, row.masks)) for row in self.rows], dim=1)
        keys = torch.split(key, lengths, dim=1)
        values = torch.split(value, lengths, dim=1)
        # A joint mask would only add scores of -inf, since rows do not see each other.
        rows = zip(self.rows, queries, keys, values, strict=True)
        return torch.cat([row.attend(q, k, v, num_heads) for row, q, k, v in rows], dim=1)


@dataclass(frozen=True)
class SequenceMask:
    """A separate mask for each sequence, over all of its tokens.

    Attributes:
        mask: 0 if a token (row) sees another (column), otherwise -inf. Axes of length 1 are broadcast.
    """

    mask: Float[Tensor, "_ _ length"]

    def attend(self, query: Queries, key: Hidden, value: Hidden, num_heads: int) -> Queries:
        """Compute the attention output of the query tokens."""
        return attend(query, key, value, num_heads, self.mask[:, None])

    def select_queries(self, indices: Int[Tensor, "queries"]) -> SequenceMask:
        """Select the mask's rows for some tokens."""
        return self if self.mask.shape[1] == 1 else SequenceMask(self.mask[:, indices])


Mask = ChunkedMask | BlockDiagonalMask | SequenceMask
"""Determines which tokens of a row see each other."""


def attend(
    query: Queries,
    key: Hidden,
    value: Hidden,
    num_heads: int,
    mask: Float[Tensor, "*sequences_and_heads _ length"] | None = None,
) -> Queries:
    """Compute multi-head attention; the mask is added to the scores before the softmax."""
    query = _split_heads(query, num_heads)
    key = _split_heads(key, num_heads)
    value = _split_heads(value, num_heads)
    if keeps_scores(query, key.shape[-2]):
        scores: Tensor = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        output = (scores if mask is None else scores + mask).softmax(dim=-1) @ value
    else:
        output = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return output.transpose(1, 2).flatten(2)


def keeps_scores(query: Heads, num_keys: int) -> bool:
    """Whether attention is written out and keeps all heads' scores for the gradient, instead of using the kernel."""
    # On CPUs, the kernel's backward pass in bfloat16 takes two to six times as long. Scores take 2 S bytes per token
    # and head, in addition to a block's 1.5 kB. CLIPs of 224 pixels have at most 320 tokens, so at most 640 bytes. With
    # 577 tokens, 16 images in ViT-L take 4 GB for little gain.
    is_slow = query.dtype == torch.bfloat16 and query.device.type == "cpu" and query.requires_grad
    return is_slow and num_keys <= 320


def _split_heads(tokens: Tensor, num_heads: int) -> Float[Tensor, "sequences heads tokens width"]:
    return torch.unflatten(tokens, -1, (num_heads, -1)).transpose(1, 2)


class Blocks:
    """The blocks of a frozen open_clip transformer. The first axis of all inputs and outputs is the sequences.

    Only ``cast`` changes the transformer. A deep copy includes the transformer.
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
        """The data type of input and output tokens, which can differ from the type of large weights."""
        return self._blocks[0].ln_1.weight.dtype if self.is_cast else self._transformer.get_cast_dtype()

    @property
    def is_cast(self) -> bool:
        """Whether the type of large weights differs from the tokens' type."""
        return is_cast(self._blocks[0])

    @property
    def compute_dtype(self) -> torch.dtype:
        """The data type of attention."""
        if self.is_cast:
            return self._blocks[0].mlp.c_fc.weight.dtype
        device = next(self._transformer.parameters()).device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.dtype

    def run(
        self, index: int, hidden: Hidden, mask: Mask | None = None, indices: Int[Tensor, "queries"] | None = None
    ) -> Hidden | Queries:
        """Compute the output of a block, by index from 0, for all tokens or for the tokens at ``indices``.

        CLIP's own kind of block computes only these tokens. The mask's rows are the returned tokens. Without a mask
        they see all tokens.
        """
        output = self._run_block(index, hidden, mask, indices)
        branch = self._branches.get(index)
        if branch is None:
            return output
        return output + branch(self.attention_inputs(index, hidden if indices is None else hidden[:, indices]))

    def run_before_last(self, hidden: Hidden, between: Sequence[Between] = (), mask: Mask | None = None) -> Hidden:
        """Compute the last block's input; `between[j]` changes the tokens between blocks j + 1 and j + 2."""
        for index in range(len(self) - 1):
            hidden = self.run(index, hidden, mask)
            hidden = between[index](hidden) if index < len(between) else hidden
        return hidden

    def run_last(self, hidden: Hidden, indices: Int[Tensor, "queries"]) -> Queries:
        """Compute the last block's output for the tokens at ``indices``, which see all tokens."""
        return self.run(len(self) - 1, hidden, indices=indices)

    def last_scores(self, hidden: Hidden, queries: slice, keys: Int[Tensor, "keys"]) -> Float[Tensor, "sequences keys"]:
        """Compute <q, k> / sqrt(head width) before the softmax of the last block, averaged over heads and queries."""
        last = self._blocks[-1]
        attention = last.attn
        width = hidden.shape[-1]
        weight = attention.in_proj_weight
        bias = attention.in_proj_bias
        # The first two thirds of the joint projection make queries and keys.
        q = linear(last.ln_1(hidden[:, queries]), weight[:width].to(bias.dtype), bias[:width]).mean(dim=1)
        k = linear(last.ln_1(hidden[:, keys]), weight[width : 2 * width].to(bias.dtype), bias[width : 2 * width])
        products = torch.einsum("sw,skw->sk", q, k)  # the sum over heads of each head's product
        return products / float(attention.num_heads * attention.head_dim**0.5)

    def attention_inputs(self, index: int, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Compute the attention inputs of a block, by index from 0: in most kinds of blocks, the normalised tokens."""
        return self._blocks[index].ln_1(hidden)

    def heads(self, index: int, inputs: Hidden) -> tuple[Heads, Heads, Heads]:
        """Compute the queries, keys and values of a block from its attention inputs."""
        attention = self._blocks[index].attn
        joint = linear(inputs, attention.in_proj_weight.to(inputs.dtype), attention.in_proj_bias)
        query, key, value = joint.chunk(3, dim=-1)
        heads = attention.num_heads
        return _split_heads(query, heads), _split_heads(key, heads), _split_heads(value, heads)

    def cast(self, dtype: torch.dtype) -> None:
        """Round the large weights of each standard block to a data type, and compute their products in this type."""
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
        # Image towers can have other kinds of blocks, where all tokens see each other.
        options: dict[str, Tensor] = {}
        if isinstance(mask, SequenceMask):
            # PyTorch's attention layers expect one mask per head.
            full_mask = mask.mask.expand(hidden.shape[0], mask.mask.shape[-1], -1)
            options["attn_mask"] = full_mask.repeat_interleave(block.attn.num_heads, dim=0)
        output = block(hidden, **options)
        return output if indices is None else output[:, indices]


def add_branches(blocks: Blocks | None, branches: Mapping[int, Branch], tower: str) -> Blocks:
    """Copy a tower's blocks and add branches in parallel to some, by index from 0; raise UserError without blocks.

    Weights are shared. The last block's branch processes only the tokens that are read.
    """
    if blocks is None:
        raise UserError(
            f"Branches are supported for ViTs and open_clip's own text towers, but this model's {tower} has other "
            "blocks. Choose another --model.clip.name, for example ViT-B-16."
        )
    branched = copy(blocks)
    branched._branches = branches
    return branched


def check_depth(depth: int, blocks: int, tower: str) -> None:
    """Raise UserError if there are prompts for more blocks than the tower has; ``tower`` names it in the message."""
    if depth > blocks:
        raise UserError(f"Expected prompts for at most {blocks} blocks of the {tower} tower; got {depth}. Use fewer.")


def is_standard_block(block: nn.Module) -> bool:
    """Whether a block is CLIP's own kind: self-attention, then a multilayer perceptron."""
    return _computes_as(block, ResidualAttentionBlock) and _computes_as(block.attn, nn.MultiheadAttention)


def _computes_as(module: Any, kind: type[nn.Module]) -> bool:
    """Whether a module computes as a class does; `torch.export` makes subclasses that keep its forward pass."""
    return isinstance(module, kind) and type(module).forward is kind.forward


def _frozen(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(weight.detach().to(dtype), requires_grad=False)


def is_cast(block: Any) -> bool:
    """Whether the type of a block's large weights differs from its other parameters' type."""
    return is_standard_block(block) and bool(block.mlp.c_fc.weight.dtype != block.ln_1.weight.dtype)


def run_block(
    block: Any, hidden: Hidden, mask: Mask | None, indices: Int[Tensor, "queries"] | None = None
) -> Float[Tensor, "sequences outputs width"]:
    """Compute a standard block's output for all tokens, or only for the tokens at ``indices``.

    Unlike a general attention layer, it copies no tensors and computes no gradients of weights. The mask's rows are the
    returned tokens. Without a mask they see all tokens.
    """
    # Blocks with cast weights compute only in the weights' type, so the caller's autocast is turned off.
    with torch.autocast(hidden.device.type, enabled=False) if is_cast(block) else nullcontext():
        keys = block.ln_1(hidden)
        queries = keys
        if indices is not None:
            # Keys and values are needed for all tokens, queries and the perceptron's output only for returned ones.
            queries = keys[:, indices]
            hidden = hidden[:, indices]
        hidden = hidden + block.ls_1(_self_attention(block.attn, queries, keys, mask))
        return hidden + block.ls_2(_perceptron(block.mlp, block.ln_2(hidden)))


def _self_attention(layer: nn.MultiheadAttention, queries: Tensor, keys: Tensor, mask: Mask | None) -> Tensor:
    width = layer.embed_dim
    weight = layer.in_proj_weight
    bias = layer.in_proj_bias
    if queries is keys:
        # One product is faster than three.
        query, key, value = multiply(keys, weight, bias).chunk(3, dim=-1)
    else:
        query = multiply(queries, weight[:width], bias[:width])
        key, value = multiply(keys, weight[width:], bias[width:]).chunk(2, dim=-1)
    output = (attend if mask is None else mask.attend)(query, key, value, layer.num_heads)
    return multiply(output, layer.out_proj.weight, layer.out_proj.bias)


def _perceptron(perceptron: Any, hidden: Tensor) -> Tensor:
    first = perceptron.c_fc
    second = perceptron.c_proj
    activate = QuickGELU.apply if isinstance(perceptron.gelu, open_clip_transformer.QuickGELU) else perceptron.gelu
    return multiply(activate(multiply(hidden, first.weight, first.bias)), second.weight, second.bias)


def multiply(
    inputs: Float[Tensor, "*rows i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, "o"] | None
) -> Float[Tensor, "*rows o"]:
    """Compute x W^T + b, in bfloat16 if W is; a rounded frozen weight is never cast back."""
    # Products of a rounded weight are in bfloat16 outside autocast as well.
    if weight.dtype != torch.bfloat16:
        return linear(inputs, weight, bias)
    return linear(inputs.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


class QuickGELU(torch.autograd.Function):
    """x sigmoid(1.702 x), the activation of OpenAI's CLIP. It keeps one tensor for the gradient instead of two."""

    @staticmethod
    def forward(inputs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Compute x sigmoid(1.702 x)."""
        return (1.702 * inputs).sigmoid_().mul_(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save only the input."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Compute the gradient from silu's gradient at 1.702 x, since x sigmoid(1.702 x) = silu(1.702 x) / 1.702."""
        (inputs,) = ctx.saved_tensors
        return torch.ops.aten.silu_backward(gradient, 1.702 * inputs)
