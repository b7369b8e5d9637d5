"""Plain-torch stand-ins for the functions of sgl_kernel that SGLang 0.5.17 calls when it speculates on a CPU.

Written from SGLang's call sites and from what the CUDA kernels leave behind; names, argument order and the spelling
`retrive` are theirs.  Like the kernels they write into the tensors they are given.  Slow: Python loops over requests.

Not here: attention (torch_native_speculation.py).  Never put this folder on the path of a machine with a GPU: it would
hide the real kernels.
"""

from sgl_kernel.draft_trees import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu
from sgl_kernel.kv_slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)

__version__ = "0.4.5+cpushim"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
