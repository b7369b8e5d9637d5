"""Bookkeeping of KV slots: which slot of the cache holds which token of which request.

`req_to_token[r, p]` is the slot of position p of the request in row r; `req_pool_indices` names the rows of a batch.
"""

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """In every buffer (an address and its bytes a slot) copy slots `src_loc` to `tgt_loc`."""
    if tgt_loc.numel() == 0:
        return
    slots = int(max(tgt_loc.max(), src_loc.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[tgt_loc.long()] = buffer[src_loc.long()].clone()


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """(row, start, end, place) of every request; places number the spans' tokens through the batch."""
    place = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield row, start, end, place
        place += end - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Give the positions from start to end of every request their slots."""
    for row, start, end, place in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[place : place + end - start].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The other way: read the slots of the positions from start to end."""
    for row, start, end, place in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[place : place + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the slots that were set aside behind every request for its draft: `topk` × `num_steps` of them."""
    count = topk * num_steps
    for number, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, length : length + count]
        out_cache_loc[number * count : (number + 1) * count] = slots.to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """A row of slots for every request and branch: the request's own, then those of that branch's draft."""
    rows = torch.zeros((seq_lens.shape[0] * topk, pool_len), dtype=req_to_token.dtype)
    for number, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        room = min(num_steps, pool_len - length)
        for branch in range(topk):
            here, first = rows[number * topk + branch], length + branch * num_steps
            here[:length] = req_to_token[row, :length]
            here[length : length + room] = req_to_token[row, first : first + room]
    return rows


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """The last accepted token of every request: the one the target itself added."""
    count = accept_lens.shape[0]
    last = torch.arange(count) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:count] = accept_tokens.flatten()[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """The slots of the accepted tokens, closed up; -1 in `accept_index` means none."""
    index = accept_index.flatten()
    accepted = index[index > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Move every request's tokens one place to the left and put its newest token at the end (or at `select_index`)."""
    newest = topk_index.flatten()
    spans = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    for number, (start, count) in enumerate(spans):
        if count > 0:
            end = start + count
            input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
            input_ids[int(select_index[number]) if select_index is not None else end - 1] = newest[number]
