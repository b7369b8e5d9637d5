"""Rule: one line of the table of what SGLang does with settings, as data; and what a rule can say.

Not here: the lines themselves (rewrites.py: what a server changes; refusals.py: what it refuses), their use (rules.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from sweeps.facts import KNOWN_VERSIONS, Facts
from sweeps.settings import ARGS, Settings

Said = TypeVar("Said")
Why = str | None
"""A refusal in words; None: nothing against it."""

TREE_ALGORITHMS = ("EAGLE3", "EAGLE", "NEXTN", "STANDALONE")
"""Algorithms with (num_steps, eagle_topk, num_draft_tokens)."""
HOOK = "arg_groups/speculative_hook.py"
TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")
THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")
NGRAM_BREADTH = 10
"""Branches of an NGRAM tree unless speculative_ngram_max_bfs_breadth is given."""
LLAMA_LIKE = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")
"""Targets whose automatic triple is (5, 4, 8); all others, and STANDALONE, get (3, 1, 4)."""


@dataclass(frozen=True)
class Change:
    """One knob that the server would run with another value; for arguments passed through, `server_args` as a whole."""

    knob: str
    was: object
    now: object
    why: str


@dataclass(frozen=True)
class Problem:
    """Why settings cannot run, and the rule that says so."""

    rule: str
    why: str

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True)
class Rule(Generic[Said]):
    """`says` looks at the knobs it `reads` and at no others; what it changes, if it does, is among what it `writes`.

    Names of arguments that are passed through begin with `ARGS`; `*` in a name stands for anything.
    """

    name: str
    says: Callable[[Settings, Facts], Said]
    reads: tuple[str, ...]
    sources: Mapping[str, str] = field(hash=False)
    """SGLang version it holds for → where that is written, `file:line`."""
    writes: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    """Has nothing to say unless one of these is given; empty: it may always have."""

    def holds(self, version: str | None) -> bool:
        """For an unknown version (None): whether it holds for all that are known."""
        return version in self.sources if version else all(known in self.sources for known in KNOWN_VERSIONS)

    def among(self, names: Iterable[str]) -> set[str]:
        """Which of these knobs and arguments it reads."""
        return _matching(self.reads, names)

    def written(self, names: Iterable[str]) -> set[str]:
        """Which of these it may change."""
        return _matching(self.writes, names)

    def awake(self, names: Iterable[str]) -> bool:
        """Whether it may have something to say where only these are given."""
        return not self.given or bool(_matching(self.given, names))


def _matching(patterns: tuple[str, ...], names: Iterable[str]) -> set[str]:
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def into(
    table: list[Rule[Said]],
    *reads: str,
    v17: str = "",
    v23: str = "",
    writes: tuple[str, ...] = (),
    given: tuple[str, ...] = (),
) -> Callable[[Callable[[Settings, Facts], Said]], Callable[[Settings, Facts], Said]]:
    """Put a function into a table under its own name; a version without a source is one it does not hold for."""
    sources = {version: source for version, source in zip(KNOWN_VERSIONS, (v17, v23), strict=True) if source}

    def put(says: Callable[[Settings, Facts], Said]) -> Callable[[Settings, Facts], Said]:
        table.append(Rule(says.__name__.lstrip("_"), says, reads, sources, writes, given))
        return says

    return put


def arg(settings: Settings, name: str, default: Any = None) -> Any:
    """An argument that is passed through."""
    for key, value in settings.server_args:
        if key == name:
            return value
    return default


def number(settings: Settings, name: str, default: float | None = None) -> Any:
    """The same, where it is a number; what else somebody wrote is for the server's own parser to refuse."""
    value = arg(settings, name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def listed(names: tuple[Any, ...]) -> str:
    return ", ".join(map(str, names))


def args(*names: str) -> tuple[str, ...]:
    """Names of arguments as `reads` and `given` have them."""
    return tuple(ARGS + name for name in names)


def without_args(settings: Settings, names: tuple[str, ...], why: str) -> tuple[Change, ...]:
    """The change that leaves these arguments out; none when none of them is given."""
    kept = tuple(pair for pair in settings.server_args if pair[0] not in names)
    if len(kept) == len(settings.server_args):
        return ()
    gone = ", ".join(name for name, _ in settings.server_args if name in names)
    return (Change("server_args", settings.server_args, kept, f"{gone}: {why}"),)


def tree_capacity(num_steps: int, eagle_topk: int) -> int:
    """Nodes a draft tree can offer for verification, the root included.

    Candidate scores number topk + (steps-1)*topk² and num_draft_tokens-1 of them are selected
    (speculative/eagle_utils.py:100-110); more raises "selected index k out of range" in graph capture.
    """
    return 1 + eagle_topk + (num_steps - 1) * eagle_topk**2


TOPK_READS = ("algorithm", *TRIPLE, ARGS + "speculative_adaptive")


def topk_as_run(s: Settings, facts: Facts) -> int | None:
    """Branches a launch really drafts with; None: not decided by what is known (or no tree algorithm)."""
    if s.algorithm not in TREE_ALGORITHMS:
        return None
    if s.eagle_topk is not None:
        return s.eagle_topk
    if s.num_steps is not None or s.num_draft_tokens is not None or arg(s, "speculative_adaptive"):
        return None
    if s.algorithm == "STANDALONE":
        return 1
    return None if facts.architecture is None else 4 if facts.architecture in LLAMA_LIKE else 1


DP_ATTENTION = args("enable_dp_attention", "attn_dp_size")


def beside_dp_attention(s: Settings) -> bool:
    """Whether attention is data-parallel; an attn_dp_size of 1 is none."""
    return bool(arg(s, "enable_dp_attention")) or number(s, "attn_dp_size", 1) > 1


SPLIT_BACKENDS = args("prefill_attention_backend", "decode_attention_backend")
BACKENDS = ("attention_backend", *SPLIT_BACKENDS)


def target_backends(s: Settings) -> set[str]:
    """Attention backends of the target that are given, as it prefills and as it decodes."""
    if not s.server_args:
        return {s.attention_backend} if s.attention_backend else set()
    named = (arg(s, "prefill_attention_backend"), arg(s, "decode_attention_backend"))
    return {str(name or s.attention_backend) for name in named if name or s.attention_backend}


PAGES: Mapping[str, tuple[int, ...]] = {
    "flashmla": (64,), "cutlass_mla": (128,), "trtllm_mla": (64, 32), "tokenspeed_mla": (64, 32),
    "cutedsl_mla": (64, 32), "trtllm_mha": (64, 16, 32, 128), "hpc_ops": (64,),
}  # fmt: skip
"""Backend → page sizes it can have, the one it is given otherwise first (arg_groups/overrides.py:2031-2105)."""
SINGLE_TOKEN_PAGES = ("flashinfer", "fa3", "triton", "torch_native", "flex_attention", "aiter")
"""Backends that leave the page size at 1 when none is asked for."""
PAGE_READS = (*BACKENDS, "draft_attention_backend", "page_size", "eagle_topk")


def snapped_page(s: Settings, facts: Facts) -> int | None:
    """The page size that is asked for, as the backends change it; None: neither asked for nor changed.

    fa4 comes last, and only for a target that is known not to be MLA, on SM100, where no tree is drafted.
    """
    page = s.page_size
    decode, prefill = arg(s, "decode_attention_backend"), arg(s, "prefill_attention_backend")
    fa4_has_its_way = facts.attention == "gqa" and facts.gpu in ("sm100", "sm103") and (s.eagle_topk or 0) <= 1
    if fa4_has_its_way and "fa4" in (s.attention_backend, decode, prefill):
        return 128
    named = {s.attention_backend, decode}
    if s.draft_attention_backend == "trtllm_mha":
        named.add("trtllm_mha")
    named |= {prefill} & {"cutedsl_mla", "trtllm_mha", "hpc_ops"}
    if named.isdisjoint(PAGES):
        return page
    for name, sizes in PAGES.items():
        if name in named and page not in sizes:
            page = sizes[0]
    return page


def page_as_run(s: Settings, facts: Facts) -> int | None:
    """Tokens per KV page of the server; None: not decided by what is given."""
    page = snapped_page(s, facts)
    return 1 if page is None and s.attention_backend in SINGLE_TOKEN_PAGES else page
