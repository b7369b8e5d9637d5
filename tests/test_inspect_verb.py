"""inspect, and what a sweep does about its drafters: misfits are never launched, those that guess nothing no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from orchestrator.__main__ import main
from orchestrator.config import load_plan
from orchestrator.drafters import Inspected, inspect_plan
from orchestrator.errors import ConfError
from orchestrator.gpus import GpuSet
from orchestrator.measuring.figures import flags_of
from orchestrator.plan import Budget, Plan, Workload
from orchestrator.progress import Narrator
from orchestrator.sweep import sweep
from results.acceptance import ENOUGH_STEPS, Acceptance, flagged, hopeless, ineffective, of_point
from results.failure import FailureKind
from results.ledger import read_records
from results.measurement import INEFFECTIVE_BELOW, Flag, Measurement
from results.record import Record
from results.report import write_report
from results.rundir import RunDir
from sweeps.finding import Finding
from sweeps.observation import Goal
from sweeps.space import Choice, Held, Range
from tests.fakes.checkpoints import (
    IDS,
    LLAMA_8B,
    SMOLLM2_TARGET,
    eagle3_shapes,
    fit_pair,
    head_of,
    write_checkpoint,
    write_real_head,
)
from tests.fakes.command_line import orchestrator
from tests.fakes.plans import plan
from tests.fakes.pools import LocalPool
from tests.fakes.records import EAGLE3, PLAIN, failure, measured


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Words for a real head and its target."""
    drafter, target = write_real_head(tmp_path / "own"), write_checkpoint(tmp_path / "target", SMOLLM2_TARGET)
    return str(drafter), f"target={target}"


# The verb


def test_a_fit_drafter_is_said_to_be_fit(pair: tuple[str, str]) -> None:
    """Exit code 0, what it is, what it is for, and that only a sweep ranks drafters; without importing Ray or Optuna."""
    done = orchestrator("inspect", *pair)
    assert done.returncode == 0, done.stderr
    assert "LlamaForCausalLMEagle3" in done.stdout
    assert "Fit, as EAGLE3: no errors." in done.stdout
    assert "A sweep ranks them" in done.stdout


def test_a_misfit_is_exit_code_2_with_its_findings(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """EAGLE for an EAGLE-3 head, more context than it has, GPUs that divide neither its heads nor the target's: four errors."""
    assert main(["inspect", *pair, "algorithm=EAGLE", "context_length=16384", "tp_size=2"]) == 2
    text = capsys.readouterr().out
    assert [line.split(":")[0].split()[1] for line in text.splitlines() if line.startswith("error")] == [
        "algorithm",
        "tensor_parallel",
        "target_split",
        "context_length",
    ]
    assert "Not fit: 4 errors." in text


def test_the_same_for_a_program(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """--json: what it is for, whether it is fit, the findings field by field."""
    assert main(["inspect", *pair, "algorithm=EAGLE", "--json"]) == 2
    facts = json.loads(capsys.readouterr().out)
    assert (facts["is_for"], facts["algorithm"], facts["fit"]) == ("EAGLE3", "EAGLE", False)
    assert facts["findings"][0]["severity"] == "error"
    assert facts["findings"][0]["check"] == "algorithm"


def test_every_mistake_of_the_words_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    """A hub name, a missing target, a misspelt key, numbers that are none."""
    assert (
        main(
            ["inspect", "someone/eagle3-llama", "algoritm=EAGLE3", "tp_size=0", "context_length=8k", "algorithm=EAGLE4"]
        )
        == 2
    )
    text = capsys.readouterr().err
    for words in ("download it first", "target: missing", "Did you mean 'algorithm'?", "tp_size: 0", "8k", "'EAGLE3'"):
        assert words in text
    assert main(["inspect"]) == 2
    assert "takes a drafter's directory first" in capsys.readouterr().err


def test_drafter_and_target_exchanged_are_no_fit(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A head cannot be a target, whatever the model before it could draft for."""
    head, target = pair[0], pair[1].removeprefix("target=")
    assert main(["inspect", target, f"target={head}"]) == 2
    assert "LlamaForCausalLMEagle3 is a drafter's class, for EAGLE3" in (text := capsys.readouterr().out)
    assert "Were the two exchanged?" in text


def test_a_model_as_its_own_drafter_is_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing can be gained by a drafter that is as large as its target."""
    shapes = {"model.norm.weight": (576,)}
    target = write_checkpoint(tmp_path / "target", SMOLLM2_TARGET, shapes)
    other = write_checkpoint(tmp_path / "other", SMOLLM2_TARGET, {**shapes, "lm_head.weight": (49152, 576)})
    for drafter, said in (
        (target, "The drafter is the target itself."),
        (other, "The drafter has 0.03 billion parameters"),
    ):
        main(["inspect", str(drafter), f"target={target}"])
        assert said in capsys.readouterr().out


def test_a_misspelt_place_names_the_nearest(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Of those beside it that hold a model."""
    assert main(["inspect", f"{pair[0]}2", pair[1]]) == 2
    assert f"own2 is not there. Did you mean '{pair[0]}'?" in capsys.readouterr().err


def test_damaged_files_end_in_findings(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A config that is no JSON, a target that is cut off: exit code 2, no traceback."""
    (Path(pair[0]) / "config.json").write_text("{")
    assert main(["inspect", *pair]) == 2
    assert "config.json is not JSON" in capsys.readouterr().out


# A sweep's drafters, before any launch


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """A sweep with an interpreter that claims SGLang 0.5.17 and a fit pair, on no GPU."""
    info = tmp_path / "site" / "sglang-0.5.17.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.17\n")
    own, target = fit_pair(tmp_path)
    return (
        "conf=eagle3", f"target.path={target}", f"drafters.own={own}", "space.drafter=[own]", "cluster.gpus=none",
        "engine.python=python3", f"engine.env={{PYTHONPATH: {tmp_path / 'site'}}}", f"out={tmp_path / 'run'}",
    )  # fmt: skip


def with_words(words: tuple[str, ...], *more: str) -> Plan:
    """The plan with some words replaced or added."""
    names = {word.partition("=")[0] for word in more}
    return load_plan([word for word in words if word.partition("=")[0] not in names] + list(more))


def second_drafter(tmp_path: Path, **changes: Any) -> str:
    """Another head for the same target, with a mistake."""
    about = {**head_of(LLAMA_8B), **changes}
    return f"drafters.public={write_checkpoint(tmp_path / 'public', about, eagle3_shapes(about))}"


def test_an_eagle3_head_as_eagle_never_launches(words: tuple[str, ...], tmp_path: Path) -> None:
    """Case S01: refused before anything starts, with the right algorithm and the way to go on all the same."""
    done = orchestrator("sweep", *words, "space.algorithm=[none,EAGLE]")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Write algorithm: EAGLE3." in done.stderr
    assert "drafters_unchecked=true" in done.stderr
    assert RunDir(tmp_path / "run").begun() == []


def test_a_drafter_with_a_short_context_is_refused_unless_overridden(words: tuple[str, ...], tmp_path: Path) -> None:
    """Case L10: 2048 against 8192; a context of 2048 passes; with the server's own opt-in rows are flagged."""
    short = (second_drafter(tmp_path, max_position_embeddings=2048), "space.drafter=public")
    with pytest.raises(ConfError, match=r"2048.*8192"):
        inspect_plan(with_words(words, *short), "0.5.17")
    assert inspect_plan(with_words(words, *short, "target.context_length=2048"), "0.5.17").wrong == ()
    env = "engine.env={SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN: '1'}"
    inspected = inspect_plan(with_words(words, *short, env), "0.5.17")
    assert inspected.refused == ()
    row = measured(EAGLE3.replace(drafter="public"), 100.0, trial=1)
    assert inspected.marked(row).flags == (Flag.CONTEXT_OVERRIDDEN,)


def test_one_misfit_does_not_keep_the_others_from_running(words: tuple[str, ...], tmp_path: Path) -> None:
    """Case L11: 5120 against 4096 is never launched, the fit one is; if it is the only one, there is no sweep."""
    wide = second_drafter(tmp_path, hidden_size=5120)
    inspected = inspect_plan(with_words(words, wide, "space.drafter=[own,public]"), "0.5.17")
    assert inspected.refused == (("EAGLE3", "public"),)
    with pytest.raises(ConfError) as refused:
        inspect_plan(with_words(words, wide, "space.drafter=[public]"), "0.5.17")
    assert "5120" in str(refused.value)
    assert "4096" in str(refused.value)


def test_all_findings_come_in_one_message(words: tuple[str, ...], tmp_path: Path) -> None:
    """Two drafters, two mistakes, each with its drafter and its path."""
    late = second_drafter(tmp_path, eagle_config={}, **{IDS: [1, 13, 28]})
    with pytest.raises(ConfError) as refused:
        inspect_plan(with_words(words, late, "space.drafter=[own,public]", "space.algorithm=[none,EAGLE]"), "0.5.17")
    assert len(refused.value.mistakes) == 4
    assert "eagle_config" in str(refused.value)


def test_only_the_mismatched_combinations_are_dropped(words: tuple[str, ...]) -> None:
    """EAGLE and EAGLE3 over one head; NEXTN is EAGLE; NGRAM has no drafter to inspect."""
    inspected = inspect_plan(with_words(words, "space.algorithm=[none,EAGLE,NEXTN,EAGLE3]"), "0.5.17")
    assert set(inspected.findings) == {("EAGLE", "own"), ("EAGLE3", "own")}
    assert inspected.refused == (("EAGLE", "own"),)
    assert inspect_plan(with_words(words, "space.algorithm=[none,EAGLE,NGRAM]"), "0.5.17").refused == (
        ("EAGLE", "own"),
    )


def test_unchecked_drafters_are_launched_and_marked(words: tuple[str, ...]) -> None:
    """Case S01 with the check disabled: nothing is refused, what has an error is flagged; the plain server is not."""
    inspected = inspect_plan(
        with_words(words, "space.algorithm=[none,EAGLE,EAGLE3]", "drafters_unchecked=true"), "0.5.17"
    )
    assert inspected.refused == ()
    rows = [measured(EAGLE3.replace(algorithm=name), 1.0, trial=1) for name in ("EAGLE", "EAGLE3")]
    assert [inspected.marked(row).flags for row in rows] == [(Flag.DRAFTER_UNCHECKED,), ()]
    assert inspected.marked(measured(PLAIN, 1.0, trial=1)).flags == ()


def test_nextn_needs_no_drafter_where_the_target_brings_the_layers(tmp_path: Path) -> None:
    """Case L08: DeepSeek V3 passes, Llama does not; EAGLE3 without a drafter is refused by the config already."""
    fit_pair(tmp_path)
    deepseek = write_checkpoint(tmp_path / "deepseek", {**LLAMA_8B, "architectures": ["DeepseekV3ForCausalLM"]})
    conf = tmp_path / "mtp.yaml"
    conf.write_text("engine: {name: sglang, python: python3}\nspace: {algorithm: [none, NEXTN]}\n")
    assert inspect_plan(load_plan([f"conf={conf}", f"target.path={deepseek}"]), "0.5.17").refused == ()
    with pytest.raises(ConfError, match="Name a drafter"):
        inspect_plan(load_plan([f"conf={conf}", f"target.path={tmp_path / 'target'}"]), "0.5.17")


def test_a_tp_size_that_only_some_launches_have_is_a_warning(words: tuple[str, ...]) -> None:
    """tp_size 3 cannot split 32 heads, 2 can; 3 alone is an error."""
    some = inspect_plan(with_words(words, "space.tp_size=[2,3]"), "0.5.17")
    assert [(one.severity, one.check) for _, one in some.said()] == [("warning", "tensor_parallel")]
    with pytest.raises(ConfError, match="3 GPUs"):
        inspect_plan(with_words(words, "space.tp_size=3"), "0.5.17")


def test_what_is_not_on_this_disk_is_said_and_launched(words: tuple[str, ...]) -> None:
    """A hub name cannot be inspected; that is a warning."""
    inspected = inspect_plan(with_words(words, "drafters.own=someone/eagle3"), "0.5.17")
    assert [(one.severity, one.check) for _, one in inspected.said()] == [("warning", "not_inspected")]


def test_a_simulated_engine_reads_no_checkpoints() -> None:
    """Its drafters come from its profile."""
    assert inspect_plan(plan(), "0.5.17").findings == {}


# A sweep that drops drafters

MISFIT = Finding("error", "algorithm", "it is for EAGLE3", "it guesses nothing", "Write algorithm: EAGLE3.")
NOTABLE = Finding("warning", "rope", "another rope_theta", "it may guess worse")


def small_plan(**sections: Any) -> Plan:
    """Four settings: EAGLE and EAGLE3 over one head, two depths; enough verify steps a launch to judge the drafter."""
    space = {
        "algorithm": Choice(("none", "EAGLE3", "EAGLE")), "drafter": Held("own"), "num_steps": Range(1, 2),
        "eagle_topk": Held(1), "num_draft_tokens": Held(4), "attention_backend": Held("fa3"),
    }  # fmt: skip
    work = Workload(concurrency=[8], output_tokens=48, requests_per_stream=1)
    return plan(space=space, workload=work, budget=Budget(launches=20, finalists=0), **sections)


def swept(run: RunDir, inspected: Inspected | None = None) -> str:
    """What a whole sweep told a person."""
    given = small_plan()
    with (run.path / "said.txt").open("w") as out:
        pool = LocalPool(given, run, GpuSet(("0",), name="pretend", pretend=True))
        sweep(given, run, pool, Narrator(Console(file=out, width=400)), inspected)
    return (run.path / "said.txt").read_text()


def launched(run: RunDir) -> list[str]:
    """Algorithms of all first launches."""
    return sorted(one.trial.settings.algorithm for one in run.begun() if one.trial.launch == 0)


def test_a_drafter_that_guesses_nothing_is_dropped_after_one_launch(tmp_path: Path) -> None:
    """Case S02: an EAGLE-3 head as EAGLE gets one launch of two; the journal, the person and the summary hear why."""
    run = RunDir.at(tmp_path / "run")
    told = swept(run)
    assert launched(run) == ["EAGLE", "EAGLE3", "EAGLE3", "none"]
    (event,) = [event for event in run.journal.events() if event["event"] == "drafter_ineffective"]
    assert (event["algorithm"], event["drafter"]) == ("EAGLE", "own")
    assert event["acceptance_length"] < INEFFECTIVE_BELOW
    assert event["verify_steps"] >= ENOUGH_STEPS
    assert "EAGLE own is given up: it guesses nothing, acceptance length 1.0" in told
    summary = run.summary.read_text()
    assert "**EAGLE own is ineffective**" in summary
    assert "EAGLE3 own is ineffective" not in summary
    swept(run)  # a resume knows it from the rows
    assert launched(run) == ["EAGLE", "EAGLE3", "EAGLE3", "none"]


def test_what_inspection_refused_is_never_launched(tmp_path: Path) -> None:
    """The other combinations are; findings stand in the journal and in the summary, an error as not launched."""
    run = RunDir.at(tmp_path / "run")
    told = swept(run, Inspected({("EAGLE", "own"): (MISFIT,), ("EAGLE3", "own"): (NOTABLE,)}))
    assert launched(run) == ["EAGLE3", "EAGLE3", "none"]
    assert "EAGLE own not launched: It is for EAGLE3." in told
    assert "EAGLE3 own warning: Another rope_theta." in told
    events = [event for event in run.journal.events() if event["event"] == "drafter_finding"]
    assert [(event["drafter"], event["severity"], event["refused"]) for event in events] == [
        ("own", "error", True),
        ("own", "warning", False),
    ]
    summary = run.summary.read_text()
    assert "| EAGLE own | error | no | It is for EAGLE3." in summary
    assert "| EAGLE3 own | warning | yes | Another rope_theta." in summary


def test_an_unchecked_misfit_is_launched_and_its_rows_say_so(tmp_path: Path) -> None:
    """And it is dropped all the same once it is seen to guess nothing; never best."""
    run = RunDir.at(tmp_path / "run")
    swept(run, Inspected({("EAGLE", "own"): (MISFIT,)}, unchecked=True))
    rows = [row for row in read_records(run.path) if row.settings.algorithm == "EAGLE"]
    assert len(rows) == 1
    assert all(Flag.DRAFTER_UNCHECKED in row.flags for row in rows)
    answers = yaml.safe_load(run.best.read_text())["answers"]
    assert [answer["settings"] == "baseline" or answer["settings"]["algorithm"] == "EAGLE3" for answer in answers] == [
        True
    ]


# Judging a launch as a whole

EAGLE = EAGLE3.replace(algorithm="EAGLE")


def rows_of(trial: int, *histograms: list[int], **more: Any) -> list[Record]:
    """Measured rows of one launch of EAGLE own, one a load point."""
    rows = []
    for at, histogram in enumerate(histograms):
        length = 1 + sum(right * steps for right, steps in enumerate(histogram)) / sum(histogram)
        figures = {"acceptance_histogram": histogram, "acceptance_length": length, **more}
        rows.append(measured(EAGLE, 100.0, trial=trial, concurrency=2**at, **figures))
    return rows


def test_a_launch_is_judged_by_all_its_load_points_together() -> None:
    """Case S01: 1.10 on the few steps of one stream, 1.01 on the many of eight: the head guesses nothing, at both."""
    rows = rows_of(3, [90, 10], [990, 10])
    assert ineffective(rows) == {("EAGLE", "own"): Acceptance(20, 1100)}
    assert all(Flag.DRAFTER_INEFFECTIVE in row.flags for row in flagged(rows, ineffective(rows)))
    assert rows[0].flags == ()


def test_few_steps_say_nothing() -> None:
    """Below 200 verify steps a drafter is not judged."""
    assert ineffective(rows_of(3, [ENOUGH_STEPS - 1])) == {}
    assert ineffective(rows_of(3, [ENOUGH_STEPS])) != {}


def test_a_launch_and_a_load_point_are_judged_by_one_bound() -> None:
    """Exactly at it a drafter still guesses something, whether a point or a whole launch is looked at."""
    at_the_bound, below = rows_of(3, [1900, 100])[0], rows_of(4, [1901, 99])[0]
    assert at_the_bound.measurement is not None
    assert at_the_bound.measurement.acceptance_length == INEFFECTIVE_BELOW
    for row, vain in ((at_the_bound, False), (below, True)):
        assert row.measurement is not None
        assert (Flag.DRAFTER_INEFFECTIVE in flags_of(row.measurement, 1)) is vain
        assert (ineffective([row]) != {}) is vain


def test_a_drafter_that_works_with_other_settings_is_kept() -> None:
    """One launch in vain, another not."""
    assert ineffective([*rows_of(3, [500]), *rows_of(4, [300, 200])]) == {}


def test_failures_pretended_acceptance_and_plain_servers_are_not_judged() -> None:
    """None of them says anything of a drafter."""
    rows = [
        failure(EAGLE, trial=1),
        measured(PLAIN, 100.0, trial=2),
        *rows_of(3, [500], flags=(Flag.SIMULATED_ACCEPTANCE,)),
    ]
    assert ineffective(rows) == {}
    assert flagged(rows, ineffective(rows)) == rows


def test_a_drafter_that_cannot_be_loaded_is_given_up_for_all_its_settings() -> None:
    """Case L11: both texts of such a failure mean the drafter, not the setting; another kind of failure does not."""
    rows = [failure(EAGLE, FailureKind.DRAFTER_MISMATCH, trial=1, message="size mismatch for lm_head.weight\nLog: x")]
    assert hopeless(rows)["EAGLE", "own"].words == "it does not fit the target: size mismatch for lm_head.weight"
    assert hopeless([*rows, measured(EAGLE.replace(num_steps=1), 1.0, trial=2)]) == {}
    assert hopeless([failure(EAGLE, FailureKind.OOM_WEIGHTS, trial=1)]) == {}


def test_without_a_histogram_steps_are_estimated_from_the_tokens() -> None:
    """Each verify step gives `length` tokens."""
    acceptance = of_point(Measurement(acceptance_length=1.25, output_tokens=500))
    assert acceptance == Acceptance(100.0, 400.0)
    assert of_point(Measurement()).verify_steps == 0


def test_a_row_of_an_ineffective_drafter_is_never_best(tmp_path: Path) -> None:
    """Case S01: not even where its own load point looked well and it was the fastest of all."""
    plain = [measured(PLAIN, 50.0, trial=1, concurrency=c) for c in (1, 2)]
    verdict = write_report(RunDir.at(tmp_path / "run"), [*plain, *rows_of(3, [90, 10], [990, 10])], Goal(), {})
    assert [answer.settings for answer in verdict.answers] == [None, None]
    assert "is ineffective" in (tmp_path / "run" / "summary.md").read_text()
