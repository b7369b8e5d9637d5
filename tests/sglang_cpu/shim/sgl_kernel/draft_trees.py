"""The tree of drafted tokens: how it hangs together, what a node may attend to, how much of it the target agrees with.

A tree of n nodes has node 0, the last certain token, for its root.  The kernels keep it as a first child
(`retrive_next_token`) and a next sibling (`retrive_next_sibling`) of every node, -1 for none, and number the nodes of a
whole batch through (`retrive_index`).
"""

import torch
from torch import Tensor

QUERY_LENGTH_ONLY = 1
"""The tree mask SGLang asks for on a CPU: n × n booleans a request, without the columns of the prompt."""


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Link the drafted tokens that were selected into trees and fill in their positions and masks."""
    if int(tree_mask_mode) != QUERY_LENGTH_ONLY:
        raise NotImplementedError(f"tree_mask_mode {tree_mask_mode}: SGLang is known to use only 1 on a CPU")
    count, batch = draft_token_num, verified_seq_len.shape[0]
    selected, listed = selected_index.reshape(batch, -1).tolist(), parent_list.reshape(batch, -1).tolist()
    parents = [_selected_parents(*pair, topk) for pair in zip(selected, listed, strict=True)]
    _link(parents, positions, retrive_index, retrive_next_token, retrive_next_sibling, verified_seq_len)
    masks = tree_mask[: batch * count * count].view(batch, count, count)
    for mask, above in zip(masks, parents, strict=True):
        _show_ancestors(mask, above)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Link trees that are known by their masks alone, as NGRAM makes them: a node's parent is its nearest ancestor."""
    count = draft_token_num
    masks = tree_mask[: batch_size * count * count].view(batch_size, count, count).tolist()
    parents = [[0] + [max(j for j in range(i) if mask[i][j]) for i in range(1, count)] for mask in masks]
    _link(parents, positions, retrive_index, retrive_next_token, retrive_next_sibling, verified_seq_len)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down every tree as long as some child is the token the target says there.

    Leaves the accepted nodes in `accept_index`, how many drafted ones there are in `accept_token_num`, and in `predicts`
    what the target says after each of them.
    """
    said = [token for row in target_predict.tolist() for token in row]
    trees = zip(
        *(t.tolist() for t in (candidates, retrive_index, retrive_next_token, retrive_next_sibling)), strict=True
    )
    for number, (tokens, names, children, siblings) in enumerate(trees):
        path = [0]
        while len(path) < accept_index.shape[1]:
            wanted, child = said[names[path[-1]]], children[path[-1]]
            while child != -1 and tokens[child] != wanted:
                child = siblings[child]
            if child == -1:
                break
            path.append(child)
        accept_token_num[number] = len(path) - 1
        for place, node in enumerate(path):
            accept_index[number, place] = names[node]
            predicts[names[node]] = said[names[node]]


def _selected_parents(selected: list[int], listed: list[int], topk: int) -> list[int]:
    """Node → its parent.  Drafted tokens come in groups of `topk`; `listed[g]` is the parent of group g, group 0's the root."""
    groups = [token // topk for token in selected]
    return [0] + [0 if group == 0 else selected.index(listed[group]) + 1 for group in groups]


def _show_ancestors(mask: Tensor, parents: list[int]) -> None:
    """A node attends to itself and to what is above it."""
    mask.fill_(False)
    for node in range(len(parents)):
        mask[node, 0] = True
        above = node
        while above:
            mask[node, above] = True
            above = parents[above]


def _link(
    parents: list[list[int]],
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    lengths: Tensor,
) -> None:
    count = len(parents[0]) if parents else 0
    for number, above in enumerate(parents):
        first, nodes = number * count, range(1, count)
        depth, child, sibling = [0] * count, [-1] * count, [-1] * count
        for node in nodes:
            depth[node] = depth[above[node]] + 1
        for node in reversed(nodes):
            sibling[node], child[above[node]] = child[above[node]], node
        retrive_index[number] = torch.arange(first, first + count)
        retrive_next_token[number] = torch.tensor(child)
        retrive_next_sibling[number] = torch.tensor(sibling)
        positions[first : first + count] = torch.tensor(depth) + int(lengths[number])
