"""Run timm's vision transformers block by block, and compute the scores of their attention and attention pool."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from timm.layers.attention_pool import AttentionPoolLatent
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models.eva import EvaBlockPostNorm
from timm.models.vision_transformer import ResPostBlock
from torch import Tensor

from fedvlp.clip.blocks import Blocks, Heads, Hidden, Mask


class TimmBlocks(Blocks):
    """The blocks of timm's `VisionTransformer` or `Eva`, each run by its own forward pass.

    Weights are not rounded and steps are not fused, so `bf16-mixed` uses autocast. Only patches have rotary positions,
    not the tokens before and after them.
    """

    @property
    def dtype(self) -> torch.dtype:
        """The data type of input tokens."""
        return next(self._transformer.parameters()).dtype

    def last_scores(self, hidden: Hidden, queries: slice, keys: Int[Tensor, "keys"]) -> Float[Tensor, "sequences keys"]:
        """Compute the last block's scores, as `Blocks.last_scores` does."""
        last = len(self) - 1
        query, key, _ = self.heads(last, self.attention_inputs(last, hidden))
        return mean_scores(query[:, :, queries].mean(dim=2), key[:, :, keys])

    def attention_inputs(self, index: int, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Compute the attention inputs of a block, by index from 0."""
        block = self._blocks[index]
        # These kinds of blocks normalise the output of attention rather than its input.
        return hidden if isinstance(block, (EvaBlockPostNorm, ResPostBlock)) else block.norm1(hidden)

    def heads(self, index: int, inputs: Hidden) -> tuple[Heads, Heads, Heads]:
        """Compute the normalised and rotated queries, keys and values of a block from its attention inputs."""
        attention = self._blocks[index].attn
        if attention.qkv is None:
            joint = torch.cat([layer(inputs) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)], -1)
        else:
            joint = attention.qkv(inputs)
        if getattr(attention, "q_bias", None) is not None:  # in Eva, where the bias of keys is zero
            joint = joint + torch.cat([attention.q_bias, attention.k_bias, attention.v_bias])
        query, key, value = torch.unflatten(joint, -1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query = attention.q_norm(query)
        key = attention.k_norm(key)
        prefix = self._transformer.num_prefix_tokens
        rope = self._rope(index, inputs.shape[1] - prefix, prefix)
        if rope is not None:
            half = getattr(attention, "rotate_half", False)
            query = apply_rot_embed_cat(query, rope, half=half)
            key = apply_rot_embed_cat(key, rope, half=half)
        return query, key, value

    @property
    def _blocks(self) -> Any:
        return self._transformer.blocks

    def _run_block(self, index: int, hidden: Tensor, mask: Mask | None, indices: Tensor | None) -> Tensor:
        # All tokens see each other. timm's own attention does not rotate the first tokens.
        rope = self._rope(index, hidden.shape[1] - self._transformer.num_prefix_tokens)
        output: Tensor = self._blocks[index](hidden) if rope is None else self._blocks[index](hidden, rope=rope)
        return output if indices is None else output[:, indices]

    def _rope(self, index: int, length: int, before: int = 0) -> Float[Tensor, "*heads tokens twice"] | None:
        """Make sines and cosines to rotate `length` tokens that start with the patches, and `before` tokens ahead."""
        trunk = self._transformer
        if getattr(trunk, "rope", None) is None:
            return None
        rope = trunk.rope.get_embed()
        if getattr(trunk, "rope_mixed", False):  # each block has learned frequencies
            rope = rope[index]
        sines, cosines = rope.chunk(2, dim=-1)
        # Tokens without a position are not rotated: sine 0, cosine 1.
        padding = (0, 0, before, length - rope.shape[-2])
        return torch.cat([F.pad(sines, padding), F.pad(cosines, padding, value=1.0)], dim=-1)


def pool_scores(pool: AttentionPoolLatent, tokens: Float[Tensor, "B L W"]) -> Float[Tensor, "B L"]:
    """Compute <q, k> / sqrt(head width) before the softmax of an attention pool, averaged over heads.

    The query q is the pool's own, and the keys k are computed from normalised tokens.
    """
    heads = (pool.num_heads, pool.head_dim)
    query = pool.q_norm(pool.q(pool.latent[:, :1]).unflatten(-1, heads).transpose(1, 2))  # [1, heads, 1, head]
    key = pool.k_norm(pool.kv(tokens)[..., : query.shape[1] * query.shape[3]].unflatten(-1, heads).transpose(1, 2))
    # The shape rather than `len`, which would fix the batch size of an exported graph.
    return mean_scores(query[:, :, 0].expand(tokens.shape[0], -1, -1), key)


def mean_scores(
    query: Float[Tensor, "sequences heads head"], key: Float[Tensor, "sequences heads keys head"]
) -> Float[Tensor, "sequences keys"]:
    """Compute <q, k> / sqrt(head width), averaged over heads."""
    return torch.einsum("shd,shkd->sk", query, key) / (query.shape[1] * query.shape[2] ** 0.5)
