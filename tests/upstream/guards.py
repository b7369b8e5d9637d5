"""What SGLang refuses after its arguments have passed, asked of its own functions without weights and kernels.

Each function here calls what a server's processes would call after loading, and lets its error through.

Not here: a refusal by a kernel, by memory, or by what a checkpoint holds.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

REFUSAL = (AssertionError, ValueError, NotImplementedError)
TELLING = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_attention_mode",
    "speculative_draft_attention_backend", "attention_backend", "prefill_attention_backend",
    "decode_attention_backend", "kv_cache_dtype", "dcp_size",
)  # fmt: skip
ANSWERS: dict[tuple[Any, ...], BaseException | None] = {}
"""Of this GPU: to be emptied when another is pretended."""
TREE_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")


class RefusalError(Exception):
    """SGLang said no, in words."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.kind = type(error).__name__


def tree(values: dict[str, Any]) -> None:
    """Draft a tree from random scores, as EagleWorkerV2.draft_forward does, and pick its tokens.

    Raises RefusalError when the tree does not hold that many.
    """
    if values.get("speculative_algorithm") in TREE_ALGORITHMS:
        reason = picked(
            values["speculative_num_steps"],
            values["speculative_eagle_topk"],
            values["speculative_num_draft_tokens"],
        )
        if reason is not None:
            raise RefusalError(reason)


@cache
def picked(steps: int, topk: int, tokens: int) -> Exception | None:
    import torch

    select = importlib.import_module("sglang.srt.speculative.spec_utils").select_top_k_tokens
    organize = importlib.import_module("sglang.srt.speculative.eagle_utils").organize_draft_results
    scores, rows, candidates = None, 1, []
    hidden = torch.zeros(1, 1)
    try:
        for step in range(steps):
            chances = torch.rand(rows, topk)
            found = select(step, chances, torch.zeros(rows, topk, dtype=torch.long), hidden, scores, topk)
            _, hidden, scores, candidate = found
            candidates.append(candidate)
            rows = topk
        organize(*(list(part) for part in zip(*candidates, strict=True)), tokens)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return error
    return None


def attention(args: Any, values: dict[str, Any]) -> None:
    """Make the target's attention backends up to their kernels.  Raises RefusalError."""
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry").ATTENTION_BACKENDS
    mla = is_mla(model_config(args))
    for part in ("prefill", "decode"):
        name = values.get(f"{part}_attention_backend") or values.get("attention_backend")
        if name in registry:
            said(args, (name, mla, *telling(values)), partial(registry[name], runner(args, mla)))


def draft(args: Any, values: dict[str, Any]) -> None:
    """Read the drafter's config, and make its attention backends up to their kernels.  Raises RefusalError."""
    path = values.get("speculative_draft_model_path")
    if path is None:
        return
    try:
        config = model_config(args, model_path=path, is_draft_model=True)
    except REFUSAL as error:
        raise RefusalError(error) from error
    if values["speculative_algorithm"] not in TREE_ALGORITHMS:
        return
    mla = is_mla(config)
    made = draft_backends(args, values, mla)
    said(args, ("draft decode", mla, *telling(values)), made.create_decode_backend)
    said(args, ("draft extend", mla, *telling(values)), made.create_draft_extend_backend)


def draft_backends(args: Any, values: dict[str, Any], mla: bool) -> Any:
    factory = importlib.import_module("sglang.srt.speculative.draft_utils").DraftBackendFactory
    drafter = runner(args, mla, draft_attention_backend=values.get("speculative_draft_attention_backend"))
    given = [drafter, values["speculative_eagle_topk"], values["speculative_num_steps"]]
    if "server_args" in inspect.signature(factory).parameters:  # in 0.5.17; no longer in 0.5.23
        given.insert(0, args)
    return factory(*given)


def telling(values: dict[str, Any]) -> tuple[Any, ...]:
    """What the guards look at, beside the GPU."""
    return tuple(values.get(name) for name in TELLING)


def model_config(args: Any, **given: Any) -> Any:
    return importlib.import_module("sglang.srt.configs.model_config").ModelConfig.from_server_args(args, **given)


def is_mla(config: Any) -> bool:
    return bool(config.attention_arch.name == "MLA")


def said(args: Any, key: tuple[Any, ...], make: Callable[[], object]) -> None:
    """Call `make`, once for each key: an import of missing kernels takes long, and fails anew each time.

    Raises RefusalError; an error that is no refusal in words is a kernel or a tensor that is missing here.
    """
    if key not in ANSWERS:
        publish(args)
        try:
            ANSWERS[key] = make() and None
        except REFUSAL as error:
            ANSWERS[key] = error
        except Exception:  # noqa: BLE001  (see above)
            ANSWERS[key] = None
    if (error := ANSWERS[key]) is not None:
        raise RefusalError(error)


def publish(args: Any) -> None:
    """Make these the arguments of this process, as a server's processes do first."""
    context = importlib.import_module("sglang.srt.runtime_context")
    context.reset_context()
    context.publish(args, role="scheduler")


def runner(args: Any, mla: bool, **more: Any) -> SimpleNamespace:
    """As much of a ModelRunner as guards read."""
    return SimpleNamespace(
        **more,
        server_args=args,
        use_mla_backend=mla,
        init_new_workspace=False,
        model_config=SimpleNamespace(is_encoder_decoder=False, hf_config=SimpleNamespace(architectures=[])),
    )
