"""Teaches SGLang's torch_native attention backend to speculate, through SGLang's own plugin hook.

On a CPU SGLang 0.5.17 speculates only with the intel_amx backend, which needs a processor with AMX.  Three modes are
added to torch_native: verifying drafted tokens (a chain or a tree), the drafter's pass over what was accepted, and the
drafter's own steps, a branch a row.

Not here: the bookkeeping around attention (sgl_kernel/).  Slow, for tests only.
"""

import torch
from sgl_kernel import build_draft_decode_metadata_cpu
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def activate() -> None:
    """Called by SGLang in every process it starts, before a model is loaded."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    _teach_extend(TorchNativeAttnBackend)
    _teach_factory(DraftBackendFactory, TorchNativeAttnBackend, _drafting(TorchNativeAttnBackend))


def _teach_extend(backend: type) -> None:
    plain = backend.forward_extend

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        mode = forward_batch.forward_mode
        if mode.is_target_verify():
            lengths = _verify_lengths(forward_batch)
        elif mode.is_draft_extend_v2():
            lengths = _draft_extend_lengths(forward_batch)
        else:
            return plain(self, q, k, v, layer, forward_batch, save_kv_cache)
        if save_kv_cache:
            _store(self, layer, forward_batch, k, v)
        rows = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices.long()]
        return _attend(self, q, layer, rows, *lengths, _tree_masks(forward_batch))

    backend.forward_extend = forward_extend


def _verify_lengths(forward_batch) -> tuple[list[int], list[int]]:
    """(queries, keys) of every request: its drafted tokens, and those behind all that is certain."""
    count = forward_batch.spec_info.draft_token_num
    return [count] * forward_batch.batch_size, (forward_batch.seq_lens + count).tolist()


def _draft_extend_lengths(forward_batch) -> tuple[list[int], list[int]]:
    keys = forward_batch.extend_prefix_lens + forward_batch.extend_seq_lens
    return forward_batch.extend_seq_lens.tolist(), keys.tolist()


def _tree_masks(forward_batch) -> Tensor | None:
    """What every drafted token may attend to among the drafted ones; None where that is all before it."""
    if not forward_batch.forward_mode.is_target_verify() or forward_batch.spec_info.tree_topk == 1:
        return None
    mask, batch, count = (
        forward_batch.spec_info.custom_mask,
        forward_batch.batch_size,
        forward_batch.spec_info.draft_token_num,
    )
    return mask[: batch * count * count].view(batch, count, count) if mask is not None and mask.numel() else None


def _store(backend, layer, forward_batch, k: Tensor | None, v: Tensor | None) -> None:
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    if k is not None:
        place = KVWriteLoc(forward_batch.out_cache_loc, backend.swa_out_cache_loc)
        backend.token_to_kv_pool.set_kv_buffer(layer, place, k, v)


def _attend(
    backend, q: Tensor, layer, rows: Tensor, queries: list[int], keys: list[int], masks: Tensor | None
) -> Tensor:
    """Attention of every request's newest `queries[i]` tokens over its first `keys[i]` slots, those in `rows[i]`."""
    key_slots = backend.token_to_kv_pool.get_key_buffer(layer.layer_id)
    value_slots = backend.token_to_kv_pool.get_value_buffer(layer.layer_id)
    q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
    out = q.new_empty((q.shape[0], layer.tp_q_head_num, layer.v_head_dim))
    first = 0
    for number, (fresh, seen) in enumerate(zip(queries, keys, strict=True)):
        slots = rows[number][:seen].long()
        out[first : first + fresh] = scaled_dot_product_attention(
            q[first : first + fresh].movedim(0, 1)[None],
            key_slots[slots].to(q.dtype).movedim(0, 1)[None],
            value_slots[slots].to(q.dtype).movedim(0, 1)[None],
            attn_mask=_mask(fresh, seen, masks[number] if masks is not None else None),
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )[0].movedim(0, 1)
        first += fresh
    return out.view(q.shape[0], -1)


def _mask(fresh: int, seen: int, tree: Tensor | None) -> Tensor:
    """Rows: the fresh tokens; columns: all that are seen, the fresh ones last."""
    if tree is None:
        return torch.ones(fresh, seen, dtype=torch.bool).tril(seen - fresh)
    return torch.cat([torch.ones(fresh, seen - fresh, dtype=torch.bool), tree], dim=1)


def _drafting(backend: type) -> type:
    """A class that stands for all of a drafter's steps, with one backend a step, as SGLang's workers expect it."""

    class DraftStep(backend):
        rows: Tensor
        keys: list[int]

        def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True):
            if save_kv_cache:
                _store(self, layer, forward_batch, k, v)
            return _attend(self, q, layer, self.rows, [1] * len(self.keys), self.keys, None)

    class DraftSteps:
        def __init__(self, model_runner, topk: int, num_steps: int) -> None:
            self.topk, self.num_steps = topk, num_steps
            self.attn_backends = [DraftStep(model_runner) for _ in range(num_steps - 1)]

        def init_forward_metadata(self, forward_batch) -> None:
            """A branch is a row of its own; at step i it sees its request and i + 1 drafted tokens."""
            slots = self.attn_backends[0].req_to_token_pool.req_to_token
            lengths = forward_batch.seq_lens
            rows = build_draft_decode_metadata_cpu(
                slots, forward_batch.req_pool_indices, lengths, self.topk, self.num_steps, slots.shape[1]
            )
            for step, attention in enumerate(self.attn_backends):
                attention.rows = rows
                attention.keys = (lengths.repeat_interleave(self.topk) + step + 1).tolist()

    return DraftSteps


def _teach_factory(factory: type, backend: type, draft_steps: type) -> None:
    other_decode, other_extend = factory.create_decode_backend, factory.create_draft_extend_backend

    def torch_native(self) -> bool:
        return (self.draft_attn_backend or self.server_args.attention_backend) == "torch_native"

    def create_decode_backend(self):
        if not torch_native(self):
            return other_decode(self)
        steps = self.speculative_num_steps
        return draft_steps(self.draft_model_runner, self.topk, steps) if steps > 1 else None

    def create_draft_extend_backend(self):
        return backend(self.draft_model_runner) if torch_native(self) else other_extend(self)

    factory.create_decode_backend = create_decode_backend
    factory.create_draft_extend_backend = create_draft_extend_backend
