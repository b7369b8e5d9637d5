"""Facts: what rules may ask for beside the settings: engine version, GPUs, target and load.

None means unknown.  A rule that needs an unknown fact does not fire: the server decides.  Not here: where the facts
come from (orchestrator/facts.py), what follows from them (rewrites.py, refusals.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KNOWN_VERSIONS = ("0.5.17", "0.5.23")
"""SGLang versions that the rules were read from, oldest first."""

Attention = Literal["mla", "gqa"]
"""mla: multi-head latent attention (DeepSeek, Kimi).  gqa: every other kind, multi-head and grouped alike."""


@dataclass(frozen=True)
class Facts:
    version: str | None = None
    """SGLang's, as it says it itself."""
    gpu: str | None = None
    """Generation of the GPUs by compute capability: sm80, sm86, sm89, sm90, sm100, sm103, sm120; None on a CPU, too."""
    memory_gib: float | None = None
    """Of the smallest GPU."""
    architecture: str | None = None
    """`architectures[0]` of the target's config.json."""
    attention: Attention | None = None
    num_attention_heads: int | None = None
    num_kv_heads: int | None = None
    weights_gib: float | None = None
    """What the target's files take once loaded, at the least; all GPUs together."""
    bundles_mtp: bool | None = None
    """Whether the target brings draft layers of its own (MTP), so that EAGLE needs no drafter."""
    largest_concurrency: int | None = None
    """Streams at once of the heaviest load point."""

    @property
    def known_version(self) -> str | None:
        """The known version that this is, builds such as 0.5.17+cpu included; None: unknown, or not told."""
        plain = plain_version(self.version or "")
        return plain if plain in KNOWN_VERSIONS else None


NOTHING_KNOWN = Facts()


def plain_version(version: str) -> str:
    """Without the name of a build and what else is said of it, as in 0.5.17+cpu or 0.5.17 (demo)."""
    words = version.split()
    return words[0].partition("+")[0] if words else ""


def unknown_version(version: str | None) -> str | None:
    """What to tell a person whose SGLang the rules were not read from; None when there is nothing to tell."""
    if version is None or Facts(version).known_version is not None:
        return None
    return (
        f"SGLang {version} is not one of {', '.join(KNOWN_VERSIONS)}, whose rules are known: only rules that hold for all of "
        "them are applied, and the server decides the rest. Settings that it refuses cost a launch each and are not "
        "proposed again."
    )
