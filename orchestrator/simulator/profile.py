"""Profile: what one simulated machine, target and set of drafters are like; a YAML file in conf/profiles.

The docs beside the fields are the file's reference.  Not here: the formulas that read these numbers (model.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import ConfError
from orchestrator.nearest import nearest

PROFILES = Path(__file__).resolve().parents[2] / "conf" / "profiles"


@dataclass(frozen=True)
class Acceptance:
    """How often a drafter's guesses are right; see `model.survival` for the formula."""

    logit: float = 0.5
    """Log-odds that the first drafted token is right, in a middling context."""
    depth_slope: float = -0.2
    """Added to the log-odds per ln(depth): below 0, later guesses are worse."""
    context_spread: float = 0.8
    """Standard deviation of the log-odds from one verify step to the next (easy and hard stretches of a text)."""
    prompt_spread: float = 0.3
    """Standard deviation of the log-odds from one prompt to the next."""
    rank_exponent: float = 0.5
    """How much a second, third … guess at the same place adds; 0: nothing, 1: as much as a fresh guess."""
    gate: float = 1.0
    """Share of verify steps in which there is a guess at all; below 1 for n-gram lookups, which often find no match."""


@dataclass(frozen=True)
class Drafter:
    """A drafter the profile knows; a launch names it by the last part of --speculative-draft-model-path."""

    acceptance: Acceptance
    algorithm: str = "EAGLE3"
    """The algorithm it was trained for; EAGLE3 launched as EAGLE runs and guesses nothing, as in SGLang."""
    weights_gib: float = 0.5
    """Its weights, all GPUs together."""
    step_ms: float = 0.3
    """One draft step at batch 1."""
    token_ms: float = 0.001
    """Added per drafted token (batch x topk) and draft step."""


@dataclass(frozen=True)
class Target:
    name: str
    """What the target pretends to be."""
    architecture: str = "LlamaForCausalLM"
    """`architectures[0]` of its config.json; it decides SGLang's automatic (steps, topk, tokens)."""
    latent_attention: bool | None = None
    """Multi-head latent attention (MLA), of which some backends draft chains only; empty: not said, and the server decides."""
    context_length: int = 8192
    weights_gib: float = 15.0
    """Its weights, all GPUs together."""
    kv_gib_per_ktoken: float = 0.125
    """KV cache of 1,000 tokens, all GPUs together."""


@dataclass(frozen=True)
class StepTime:
    """Where the time of one step goes; see `model.decode_ms` for the formula.  Milliseconds."""

    weights_ms: float
    """Reading the weights that every step needs, at the reference tp_size."""
    knee_tokens: float
    """Verified tokens (batch x num_draft_tokens) at which arithmetic takes as long as reading the weights."""
    sharpness: float = 3.0
    """How sudden the knee is; higher is sharper."""
    experts_ms: float = 0.0
    """Reading all experts of a mixture of experts; 0 for a dense target."""
    expert_share: float = 1.0
    """Share of the experts that one token wakes."""
    expert_exponent: float = 0.8
    """Below 1: tokens of one batch wake the same experts more often than chance."""
    fixed_ms: float = 0.5
    """Paid by every step whatever its size: kernel launches, sampling, scheduling."""
    request_ms: float = 0.01
    """Paid per running request."""
    kv_ms_per_ktoken: float = 0.01
    """Reading the KV cache of 1,000 tokens."""
    verify_ms: float = 0.5
    """Paid by every verify step: mask, acceptance, rearranging the cache."""
    verify_request_ms: float = 0.0
    """Paid per running request by every verify step."""
    verify_token_ms: float = 0.0
    """Paid per verified token: attention of the query block, logits."""
    tree_ms: float = 0.0
    """Paid by every verify step of a tree (topk above 1)."""
    tree_token_ms: float = 0.0
    """Paid per verified token of a tree."""
    one_step_ms: float = 0.0
    """Paid per verify step when num_steps is 1; an oddity seen in recorded rows, of unknown cause."""
    prefill_ms: float = 15.0
    """Paid by every prefill batch."""
    prefill_token_ms: float = 0.02
    """Paid per prompt token that is not cached."""
    prefill_request_ms: float = 0.5
    """Paid per request of a prefill batch."""
    no_graph_factor: float = 5.0
    """How much slower decoding is outside CUDA graphs."""


@dataclass(frozen=True)
class Backend:
    """An attention backend of this machine; one that is not listed is refused as SGLang refuses it."""

    decode: float = 1.0
    """Factor on the time of every decode step."""
    verify: float = 1.0
    """Further factor on verify steps."""
    tree: float = 1.0
    """Further factor on verify steps of a tree."""
    trees: bool = True
    """Whether topk above 1 is accepted."""


@dataclass(frozen=True)
class Memory:
    """One GPU's memory, GiB."""

    memory_gib: float = 24.0
    mem_fraction_static: float = 0.85
    """What SGLang would choose when --mem-fraction-static is not given."""
    graph_gib: float = 0.5
    """CUDA graphs whatever their size; taken from what mem_fraction_static leaves."""
    graph_gib_per_ktoken: float = 1.0
    """CUDA graphs per 1,000 tokens of the largest captured batch (requests x num_draft_tokens)."""
    activation_gib_per_ktoken: float = 0.2
    """Working memory per 1,000 tokens of a running step; what graphs leave free must hold it."""


@dataclass(frozen=True)
class Start:
    """Seconds of each stage of a start, Python's own start not counted."""

    validate_s: float = 0.02
    weights_s: float = 0.08
    kv_pool_s: float = 0.02
    graph_capture_s: float = 0.08
    warm_up_s: float = 0.03


@dataclass(frozen=True)
class Output:
    """How long answers are when the model ends them itself: log-normal, drawn from the prompt's hash."""

    median_tokens: float = 380.0
    spread: float = 0.75
    """Standard deviation of the logarithm."""


@dataclass(frozen=True)
class ConditionalFault:
    """A fault that launches with certain resolved arguments meet."""

    when: Mapping[str, Any]
    """Resolved argument (server's own name, underscores) → value, list of values, or {low: …, high: …}; all must hold."""
    fault: str
    """As for --sim-fault."""


@dataclass(frozen=True)
class Profile:
    name: str
    provenance: str
    """Where the numbers come from, for a person."""
    gpu_name: str
    gpus: int
    """Pretend GPUs."""
    target: Target
    step: StepTime
    memory: Memory
    attention_backends: Mapping[str, Backend]
    drafters: Mapping[str, Drafter]
    tp_size: int = 1
    """The tensor-parallel size that `step` was written for; other sizes scale the weights' share."""
    default_attention_backend: str = "fa3"
    """Used when --attention-backend is not given and topk is 1 or absent."""
    default_tree_attention_backend: str = "flashinfer"
    """Used when --attention-backend is not given and topk is above 1."""
    ngram: Drafter | None = None
    """What NGRAM does here; without it NGRAM is refused."""
    launch_noise: float = 0.01
    """Standard deviation of the speed from one launch to the next (log scale), for plain servers."""
    speculative_launch_noise: float | None = None
    """The same for servers with speculation; empty: as launch_noise."""
    step_noise: float = 0.02
    """Standard deviation of the time of single steps (log scale)."""
    category_logit: Mapping[str, float] = field(default_factory=dict)
    """Word in the prompt → added to the drafters' log-odds: code is easier to guess than a story.  The first match counts."""
    output: Output = Output()
    start: Start = Start()
    stop_s: float = 0.2
    """Seconds from SIGTERM to the end of the process."""
    faults: tuple[ConditionalFault, ...] = ()
    path: Path = Path()
    """The file it was read from; not a key of the file."""


@functools.cache
def load_profile(name_or_path: str | Path) -> Profile:
    """The profile of a shipped name or of a file.

    Raises:
        ConfError: there is no such profile, or the file has keys or values it cannot have.
    """
    path = _find(str(name_or_path))
    try:
        data = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfError([f"{path}: not YAML: {error}"]) from error
    except OSError as error:
        raise ConfError([f"{path}: cannot be read ({error.strerror})"]) from error
    if not isinstance(data, dict):
        raise ConfError([f"{path}: a profile is a mapping; see orchestrator/simulator/profile.py"])
    profile: Profile = _build(Profile, {"name": path.stem, **data}, str(path))
    if not profile.attention_backends:
        raise ConfError([f"{path}: attention_backends: name at least one"])
    return dataclasses.replace(profile, path=path)


def profile_names() -> list[str]:
    """The shipped profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def _find(name: str) -> Path:
    shipped = PROFILES / f"{name}.yaml"
    if "/" not in name and shipped.is_file():
        return shipped
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    hint = nearest(name, profile_names())
    raise ConfError([f"engine.profile: no profile {name!r}: neither a file nor in {PROFILES}.{hint}"])


_PLAIN: dict[str, type] = {"float": float, "int": int, "str": str, "bool": bool}
_NESTED: dict[str, type] = {
    "Acceptance": Acceptance,
    "Target": Target,
    "StepTime": StepTime,
    "Memory": Memory,
    "Output": Output,
    "Start": Start,
    "Drafter": Drafter,
}
_MAPPINGS: dict[str, type] = {"Mapping[str, Backend]": Backend, "Mapping[str, Drafter]": Drafter}


def _build(kind: type, data: object, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfError([f"{where}: expected a mapping for {kind.__name__}, not {data!r}"])
    fields = {item.name: item for item in dataclasses.fields(kind) if item.name != "path"}
    for key in data:
        if key not in fields:
            hint = nearest(str(key), fields, ())
            raise ConfError(
                [f"{where}: {key}: no such key.{hint} Keys are documented in orchestrator/simulator/profile.py"]
            )
    required = {item.name for item in fields.values() if _is_required(item)}
    if missing := sorted(required - data.keys()):
        raise ConfError([f"{where}: {', '.join(missing)}: missing"])
    return kind(**{key: _value(str(fields[key].type), value, f"{where}: {key}") for key, value in data.items()})


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _value(kind: str, value: object, where: str) -> Any:
    """The value of a field whose type is written `kind`; an empty one is None where the field may be."""
    if value is None and kind.endswith(" | None"):
        return None
    kind = kind.removesuffix(" | None")
    if kind in _NESTED:
        return _build(_NESTED[kind], value, where)
    if kind in _MAPPINGS:
        items = _mapping(value, where).items()
        return {name: _build(_MAPPINGS[kind], {} if item is None else item, f"{where}.{name}") for name, item in items}
    if kind == "Mapping[str, float]":
        return {name: _plain("float", item, f"{where}.{name}") for name, item in _mapping(value, where).items()}
    if kind == "Mapping[str, Any]":
        return _mapping(value, where)
    if kind == "tuple[ConditionalFault, ...]":
        return tuple(_build(ConditionalFault, item, where) for item in _list(value, where))
    return _plain(kind, value, where)


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfError([f"{where}: expected a mapping, not {value!r}"])
    return {str(name): item for name, item in value.items()}


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfError([f"{where}: expected a list, not {value!r}"])
    return value


def _plain(kind: str, value: object, where: str) -> Any:
    expected = _PLAIN[kind]
    if isinstance(value, bool) == (expected is bool):
        if isinstance(value, expected):
            return value
        if expected is float and isinstance(value, int):
            return float(value)
    raise ConfError([f"{where}: {value!r} is not of type {kind}"])
