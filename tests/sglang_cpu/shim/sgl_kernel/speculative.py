"""Where SGLang's NGRAM worker looks for the function it needs."""

from sgl_kernel.draft_trees import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]
