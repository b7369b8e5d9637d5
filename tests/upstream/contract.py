"""What the rules say of a case beside what SGLang answered, and every difference under the name of its rule.

A case is asked twice: with its settings as they are, and as the rules settle them (which is what a sweep launches).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest.mock import patch

from orchestrator.engines.sglang import SGLang
from orchestrator.plan import EngineConf, Target
from sweeps.facts import Facts
from sweeps.rules import Change, Problem, problems, settle
from sweeps.settings import Settings, knobs
from tests.fakes.plans import plan
from tests.upstream.cases import Case
from tests.upstream.upstream import MLA, Answer, Models, Question, Upstream, ask, version_of

PORT, MARKER = 30000, "marker"
ARCHITECTURES = {"gqa": "LlamaForCausalLM", "mla": "DeepseekV3ForCausalLM"}
HEADS = {"gqa": (4, 2), "mla": (MLA["num_attention_heads"], MLA["num_key_value_heads"])}
NOT_REPORTED = ("cuda_graph",)
"""Knobs whose value after the resolution is kept elsewhere than under their name."""


class Kind(StrEnum):
    BOTH_RUN = "both run it, with the values the rules settle on"
    BOTH_REFUSE = "both refuse it"
    SETTLED = "SGLang refuses it as it was asked, and runs what the rules settle on"
    STRICTER = "the rules refuse it, SGLang's arguments pass"
    LAXER = "the rules let it run, SGLang refuses it"
    OTHER_VALUE = "both run it, with different values"
    OTHER_LAUNCH = "SGLang runs something else of what was asked than of what the rules settle on"


BROKEN = (Kind.LAXER, Kind.OTHER_VALUE, Kind.OTHER_LAUNCH)


@dataclass(frozen=True)
class Outcome:
    kind: Kind
    rule: str
    """The rule of ours that decided, the knob that differs, or SGLang's own words where we have no rule."""
    case: Case
    detail: str = ""


@dataclass(frozen=True)
class Judged:
    """A case and what the rules make of it."""

    case: Case
    settled: Settings
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]


class Contract:
    """The rules for one version of SGLang, asked about many cases."""

    def __init__(self, version: str, models: Models, cases: Iterable[Case]) -> None:
        self.version = version
        self.dialects = {target: dialect(path, models) for target, path in models.targets.items()}
        self.judged = [self.judge(case) for case in cases]

    def facts(self, case: Case) -> Facts:
        heads, kv_heads = HEADS[case.target]
        return Facts(
            version=self.version, gpu=case.gpu, architecture=ARCHITECTURES[case.target],
            attention="mla" if case.target == "mla" else "gqa", num_attention_heads=heads, num_kv_heads=kv_heads,
        )  # fmt: skip

    def judge(self, case: Case) -> Judged:
        facts = self.facts(case)
        settled = settle(case.settings, facts)
        return Judged(case, settled.settings, settled.changes, tuple(problems(settled.settings, facts)))

    def question(self, case: Case, settings: Settings) -> Question:
        """The words after `python -m sglang.launch_server`; looking for a free port would take longer than all the rest."""
        with patch("orchestrator.engines.sglang.free_port", return_value=PORT + 1):
            return case.gpu, tuple(self.dialects[case.target].argv(settings, PORT, MARKER)[3:])

    def questions(self) -> Iterator[Question]:
        for one in self.judged:
            yield self.question(one.case, one.case.settings)
            yield self.question(one.case, one.settled)


@dataclass(frozen=True)
class Compared:
    """The rules and one version of SGLang, side by side."""

    contract: Contract
    upstream: Upstream
    outcomes: list[Outcome]

    @property
    def version(self) -> str:
        return self.upstream.version

    @property
    def options(self) -> frozenset[str]:
        return self.upstream.options

    def asked(self, case: Case) -> Answer:
        return self.upstream.answers[self.contract.question(case, case.settings)]

    def unknown_options(self) -> dict[str, Case]:
        """Options of what the rules let run that the parser does not have, each with a case that has it."""
        launched = [one for one in self.contract.judged if not one.problems]
        words = ((word, one.case) for one in launched for word in self.contract.question(one.case, one.settled)[1])
        return {word: case for word, case in words if word.startswith("--") and word not in self.options}

    def differences(self, kind: Kind, explained: Mapping[str, str], gone: bool) -> str:
        """Outcomes of this kind under a rule that is not explained; and, where asked for, explanations without any."""
        found = [one for one in self.outcomes if one.kind is kind]
        new = [one for one in found if not any(one.rule.startswith(known) for known in explained)]
        stale = [known for known in explained if gone and not any(one.rule.startswith(known) for one in found)]
        lines = [f"no longer seen: {known}" for known in stale]
        return "\n".join([*([f"SGLang {self.version}", table(new)] if new else []), *lines])

    def table(self) -> str:
        return table(self.outcomes)


def compared(python: Path, source: Path | None, models: Models, cases: Iterable[Case]) -> Compared:
    """Ask the SGLang of this interpreter, or of the folder `source`, about all of these."""
    contract = Contract(version_of(python, source), models, cases)
    upstream = ask(python, contract.questions(), source)
    outcomes = [
        outcome(
            one,
            asked=upstream.answers[contract.question(one.case, one.case.settings)],
            launched=upstream.answers[contract.question(one.case, one.settled)],
        )
        for one in contract.judged
    ]
    return Compared(contract, upstream, outcomes)


def dialect(target: Path, models: Models) -> SGLang:
    return SGLang(
        plan(
            engine=EngineConf(name="sglang", python="python"),
            target=Target(path=str(target)),
            drafters={name: str(path) for name, path in models.drafters.items()},
        )
    )


def outcome(one: Judged, asked: Answer, launched: Answer) -> Outcome:
    if one.problems:
        kind = Kind.STRICTER if asked.accepted or launched.accepted else Kind.BOTH_REFUSE
        return Outcome(kind, one.problems[0].rule, one.case, launched.text)
    if not launched.accepted:
        return Outcome(Kind.LAXER, whose_choice(one) + said(launched), one.case, launched.text)
    if (knob := other_value(one.settled, launched.ran)) is not None:
        return Outcome(Kind.OTHER_VALUE, whose_choice(one) + knob, one.case, f"{one.settled} ran as {launched.ran}")
    if not asked.accepted:
        return Outcome(Kind.SETTLED, changed(one), one.case, asked.text)
    differing = [name for name, value in asked.ran.items() if launched.ran.get(name) != value and read(name, one)]
    if differing:
        detail = ", ".join(f"{name}: {asked.ran[name]} or {launched.ran.get(name)}" for name in differing)
        return Outcome(Kind.OTHER_LAUNCH, f"{one.settled.algorithm}: {', '.join(differing)}", one.case, detail)
    return Outcome(Kind.BOTH_RUN, "", one.case)


def read(name: str, one: Judged) -> bool:
    """Whether a server with these settings looks at this argument: a plain one does not look at speculation."""
    return one.settled.speculative or not name.startswith("speculative_")


def whose_choice(one: Judged) -> str:
    """Differences where SGLang chose the attention backend itself have a name of their own."""
    given = {name for name, _ in one.settled.server_args if name.endswith("attention_backend")}
    return "" if one.settled.attention_backend or given else "backend left to SGLang: "


def changed(one: Judged) -> str:
    return ", ".join(dict.fromkeys(change.knob for change in one.changes)) or "nothing"


def said(answer: Answer) -> str:
    """SGLang's words without what differs from case to case."""
    return f"{answer.where}: {answer.text.splitlines()[0][:110]}"


def other_value(settings: Settings, ran: dict[str, Any]) -> str | None:
    """The first knob or argument that is settled to another value than the one that runs."""
    for name, knob in knobs().items():
        value = getattr(settings, name)
        if value is None or value == "none" or name in (*NOT_REPORTED, "drafter"):
            continue
        if knob.server_name in ran and ran[knob.server_name] != value:
            return f"{name}: {value} settled, {ran[knob.server_name]} runs"
    for name, value in settings.server_args:
        if name in ran and ran[name] not in (value, [value]):
            return f"{name}: {value} settled, {ran[name]} runs"
    return None


def table(outcomes: Iterable[Outcome]) -> str:
    """Markdown: how many of each kind, then each difference by its rule."""
    found = list(outcomes)
    kinds = Counter(one.kind for one in found)
    lines = ["| outcome | cases |", "|---|---|", *(f"| {kind} | {kinds[kind]} |" for kind in Kind if kinds[kind])]
    for kind in (Kind.BOTH_REFUSE, Kind.STRICTER, Kind.SETTLED, *BROKEN):
        rules = Counter(one.rule for one in found if one.kind is kind)
        if rules:
            lines += ["", f"**{kind}**", "", "| rule | cases | for example |", "|---|---|---|"]
            lines += [f"| {rule} | {count} | {example(found, kind, rule)} |" for rule, count in rules.most_common()]
    return "\n".join(lines)


def example(outcomes: list[Outcome], kind: Kind, rule: str) -> str:
    case = next(one.case for one in outcomes if one.kind is kind and one.rule == rule)
    given = {name: value for name, value in case.settings.as_dict().items() if value not in (None, {})}
    words = " ".join(f"{name}={value}" for name, value in given.items() if name not in ("tp_size", "cuda_graph"))
    return f"{case.gpu} {case.target}: {words}"
