"""The verb plan: everything a sweep would do, counted and costed, without doing any of it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import load_plan
from orchestrator.estimate import START_S, STREAM_TOK_S, estimate
from orchestrator.facts import facts_of
from orchestrator.launches import Launches, for_proposals
from orchestrator.plan import Budget, ClusterConf, EngineConf, Plan, Target, Workload
from orchestrator.preview import EXAMPLES
from orchestrator.trials import load_points
from results.ledger import Ledger
from results.record import Record
from results.rundir import RunDir
from sweeps.facts import Facts
from sweeps.observation import Goal
from sweeps.settings import Settings
from sweeps.space import Choice, Held, Range
from sweeps.trial import Trial
from tests.fakes.checkpoints import LLAMA_8B, SMOLLM2_TARGET, head_of, write_checkpoint, write_real_head
from tests.fakes.command_line import orchestrator
from tests.fakes.plans import plan
from tests.fakes.records import rows
from tests.fakes.simulator import serving

ONE_DRAFTER = ("conf=demo", "space.algorithm=EAGLE3", "space.drafter=own", "space.attention_backend=null")
COMMON_GRID = (
    *ONE_DRAFTER, "space.num_steps={low: 1, high: 8}", "space.eagle_topk=[1, 2, 4, 8]",
    "space.num_draft_tokens=[2, 4, 8, 16, 32, 64]",
)  # fmt: skip


def planned(*words: str) -> dict[str, Any]:
    done = orchestrator("plan", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_common_grid_is_counted_and_every_command_shown() -> None:
    """192 points: 79 legal settings, 40 twins, 34 larger than their tree, 39 smaller than a path in it; with the plain server 80 launches."""
    found = planned(*COMMON_GRID)
    assert (found["grid"], found["legal"], found["collapsed"], found["refused"]) == (
        192,
        79,
        40,
        {"tree_capacity": 34, "tree_depth": 39},
    )
    assert (found["plain_servers"], found["distinct"], found["exact"]) == (1, 80, True)
    assert found["reasons"]["tree_capacity"].startswith("a tree of 1 steps and topk 2 holds at most 3 tokens")
    commands = [shlex.join(launch["argv"]) for launch in found["launches"]]
    assert len(set(commands)) == len({launch["key"] for launch in found["launches"]}) == 80
    assert "--speculative-algorithm" not in commands[0]
    assert len(found["load_points"]) == 3


def test_values_that_the_server_would_replace_are_one_launch() -> None:
    """Four steps of topk 1 with 5, 8, 16 or 24 draft tokens: three duplicates avoided."""
    found = planned(*ONE_DRAFTER, "space.num_steps=4", "space.eagle_topk=1", "space.num_draft_tokens=[5, 8, 16, 24]")
    assert (found["grid"], found["legal"], found["collapsed"]) == (4, 1, 3)
    assert found["launches"][1]["settings"]["num_draft_tokens"] == 5


def test_a_person_reads_the_same() -> None:
    """Counts, the rule with an example, launches, hours, the plain server's command and five others as examples."""
    text = orchestrator("plan", *COMMON_GRID).stdout
    for words in ("192 points", "79 distinct settings; plain servers to compare with: 1", "40 points that are twins", "34 tree_capacity, e.g. a tree of", "GPU-hours", "each measures 3 load points (1, 8, 32 streams)"):  # fmt: skip
        assert words in text
    assert text.count("orchestrator.simulator") == 1 + EXAMPLES
    assert f"… and {80 - 1 - EXAMPLES} more; with --json plan prints all of them." in text


def test_servers_that_need_more_gpus_than_there_are_would_not_start() -> None:
    """The profile has two."""
    assert planned("conf=demo", "target.tp_size=2")["not_here"] == []
    (lacks,) = planned("conf=demo", "target.tp_size=3")["not_here"]
    assert lacks.startswith("tp_size 3 needs 3 GPUs on one machine; Ray offers 2.")


def test_a_server_that_runs_already_is_shown_as_it_is(tmp_path: Path) -> None:
    """Nothing of it would be launched; one that does not answer just now is no mistake of the plan."""
    words = ("engine.name=attached", "workload.concurrency=[1,2]", "budget.launches=1")
    conf = tmp_path / "server.yaml"
    conf.write_text("engine: {name: attached}\n")
    with serving(tmp_path) as server:
        shown = orchestrator("plan", f"conf={conf}", *words, f"engine.url={server.url}").stdout
        assert f"{server.url}: SGLang 0.5.17 with" in shown
        assert "plain server" in shown
        assert "2 load points (1, 2 streams)" in shown
        assert "--port" not in shown
    silent = orchestrator("plan", f"conf={conf}", *words, f"engine.url={server.url}")
    assert silent.returncode == 0, silent.stderr
    assert f"Server     {server.url}: does not answer" in silent.stdout
    assert f"a sweep would not start:\n  engine.url: no SGLang answers at {server.url}" in silent.stdout


def test_it_works_on_a_laptop(tmp_path: Path) -> None:
    """No model, drafter, interpreter or GPU of the conf is there; what is not known is left to the server."""
    found = planned("conf=eagle3", "target.path=/no/such/model", "drafters.own=/no/such/drafter", "engine.python=/no/such/python", f"out={tmp_path / 'runs'}")  # fmt: skip
    assert found["engine_version"] is None
    assert found["estimate"]["gpu_sets"] in (None, 1, 2, 4, 8)
    assert found["launches"][0]["argv"][0] == "/no/such/python"
    assert not (tmp_path / "runs").exists()


def test_what_a_sweep_would_refuse_on_this_machine_is_said() -> None:
    """All of it, as a sweep would, and no mistake of the plan; where nothing lacks, nothing is said."""
    words = ("conf=eagle3", "target.path=/no/such/model", "drafters.own=/no/such/drafter")
    told = orchestrator("plan", *words, "engine.python=/no/such/python")
    assert told.returncode == 0, told.stderr
    note = told.stdout.partition("on this machine a sweep would not start:")[2].partition("\n\n")[0]
    assert "target.path: /no/such/model: no such directory" in note
    assert "drafters.own: /no/such/drafter: no such directory" in note
    assert "engine.python: /no/such/python cannot be run" in note
    assert planned("conf=demo")["not_here"] == []


def test_a_prompt_file_that_a_sweep_refuses_is_said_with_its_line(tmp_path: Path) -> None:
    """Before the night, not in it."""
    prompts = tmp_path / "bad.jsonl"
    prompts.write_text("no JSON\n")
    (lacks,) = planned("conf=demo", f"workload.prompts={prompts}")["not_here"]
    assert f"{prompts}:1: not JSON" in lacks


def test_a_drafter_that_a_sweep_would_drop_is_neither_counted_nor_listed(tmp_path: Path) -> None:
    """The head of another model: why it is dropped is said; where it is the only one, plan ends as the sweep would."""
    target = write_checkpoint(tmp_path / "target", SMOLLM2_TARGET)
    own = write_real_head(tmp_path / "own")
    wrong = write_checkpoint(tmp_path / "wrong", head_of(LLAMA_8B))
    words = ("conf=eagle3", f"target.path={target}", f"drafters={{own: {own}, public: {wrong}}}", "engine.python=/no/such/python", "cluster.gpus=none", "target.context_length=2048")  # fmt: skip
    found = planned(*words, "space.drafter=[own, public]")
    assert [(one["algorithm"], one["drafter"]) for one in found["dropped"]] == [("EAGLE3", "public")]
    assert found["dropped"][0]["settings"] == found["legal"] - found["plain_servers"] > 0
    assert {launch["settings"].get("drafter") for launch in found["launches"]} == {None, "own"}
    assert len(found["launches"]) == found["distinct"]
    told = orchestrator("plan", *words, "space.drafter=[own, public]").stdout
    assert "settings of EAGLE3 public: inspection finds it unfit" in told
    assert "error: drafters.public (" in told
    alone = orchestrator("plan", *words, "space.drafter=public")
    assert alone.returncode == 2
    assert "drafters_unchecked=true" in alone.stderr


def test_a_replay_is_planned_from_what_was_recorded_in_no_time(tmp_path: Path) -> None:
    """A plain server and a setting of the whole demo, and one of them again: no GPU, no command, and no hours to bound."""
    recorded = load_plan(["conf=demo", "target.tp_size=8"])
    run = RunDir.at(tmp_path / "run")
    ledger = Ledger.open(run)
    for number, settings in enumerate(list(Launches(recorded, facts_of(recorded)))[:4:2]):
        ledger.append(rows(Trial(number, settings, "baseline", load_points(recorded)))[0])
    words = ("conf=demo", "engine.name=replay", f"engine.recording={run.path}", "target.tp_size=8", "budget.hours=1", "budget.finalists=1")  # fmt: skip
    found = planned(*words)
    expected = found["estimate"]
    assert (found["distinct"], expected["launches"], found["launches"]) == (2, 3, [])
    assert [expected[part] for part in ("start_s", "measure_s", "stop_s", "gpus_per_set", "hours")] == [0, 0, 0, 0, 0]
    text = orchestrator("plan", *words).stdout
    assert "Legal      2 distinct settings" in text
    assert "settings that are not in the recording" in text
    assert "sglang.launch_server" not in text
    assert "more; with --json" not in text


@pytest.mark.parametrize("recording", ["", "engine.recording=/nope"])
def test_whatever_a_laptop_has_to_have_is_asked_for_in_one_message(recording: str) -> None:
    """The recording to replay, the file of prompts, the earlier run."""
    words = ("engine.name=replay", "workload.prompts=/no/prompts.jsonl", "warm_start=[/no/run]")
    done = orchestrator("plan", "conf=demo", *words, *filter(None, [recording]))
    assert done.returncode == 2
    for said in (f"engine.recording: {'/nope: no such file' if recording else 'missing: the rows to replay'}", "workload.prompts: '/no/prompts.jsonl'", "warm_start: /no/run: no such directory"):  # fmt: skip
        assert said in done.stderr


def test_it_needs_neither_ray_nor_optuna() -> None:
    """They take seconds to import, and a laptop may not have them."""
    code = "import sys; from orchestrator.__main__ import main; code = main(['plan', 'conf=demo', '--json']); print(sorted({'ray', 'optuna', 'torch', 'sglang'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


def test_a_space_too_large_to_count_is_sampled_and_said_so() -> None:
    """Shares of random points instead of counts."""
    found = planned(*ONE_DRAFTER, "space.num_steps={low: 1, high: 64}", "space.eagle_topk={low: 1, high: 64}", "space.num_draft_tokens={low: 2, high: 512}")  # fmt: skip
    assert found["exact"] is False
    assert found["counted"] < found["grid"] == 64 * 64 * 511
    assert found["legal"] + found["collapsed"] + sum(found["refused"].values()) == found["counted"]


def test_a_sweep_in_which_nothing_can_run_starts_nothing(tmp_path: Path) -> None:
    """Every rule that refuses it is named, with how much it refuses and an example."""
    done = orchestrator("sweep", *ONE_DRAFTER, "space.num_steps=1", "space.eagle_topk=2", "space.num_draft_tokens=[8, 16]", f"out={tmp_path / 'run'}")  # fmt: skip
    assert done.returncode == 2
    assert "nothing in it can run" in done.stderr
    assert (
        "2 of 2 points are refused (tree_capacity): a tree of 1 steps and topk 2 holds at most 3 tokens" in done.stderr
    )
    assert not (tmp_path / "run").exists()


def test_a_plan_in_which_nothing_can_run_estimates_nothing_and_is_a_mistake() -> None:
    """The counts are shown, and then the same words as a sweep's."""
    done = orchestrator("plan", *ONE_DRAFTER, "space.num_steps=1", "space.eagle_topk=2", "space.num_draft_tokens=30")  # fmt: skip
    assert done.returncode == 2
    assert "nothing in it can run" in done.stderr
    assert "Refused" in done.stdout
    assert "GPU-hours" not in done.stdout


def sglang(target: Path, **sections: Any) -> Plan:
    given = {"engine": EngineConf(name="sglang", python="/no/such/python"), "target": Target(path=str(target))}
    return plan(**{**given, **sections})


def config(folder: Path, **values: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_the_targets_own_config_says_what_the_rules_ask(tmp_path: Path) -> None:
    """Attention, heads and files of an MLA target inside a multimodal one, and of a plain one."""
    inner = {"kv_lora_rank": 512, "num_attention_heads": 64, "num_key_value_heads": 64, "dtype": "bfloat16"}
    kimi = config(tmp_path / "kimi", architectures=["KimiK25ForConditionalGeneration"], text_config=inner)
    (kimi / "model-00001-of-00001.safetensors").write_bytes(b"\0" * 2**20)
    llama = config(
        tmp_path / "llama", architectures=["LlamaForCausalLM"], num_attention_heads=32, num_key_value_heads=8
    )
    facts = facts_of(sglang(kimi, cluster=ClusterConf(gpus="none", accelerator="H200")))
    assert (facts.attention, facts.num_attention_heads, facts.gpu) == ("mla", 64, "sm90")
    assert facts.weights_gib == pytest.approx(2**-10)
    facts = facts_of(sglang(llama, cluster=ClusterConf(gpus="none")))
    assert (facts.attention, facts.num_kv_heads, facts.bundles_mtp, facts.gpu) == ("gqa", 8, False, None)
    assert facts.largest_concurrency == 8


def test_plain_servers_outside_the_space_are_counted_by_name() -> None:
    """A space that only speculates is compared with plain servers all the same: the page's two counts agree."""
    text = orchestrator("plan", "conf=demo", "space.algorithm=[EAGLE3]").stdout
    legal, distinct = (re.search(words, text) for words in (r"Legal +([\d,]+) distinct", r"of ([\d,]+) distinct, 2 plain servers outside the space among them"))  # fmt: skip
    assert legal is not None
    assert distinct is not None
    assert int(distinct[1].replace(",", "")) - int(legal[1].replace(",", "")) == 2


def test_a_misspelt_backend_is_refused_once_with_the_nearest() -> None:
    """The page counts what is refused, the message says why."""
    done = orchestrator("plan", "conf=demo", "space.attention_backend=torch_nativ")
    assert done.returncode == 2
    said = "SGLang 0.5.17 has no attention backend 'torch_nativ', but 'torch_native'"
    assert (done.stdout.count(said), done.stderr.count(said)) == (0, 1)


def test_a_profile_says_how_its_target_attends() -> None:
    """So that what its backend would refuse of latent attention is no launch; one that says nothing leaves it to the server."""
    kimi = load_plan(["conf=kimi-k2.5", "engine.name=simulated"], to_run=False)
    refused = Launches(kimi, facts_of(kimi)).legal
    assert "flashinfer takes eagle_topk 1 only on an MLA target" in refused.reasons["flashinfer_drafts_no_trees_on_mla"]
    assert not any((s.eagle_topk or 1) > 1 and s.attention_backend == "flashinfer" for s in refused.settings)
    assert facts_of(load_plan(["conf=demo"])).attention is None


@pytest.mark.parametrize(
    ("values", "asked", "share"),
    [
        ({"torch_dtype": "float32"}, "auto", 0.5), ({"dtype": "float32"}, "bfloat16", 0.5), ({}, "auto", 0.5),
        ({"torch_dtype": "bfloat16", "text_config": {"torch_dtype": "float32"}}, "half", 0.5),
        ({"torch_dtype": "float32"}, "float32", 1), ({}, "float", 1), ({"torch_dtype": "bfloat16"}, "auto", 1),
    ],
)  # fmt: skip
def test_float32_weights_are_known_as_sglang_loads_them(
    tmp_path: Path, values: dict[str, Any], asked: str, share: float
) -> None:
    """In half their size unless float32 is asked for; a config without a dtype counts as float32."""
    folder = config(tmp_path / "target", architectures=["LlamaForCausalLM"], **values)
    (folder / "model.safetensors").write_bytes(b"\0" * 2**20)
    real = sglang(folder, cluster=ClusterConf(gpus="none"))
    facts = facts_of(dataclasses.replace(real, target=Target(path=str(folder), dtype=asked)))
    assert facts.weights_gib == pytest.approx(share * 2**-10)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"architectures": 3}', "\0"])
def test_a_target_that_cannot_be_read_leaves_the_facts_unknown(tmp_path: Path, text: str) -> None:
    """Whatever stands there, nothing is raised."""
    (tmp_path / "config.json").write_text(text)
    assert facts_of(sglang(tmp_path, cluster=ClusterConf(gpus="none"))) == Facts(largest_concurrency=8)


def test_hours_are_the_launches_one_after_the_other_on_each_gpu_set() -> None:
    """Eight launches of two GPUs on two sets: four after each other, all of them paid for."""
    two = plan(
        {"tp_size": Held(2)},
        engine=EngineConf(name="sglang", python="python"),
        cluster=ClusterConf(gpus=["0", "1", "2", "3"]),
    )
    found = estimate(two, distinct=100)
    tokens = 6 * 16 + 1 * 16 + 2 * 3 * 16  # warming up asks for no more than is measured
    assert (found.launches, found.gpu_sets, found.gpus_per_set) == (8, 2, 2)
    assert found.measure_s == pytest.approx(tokens / STREAM_TOK_S)
    assert found.hours == pytest.approx(4 * (START_S + found.measure_s + 10) / 3600)
    assert found.gpu_hours == pytest.approx(found.hours * 4)


def test_fewer_settings_than_budget_are_fewer_launches_and_hours_bound_them_too() -> None:
    """Three distinct launches and a race of two; and an hour's worth of launches."""
    few = plan(budget=Budget(launches=50, finalists=2))
    assert estimate(few, distinct=3).launches == 5
    bounded = estimate(sglang(Path("/no"), budget=Budget(launches=None, hours=1.0), cluster=ClusterConf(gpus=["0"])), distinct=500)  # fmt: skip
    assert bounded.launches == pytest.approx(3600 / bounded.launch_s, abs=1)


def test_rows_of_an_earlier_run_say_how_long_things_take(tmp_path: Path) -> None:
    """The median start and each stream's speed, at the nearest load that was measured."""
    ledger = Ledger.open(RunDir.at(tmp_path / "run"))
    for record in rows(Trial(0, Settings(), "baseline", ())):
        ledger.append(record)
    first = Trial(0, Settings(), "baseline", load_points(plan()))
    for record in rows(first):
        ledger.append(_timed(record, launch_s=20.0, user_tok_s=100.0))
    warm = sglang(
        Path("/no"), warm_start=(tmp_path / "run",), workload=Workload(concurrency=[1, 30], output_tokens=100)
    )
    found = estimate(warm, distinct=10)
    assert found.start_s == 20.0
    assert found.measure_s == pytest.approx((6 * 100 + 6 * 100 + 3 * (64 + 34)) / 100)
    assert found.source == "measured: 1 launch of warm_start"


def _timed(record: Record, launch_s: float, user_tok_s: float) -> Record:
    assert record.measurement is not None
    measurement = dataclasses.replace(record.measurement, user_tok_s=user_tok_s)
    return dataclasses.replace(record, launch_s=launch_s, measurement=measurement)


def test_the_budget_for_proposals_leaves_out_the_race_and_the_plain_servers() -> None:
    """Twelve launches, three for the race, two plain servers: seven."""
    given = plan({"num_draft_tokens": Held(2)}, budget=Budget(launches=12, finalists=3))
    assert for_proposals(given, Facts()) == 7
    assert for_proposals(plan(budget=Budget(launches=None, hours=1)), Facts()) is None


def test_what_should_be_known_before_the_first_launch_is_said_once() -> None:
    """A version nobody read the rules of; graphs that end below the load."""
    given = plan({"server_args.cuda_graph_max_bs": Choice((4, 2)), "num_steps": Range(1, 2)})
    said = Launches(given, Facts(version="0.6.1", largest_concurrency=8)).warnings()
    assert len(said) == 2
    assert "0.6.1 is not one of" in said[0]
    assert "outside CUDA graphs" in said[1]


def test_few_requests_a_stream_are_said_before_the_run() -> None:
    """Case B13: as many prompts as streams; five times as many are let pass, and so is a simulated engine."""
    few, real = Workload(requests_per_stream=1), EngineConf(name="sglang", python="python3")

    assert "requests_per_stream 1:" in Launches(plan(workload=few, engine=real), Facts()).warnings()[-1]
    for given in (plan(workload=Workload(requests_per_stream=5), engine=real), plan(workload=few)):
        assert not any("requests_per_stream" in line for line in Launches(given, Facts()).warnings())


def test_a_file_of_too_few_prompts_is_said_before_the_run(tmp_path: Path) -> None:
    """With both numbers; the shipped one has enough."""
    prompts = tmp_path / "few.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n{"prompt": "three"}\n')
    load = Workload(prompts=str(prompts), concurrency=[1, 8], requests_per_stream=2)
    (said,) = Launches(plan(workload=load), Facts(version="0.5.17")).warnings()
    assert said.startswith(f"workload.prompts {prompts}: holds 2 to measure with, and a launch sends 22: ")
    enough = dataclasses.replace(load, prompts="chat-mix")
    assert Launches(plan(workload=enough), Facts(version="0.5.17")).warnings() == []


def test_a_prompt_that_may_be_too_long_for_the_context_is_said_before_the_run(tmp_path: Path) -> None:
    """By about four letters a token; a server refuses a request whose prompt and answer are longer together."""
    prompts = tmp_path / "own.jsonl"
    prompts.write_text('{"prompt": "short"}\n' + json.dumps({"prompt": "long" * 900}) + "\n")
    given = plan(
        workload=Workload(prompts=str(prompts), output_tokens=200), target=Target(path="t", context_length=1000)
    )
    (*_, warning) = Launches(given, Facts(version="0.5.17")).warnings()
    assert (
        "the longest has about 900 tokens; with output_tokens 200 that is more than target.context_length 1000"
        in warning
    )
    roomy = dataclasses.replace(given, target=Target(path="t", context_length=1100))
    assert not any("the longest" in said for said in Launches(roomy, Facts(version="0.5.17")).warnings())


def test_a_throughput_goal_of_requests_at_a_rate_is_doubted() -> None:
    """A server that keeps up gives what arrives; a latency tells servers apart."""
    at_a_rate = Workload(concurrency=[4], arrival="poisson", request_rate=1.0)
    (warning,) = Launches(plan(workload=at_a_rate), Facts(version="0.5.17")).warnings()
    assert "objective.minimize=tpot_p50_ms" in warning
    assert (
        Launches(plan(workload=at_a_rate, goal=Goal(minimize="tpot_p50_ms")), Facts(version="0.5.17")).warnings() == []
    )


def test_requests_at_a_rate_take_as_long_as_they_come() -> None:
    """Sixty requests at one a second are a minute, however fast each is answered."""
    slow = Workload(concurrency=[1], requests_per_stream=60, output_tokens=4, arrival="poisson", request_rate=1.0)

    assert 60 <= estimate(plan(workload=slow), 1).measure_s < 70
