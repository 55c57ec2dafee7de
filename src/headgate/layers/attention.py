"""`nn.MultiheadAttention` with fewer heads than its width would have, which torch's own code cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FewerHeads(nn.MultiheadAttention):
    """An `nn.MultiheadAttention` that lost heads: the same parameters by the same names, with fewer rows.

    `num_heads` heads, of `head_dim` channels for queries and keys, perhaps fewer for values that have weights of their
    own; what goes in and out is as wide as before. Per-head masks, of shape (batch · heads, targets, sources), are not
    taken.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's own: the attended values and, if asked for, the weights, averaged or head by head."""
        batched = query.dim() == 3
        given = [self._batch_first(x, batched) for x in (query, key, value)]
        q, k, v = (self._heads(x) for x in self._projected(*given))
        mask = self._mask(attn_mask, key_padding_mask, q, batched)
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q * self.head_dim**-0.5 @ k.transpose(-2, -1)
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            out = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values by their own rows; learned keys and values behind the last source."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        bias = self.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.split([len(weight) for weight in weights])
        projected = [F.linear(*one) for one in zip((query, key, value), weights, biases, strict=True)]
        if self.bias_k is not None and self.bias_v is not None:
            for place, row in ((1, self.bias_k), (2, self.bias_v)):
                projected[place] = torch.cat([projected[place], row.expand(len(query), 1, -1)], 1)
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)

    def _mask(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, batched: bool) -> Tensor | None:
        """What is added to the scores, (batch or 1, 1, targets or 1, sources), with nothing against learned sources."""
        if attn_mask is not None and attn_mask.dim() != 2:
            raise ValueError(
                f"an attention that lost heads takes masks of shape (targets, sources), not {list(attn_mask.shape)}"
            )
        masks = []
        if attn_mask is not None:
            masks.append(_added(attn_mask, q.dtype)[None, None])
        if padding is not None:
            masks.append(_added(padding if batched else padding.unsqueeze(0), q.dtype)[:, None, None])
        if not masks:
            return None
        learned = (self.bias_k is not None) + bool(self.add_zero_attn)
        whole = masks[0] if len(masks) == 1 else masks[0] + masks[1]
        return F.pad(whole, (0, learned))


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of truth values (True: not to be looked at) as what is added to scores."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


_CLASSES: dict[type[nn.Module], type[FewerHeads]] = {nn.MultiheadAttention: FewerHeads}


def heads_left(module: nn.MultiheadAttention) -> int:
    """As many as the rows of its queries say."""
    rows = len(module.in_proj_weight) // 3 if module.in_proj_weight is not None else len(module.q_proj_weight)
    return rows // int(module.head_dim)


def can_lose_heads(module: nn.Module) -> bool:
    """Whether the module is torch's own attention, or derives from it without a forward of its own."""
    known = (nn.MultiheadAttention.forward, FewerHeads.forward)
    return isinstance(module, nn.MultiheadAttention) and type(module).forward in known


def lose_heads_(root: nn.Module, module: nn.Module) -> None:
    """Turns an attention whose tensors have been cut into a `FewerHeads`; fast paths that expect all heads are off."""
    kind = type(module)
    if not issubclass(kind, FewerHeads):
        if kind not in _CLASSES:
            _CLASSES[kind] = type(f"FewerHeads{kind.__name__}", (FewerHeads, kind), {"__doc__": FewerHeads.__doc__})
        module.__class__ = _CLASSES[kind]
    # What the layers around it ask before they take a fast path.
    vars(module)["_qkv_same_embed_dim"] = False
    for encoder in root.modules():
        if isinstance(encoder, nn.TransformerEncoder) and any(module is inner for inner in encoder.modules()):
            encoder.use_nested_tensor = False


@contextmanager
def without_fast_paths() -> Iterator[None]:
    """Torch's encoders do what they do in training: their fast path takes all heads, and makes zeros of padding."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
