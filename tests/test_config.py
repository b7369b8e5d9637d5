"""How a config is read: what loads, and the one line each mistake gets."""

from __future__ import annotations

import dataclasses
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from orchestrator.config import changed, load_plan, plan_from_conf, to_yaml, with_words
from orchestrator.config.sections import KEYS, OBJECTIVE, SECTIONS
from orchestrator.config.yaml_text import read_yaml, write_yaml
from orchestrator.errors import ConfError
from orchestrator.nearest import distance, near
from orchestrator.plan import Plan
from results.measurement import metrics
from results.rundir import RunDir
from sweeps.settings import ALGORITHMS, knobs
from sweeps.space import Choice, Held, Range

ROOT = Path(__file__).resolve().parent.parent

GOOD = """
target: {path: ./target}
drafters: {own: ./own, public: ./public}
engine: {python: ./venv/bin/python}
space:
  algorithm: [none, EAGLE3]
  drafter: [own, public]
  num_steps: {low: 1, high: 3}
  eagle_topk: [1, 4]
  num_draft_tokens: {low: 2, high: 8}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to stand in, with checkpoints and a good config, good.yaml."""
    for name in ("target", "own", "public"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "good.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *words: str, base: str = "good") -> Plan:
    """The Plan of x.yaml, made of `text` on top of good.yaml, in the folder we stand in."""
    Path("x.yaml").write_text(f"defaults: [{base}]\n{text}")
    return load_plan(["conf=x.yaml", *words])


def mistakes(text: str, *words: str, base: str = "good") -> list[str]:
    with pytest.raises(ConfError) as caught:
        load(text, *words, base=base)
    assert str(caught.value) == "\n".join(caught.value.mistakes)
    return caught.value.mistakes


# What loads


@pytest.mark.parametrize("name", ["demo", "eagle3", "kimi-k2.5"])
def test_the_shipped_confs_load_without_a_gpu_or_a_checkpoint(name):
    """Each runs as it stands on the simulated engine."""
    plan = load_plan([f"conf={name}", "engine.name=simulated"])

    assert plan.name == name
    assert set(plan.drafters) == {"own", "public"}
    assert plan.budget.launches is not None


def test_the_demo_says_what_it_is_for():
    """It takes about a minute: few launches, small load, a race at the end, other proposals each time."""
    plan = load_plan(["conf=demo"])

    assert plan.engine.name == "simulated"
    assert (plan.engine.profile, plan.workload.concurrency, plan.workload.output_tokens) == ("demo", [1, 8, 32], 48)
    assert (plan.workload.requests_per_stream, plan.budget.finalists, plan.sampler.seed) == (2, 4, None)


def test_the_main_conf_explains_every_key_there_is():
    """conf/eagle3.yaml is the reference a person copies from: no key without a comment beside it."""
    text = (ROOT / "conf/eagle3.yaml").read_text()
    fields = [field.name for kind in SECTIONS.values() for field in dataclasses.fields(kind)]

    explained = set(re.findall(r"^ *(?:# )?([a-z_]+):.*\S.* # \S", text, re.M))
    explained |= set(re.findall(r"^([a-z_]+): +# \S", text, re.M))
    examples = {"target", "engine", "cluster", "objective", "sampler"}  # their keys say it all

    assert set(fields) | set(OBJECTIVE) | set(knobs()) | set(KEYS) - examples <= explained


def test_the_main_conf_shows_the_defaults_it_says_it_shows():
    """What it writes for workload, budget, sampler and deadlines is what a config without them would get."""
    written = yaml.safe_load((ROOT / "conf/eagle3.yaml").read_text())

    for name in ("workload", "budget", "sampler", "deadlines", "cluster"):
        assert written[name] == dataclasses.asdict(SECTIONS[name]())


def test_a_list_chooses_a_scalar_holds_and_low_high_ranges(here):
    """The three forms of a knob, whole and continuous."""
    domains = load("space: {page_size: 16, mem_fraction_static: {low: 0.5, high: 1}}").space.domains

    assert domains["eagle_topk"] == Choice((1, 4))
    assert domains["page_size"] == Held(16)
    assert domains["num_steps"] == Range(1, 3)
    assert domains["mem_fraction_static"] == Range(0.5, 1.0, whole=False)


def test_server_args_are_held_or_swept_under_sglangs_own_names(here):
    """Dashes are underscores; booleans are values; they stand in the space as server_args.NAME."""
    plan = load("server_args: {chunked-prefill-size: [2048, 8192], disable_radix_cache: false, x: {low: 0.5, high: 2}}")

    assert plan.space.domains["server_args.chunked_prefill_size"] == Choice((2048, 8192))
    assert plan.space.domains["server_args.disable_radix_cache"] == Held(False)
    assert plan.space.domains["server_args.x"] == Range(0.5, 2, whole=False)


def test_a_list_inside_a_list_is_one_value_of_several_words(here):
    """A list chooses: inside one, a list is held or chosen as a whole; of one word it is that word."""
    plan = load("server_args: {bs: [[1, 2, 4]], sizes: [[1, 2], [1, 2, 4], 8, [16]], names: [[a, b]]}")

    assert plan.space.domains["server_args.bs"] == Choice(((1, 2, 4),))
    assert plan.space.domains["server_args.sizes"] == Choice(((1, 2), (1, 2, 4), 8, 16))
    assert list(plan.space.free).count("server_args.bs") == 0
    assert dict(plan.space.settings({}).server_args) == {"bs": (1, 2, 4), "names": ("a", "b"), "sizes": (1, 2)}
    assert plan.conf["server_args"]["sizes"] == [[1, 2], [1, 2, 4], 8, 16]
    assert load_stored(plan).space == plan.space
    assert changed(plan, with_words(plan, ["server_args.bs=[[1, 2]]"])) == ["server_args.bs: [[1, 2, 4]] → [[1, 2]]"]


def test_what_other_sections_imply_stands_in_the_space(here):
    """Room for the largest load, GPUs of one server, and the plain server when no algorithm is named."""
    plan = load("target: {tp_size: 4}\nworkload: {concurrency: [64, 2]}")
    bare = load("engine: {python: ./p}\ntarget: {path: org/model}", base="")

    assert plan.space.domains["max_running_requests"] == Held(64)
    assert plan.space.domains["tp_size"] == Held(4)
    assert bare.space.domains["algorithm"] == Held("none")


def test_requests_at_a_rate_have_room_to_pile_up(here):
    """With arrival: poisson more requests than streams may be out, and the server is to take them."""
    plan = load("workload: {arrival: poisson, request_rate: 1, concurrency: [4, 8]}")

    assert plan.space.domains["max_running_requests"] == Held(32)


def test_what_the_space_says_itself_wins(here):
    """An explicit max_running_requests or tp_size is kept."""
    domains = load("space: {max_running_requests: 48, tp_size: [1, 2]}\ntarget: {tp_size: 4}").space.domains

    assert domains["max_running_requests"] == Held(48)
    assert domains["tp_size"] == Choice((1, 2))


def test_null_takes_an_inherited_key_back(here):
    """A knob of null is left to the server, as if it had not been given."""
    assert "attention_backend" not in load("space: {attention_backend: fa3}", "space.attention_backend=").space.domains


def test_defaults_merge_in_order_then_the_file_then_the_words(here):
    """Mappings merge, lists are replaced; the last one to speak wins."""
    Path("a.yaml").write_text("budget: {launches: 1, hours: 1}\nworkload: {concurrency: [1, 2, 3]}")
    Path("b.yaml").write_text("defaults: [a]\nbudget: {launches: 2, gpu_hours: 2}")
    plan = load("budget: {finalists: 7}", "budget.gpu_hours=5", "workload.concurrency=[4]", base="good, b")

    assert plan.budget == dataclasses.replace(plan.budget, launches=2, hours=1.0, gpu_hours=5.0, finalists=7)
    assert plan.workload.concurrency == [4]


def test_a_word_may_reach_into_a_range_or_replace_it(here):
    """space.num_steps.high=9 widens; space.num_steps=[1,2] chooses instead."""
    assert load("", "space.num_steps.high=9").space.domains["num_steps"] == Range(1, 9)
    assert load("", "space.num_steps=[1,2]").space.domains["num_steps"] == Choice((1, 2))


def test_relative_paths_start_at_the_file_that_gives_them(here):
    """So a conf folder can be moved as a whole; words start where the person is, and so does out."""
    (here / "sub").mkdir()
    (here / "sub/base.yaml").write_text("engine: {python: ../venv/bin/python}\nout: runs/here")
    (here / "sub/y.yaml").write_text("defaults: [base]\ntarget: {path: ../target}")
    plan = load_plan(["conf=sub/y.yaml", "drafters.own=./own", "space.algorithm=none"])

    assert Path(plan.target.path).resolve() == here / "target"
    assert Path(plan.engine.python or "") == here / "venv/bin/python"
    assert plan.drafters == {"own": str(here / "own")}
    assert plan.out == here / "runs/here"


def test_a_path_is_stored_without_the_way_to_it(here):
    """Leading .. are gone from what is run and shown, seen from where the config really lies; links stay, since an
    environment's interpreter is one, and so does a .. behind one."""
    (here / "real/confs").mkdir(parents=True)
    (here / "real/confs/y.yaml").write_text(
        "engine: {python: ../../venv/bin/python}\ntarget: {path: ../model}\nworkload: {prompts: ./link/../p.jsonl}"
    )
    (here / "link").symlink_to(here / "real/confs")
    (here / "venv/bin").mkdir(parents=True)
    (here / "venv/bin/python").symlink_to(sys.executable)
    plan = load_plan(["conf=link/y.yaml", "out=../runs"], to_run=False)

    assert (plan.engine.python, plan.target.path) == (str(here / "venv/bin/python"), str(here / "real/model"))
    assert plan.workload.prompts == str(here / "real/confs/link/../p.jsonl")
    assert plan.out == here.parent / "runs"


def test_home_and_hub_names_and_bare_programs_are_left_what_they_are(here, monkeypatch):
    """~ is the person's home; org/model is a hub name; python3 is found on PATH by whoever starts it."""
    monkeypatch.setenv("HOME", str(here))
    plan = load("target: {path: ~/target}\ndrafters: {own: org/own}\nengine: {python: python3}\nspace: {drafter: own}")

    assert plan.target.path == str(here / "target")
    assert plan.drafters["own"] == "org/own"
    assert plan.engine.python == "python3"


def test_references_are_resolved_once_and_stored_resolved(here, monkeypatch):
    """C08: to other keys, to defaults that nobody wrote, and to the environment; a number stays a number."""
    monkeypatch.setenv("STREAMS", "16")
    plan = load(
        "drafters:\n  own: ${target.path}\nworkload:\n  requests_per_stream: ${oc.env:STREAMS}\n"
        "  seed: ${workload.repeats}\n"
    )

    assert plan.drafters["own"] == str(here / "target")
    assert (plan.workload.requests_per_stream, plan.workload.seed) == (16, 1)
    assert "${" not in to_yaml(plan)


@pytest.mark.parametrize(
    ("spelt", "hours"), [("1e3", 1000.0), ("1e-3", 0.001), ("2", 2.0), ("'2.5'", 2.5), (".5", 0.5)]
)
def test_numbers_are_numbers_however_they_are_spelt(here, spelt, hours):
    """C01: the usual reader makes text of 1e3; a quoted number is taken where a number is meant."""
    assert load(f"budget: {{hours: {spelt}}}").budget.hours == hours
    assert load("", f"budget.hours={spelt}").budget.hours == hours


def test_gpus_are_all_none_or_a_list(here):
    """Indices may be written as numbers."""
    assert load("cluster: {gpus: [0, GPU-1a]}").cluster.gpus == ["0", "GPU-1a"]
    assert load("cluster: {gpus: none}").cluster.gpus == "none"


def test_the_objective_becomes_a_goal(here):
    """`all` is the empty tuple; limits are numbers."""
    goal = load("objective: {maximize: user_tok_s, at: [8, 1], limits: {ttft_p99_ms: 5e2}}").goal

    assert (goal.maximize, goal.at, goal.limits) == ("user_tok_s", (8, 1), {"ttft_p99_ms": 500.0})
    assert load("objective: {at: all}").goal.at == ()


def test_a_goal_may_be_a_metric_to_lower(here):
    """`maximize: speedup`, the default, may stand beside it, as it does in a stored config."""
    assert load("objective: {minimize: tpot_p50_ms}").goal.metric == "tpot_p50_ms"
    assert load("objective: {minimize: ttft_p99_ms, maximize: speedup, at: [1]}").goal.minimize == "ttft_p99_ms"


def test_weights_belong_to_load_points(here):
    """One a load point that counts, in the order of `at`; the load points' own order without it."""
    assert load("objective: {at: [8, 1], weights: [3, 1]}").goal.weights == {8: 3.0, 1: 1.0}
    assert load("objective: {weights: [3, 1, 0.5]}", "workload.concurrency=[32,1,8]").goal.weights == {
        1: 3.0, 8: 1.0, 32: 0.5,
    }  # fmt: skip
    assert load("objective: {price_per_gpu_hour: 2.5}").goal.price_per_gpu_hour == 2.5
    assert load("").goal.weights == {}


def test_a_section_with_all_its_keys_commented_out_is_empty(here):
    """`budget:` alone changes nothing."""
    assert load("budget:\nobjective:\nserver_args:\nwarm_start:\nout:\n").budget == SECTIONS["budget"]()


def test_the_conf_of_a_best_yaml_can_be_run(here):
    """A file with answers: and conf: gives its conf."""
    plan = load("")
    Path("best.yaml").write_text(write_yaml({"answers": [{"concurrency": 1}], "conf": plan.conf}))

    assert dataclasses.replace(load_plan(["conf=./best.yaml"]), name="x") == plan


def test_a_simulated_engine_brings_its_drafters(here):
    """Nothing need exist on disk, and drafters that are not named are the profile's."""
    pytest.importorskip("orchestrator.simulator.profile")
    Path("s.yaml").write_text("engine: {name: simulated}\nspace: {algorithm: [none, EAGLE3], drafter: own}")

    assert load_plan(["conf=s.yaml"]).drafters.keys() == {"own", "public"}


# Mistakes, one kind a line

MISTAKES = [
    # unknown keys
    ("spase: {num_steps: 1}", "x.yaml: spase: no such key. Did you mean 'space'?"),
    ("workload: {concurency: 8}", "x.yaml: workload.concurency: no such key. Did you mean 'concurrency'?"),
    ("concurrency: [1]", "x.yaml: concurrency: no such key. Did you mean 'workload.concurrency'?"),
    ("engine: {num_steps: 1}", "x.yaml: engine.num_steps: no such key. Did you mean 'space.num_steps'?"),
    (
        "engine: {zzz: 1}",
        "x.yaml: engine.zzz: no such key. There is: name, url, python, env, host, launch_mode, recording, profile.",
    ),
    (
        "space: {num_draft_tokenz: 1}",
        (
            "x.yaml: space.num_draft_tokenz: no such knob. Did you mean 'num_draft_tokens'? "
            "Knobs are declared in sweeps/settings.py."
        ),
    ),
    (
        "space: {topk: 1}",
        "x.yaml: space.topk: no such knob. Did you mean 'eagle_topk'? Knobs are declared in sweeps/settings.py.",
    ),
    (
        "space: {speculative_num_steps: 1}",
        "x.yaml: space.speculative_num_steps: no such knob. Did you mean 'num_steps'?",
    ),
    (
        "space: {chunked-prefill-size: 1}",
        "x.yaml: space.chunked-prefill-size: no such knob. "
        "If it is an argument of SGLang, `server_args:` passes it through. There is: " + ", ".join(knobs()) + ".",
    ),
    ("space: {num_steps: {low: 1, hihg: 3}}", "x.yaml: space.num_steps.hihg: no such key. Did you mean 'high'?"),
    ("server_args: {tp: 2}", "x.yaml: server_args.tp: is the knob 'tp_size'. Write space.tp_size."),
    (
        "server_args: {speculative-num-steps: 2}",
        "x.yaml: server_args.speculative_num_steps: is the knob 'num_steps'. Write space.num_steps.",
    ),
    (
        "server_args: {disable_cuda_graph: true}",
        "x.yaml: server_args.disable_cuda_graph: is the knob 'cuda_graph'. Write space.cuda_graph.",
    ),
    ("server_args: {model-path: m}", "x.yaml: server_args.model_path: is given elsewhere. Write target.path."),
    ("server_args: {port: 1}", "x.yaml: server_args.port: is chosen for each launch. Leave it out."),
    # given twice
    ("budget: {launches: 1}\nbudget: {launches: 2}", "x.yaml: budget: given twice. Keep one of them."),
    ("budget: {launches: 1, launches: 2}", "x.yaml: budget.launches: given twice. Keep one of them."),
    ("server_args: {a-b: 1, a_b: 2}", "x.yaml: server_args.a_b: given twice, with dashes and with underscores."),
    # types
    ("budget: 5", "x.yaml: budget: 5 is no section: its keys stand under it, as in budget: {key: value}."),
    ("budget: {launches: 2.5}", "x.yaml: budget.launches: 2.5 is not a whole number."),
    ("budget: {launches: 1e1}", "x.yaml: budget.launches: 10.0 is not a whole number: write 10."),
    ("budget: {launches: many}", "x.yaml: budget.launches: 'many' is not a number."),
    ("budget: {launches: yes}", "x.yaml: budget.launches: True is a boolean: write a number."),
    ("budget: {launches: [1]}", "x.yaml: budget.launches: [1] is no number."),
    ("budget: {hours: 0}", "x.yaml: budget.hours: 0 is not above 0: give more, or leave the key out."),
    ("budget: {gpu_hours: -1}", "x.yaml: budget.gpu_hours: -1 is not above 0: give more, or leave the key out."),
    ("budget: {gpu_hours: 08}", "x.yaml: budget.gpu_hours: '08' is not a number: write 8."),
    ("budget: {gpu_hours: .inf}", "x.yaml: budget.gpu_hours: inf is no finite number."),
    ("budget: {hours: 1:30:00}", "x.yaml: budget.hours: '1:30:00' is not a number: write 1.5."),
    ("deadlines: {load_s: 12:30:00}", "x.yaml: deadlines.load_s: '12:30:00' is not a number: write 45000."),
    ("deadlines: {load_s: 12:30}", "x.yaml: deadlines.load_s: '12:30' is not a number."),
    ("deadlines: {load_s: 1_000}", "x.yaml: deadlines.load_s: '1_000' is not a number: write 1000."),
    ("workload: {output_tokens: }", "x.yaml: workload.output_tokens: is empty: give a value, or leave the key out."),
    ("workload: {ignore_eos: 1}", "x.yaml: workload.ignore_eos: 1 is not a boolean: write true or false."),
    (
        "workload: {prefix_cache: off}",
        "x.yaml: workload.prefix_cache: False is a boolean (YAML reads no, off, yes and on so): quote it.",
    ),
    (
        "workload: {prefix_cache: flush}",
        "x.yaml: workload.prefix_cache: 'flush' is not one of flushed, kept. Did you mean 'flushed'?",
    ),
    ("engine: {host: 3}", "x.yaml: engine.host: 3 is not text: quote it."),
    ("engine: {name: vllm}", "x.yaml: engine.name: 'vllm' is not one of sglang, simulated, attached, replay."),
    (
        "engine: {env: {A: on}}",
        "x.yaml: engine.env.A: True is a boolean (YAML reads no, off, yes and on so): quote it.",
    ),
    ("engine: {env: 3}", "x.yaml: engine.env: 3 holds no names: write {NAME: value}."),
    ("cluster: {gpus: 3}", "x.yaml: cluster.gpus: '3' is neither all, none nor a list such as [0, 1]."),
    (
        "cluster: {gpus: [0, 1], address: '10.0.0.1:6379'}",
        "x.yaml: cluster.gpus: ['0', '1'] are this machine's; of a cluster they are chosen where its Ray is started: CUDA_VISIBLE_DEVICES=… ray start ….",
    ),
    ("warm_start: ./a", "x.yaml: warm_start: './a' is no list: write [./a]."),
    ("drafters: {own: 3}", "x.yaml: drafters.own: 3 is not text: quote it."),
    ("drafters: {1: a}", "x.yaml: drafters.1: this key is not text to YAML: quote it, '1'."),
    # bounds and lists
    ("workload: {temperature: -1}", "x.yaml: workload.temperature: -1 is below 0."),
    ("target: {tp_size: 65}", "x.yaml: target.tp_size: 65 is above 64."),
    ("workload: {concurrency: 8}", "x.yaml: workload.concurrency: 8 is no list: write [8]."),
    ("workload: {concurrency: []}", "x.yaml: workload.concurrency: an empty list: give one value at least."),
    ("workload: {concurrency: [1, 0]}", "x.yaml: workload.concurrency[1]: 0 is below 1."),
    ("workload: {concurrency: [1, 2, 1]}", "x.yaml: workload.concurrency[2]: 1 is given twice."),
    # the space
    (
        "space: {algorithm: [off, EAGLE3]}",
        "x.yaml: space.algorithm[0]: False is a boolean (YAML reads no, off, yes and on so): quote it, or write none.",
    ),
    ("space: {algorithm: [~, EAGLE3]}", "x.yaml: space.algorithm[0]: null is no value: write none, or leave it out."),
    (
        "space: {attention_backend: [~, triton]}",
        (
            "x.yaml: space.attention_backend[0]: null is no value: "
            "leave it out (a key that is not given is left to the server)."
        ),
    ),
    (
        "space: {algorithm: [none, EAGEL3]}",
        f"x.yaml: space.algorithm[1]: 'EAGEL3' is not one of {', '.join(ALGORITHMS)}. Did you mean 'EAGLE3'?",
    ),
    (
        "space: {num_steps: []}",
        "x.yaml: space.num_steps: an empty list leaves nothing to choose: give values, or leave the key out.",
    ),
    ("space: {num_steps: [1, 1]}", "x.yaml: space.num_steps[1]: 1 is given twice."),
    ("space: {num_steps: [1, 2.5]}", "x.yaml: space.num_steps[1]: 2.5 is not a whole number."),
    ("space: {num_steps: 99}", "x.yaml: space.num_steps: 99 is above 64."),
    ("space: {num_steps: {low: 3, high: 2}}", "x.yaml: space.num_steps: low 3 is above high 2."),
    ("space: {page_size: {low: 3}}", "x.yaml: space.page_size: a range has low and high; high is missing."),
    (
        "space: {attention_backend: {low: 1, high: 2}}",
        "x.yaml: space.attention_backend: a range needs numbers: list the values instead.",
    ),
    (
        "space: {drafter: [own, pubic]}",
        "x.yaml: space.drafter: 'pubic' is no name under drafters. Did you mean 'public'?",
    ),
    (
        "server_args: {a: [1, ~]}",
        "x.yaml: server_args.a[1]: null is no value: leave it out (a key that is not given is left to the server).",
    ),
    ("server_args: {a: {b: 1}}", "x.yaml: server_args.a.b: no such key. There is: low, high."),
    ("server_args: {a: [{b: 1}]}", "x.yaml: server_args.a[0]: {'b': 1} is neither text, a number nor a boolean."),
    ("server_args: {a: [[1, true]]}", "x.yaml: server_args.a[0][1]: True is neither text nor a number."),
    ("server_args: {a: [[[1, 2], 3]]}", "x.yaml: server_args.a[0][0]: [1, 2] is neither text nor a number."),
    ("server_args: {a: [[]]}", "x.yaml: server_args.a[0]: an empty list is no value: give its words, or leave it out."),
    ("server_args: {a: [[1, 2], [1, 2]]}", "x.yaml: server_args.a[1]: [1, 2] is given twice."),
    ("server_args: {a: {low: x, high: y}}", "x.yaml: server_args.a: a range needs numbers: list the values instead."),
    # what must hold between keys
    (
        "space: {num_steps: null}",
        "x.yaml: space.num_steps: missing: EAGLE3 takes num_steps, eagle_topk, num_draft_tokens all together or none of them.",
    ),
    ("space: {drafter: null}", "x.yaml: space.drafter: missing: EAGLE3 needs a drafter. Write drafter: [own, public]."),
    (
        "space: {algorithm: null}",
        "x.yaml: space.algorithm: missing, though space.drafter is given. Write e.g. algorithm: [none, EAGLE3].",
    ),
    (
        "space: {max_running_requests: [16, 64]}",
        (
            "x.yaml: space.max_running_requests: 16 is below the largest concurrency, 32: the server would queue. "
            "Raise it, or leave it out."
        ),
    ),
    ("objective: {at: [8, 9]}", "x.yaml: objective.at: 9 is not measured: workload.concurrency is 1, 8, 32."),
    (
        "objective: {at: [8], weights: [1, 2]}",
        "x.yaml: objective.weights: 2 numbers for the 1 load points that count (8). Give one for each.",
    ),
    (
        "objective: {at: [8], weights: [0]}",
        "x.yaml: objective.weights: are all 0: nothing counts. Give one load point at least a weight.",
    ),
    (
        "objective: {weights: 3}",
        "x.yaml: objective.weights: 3 is no list: write one number a load point, e.g. [2, 1, 1].",
    ),
    ("objective: {price_per_gpu_hour: -1}", "x.yaml: objective.price_per_gpu_hour: -1 is below 0."),
    (
        "objective: {limits: {ttft_p99_ms:500}}",
        "x.yaml: objective.limits.ttft_p99_ms: YAML wants a blank after the colon: write ttft_p99_ms: 500.",
    ),
    ("drafters: {own:/x}", "x.yaml: drafters.own: YAML wants a blank after the colon: write own: /x."),
    (
        "objective: {maximize: tpot_p50_ms}",
        "x.yaml: objective.maximize: 'tpot_p50_ms' is better lower. Write objective.minimize=tpot_p50_ms.",
    ),
    (
        "objective: {minimize: speedup}",
        "x.yaml: objective.minimize: 'speedup' is better higher. Write objective.maximize=speedup.",
    ),
    (
        "objective: {limits: {user_tok_s: 9}}",
        "x.yaml: objective.limits.user_tok_s: no metric that can be limited from above. It is better higher: a limit is the most that a metric may be.",
    ),
    (
        "objective: {minimize: tpot_p5_ms}",
        "x.yaml: objective.minimize: 'tpot_p5_ms' is nothing to minimize. Did you mean 'tpot_p50_ms'?",
    ),
    (
        "objective: {minimize: tpot_p50_ms, maximize: user_tok_s}",
        "x.yaml: objective.minimize: 'tpot_p50_ms', and maximize 'user_tok_s': there is one goal. Give one of both, and a limit for the other.",
    ),
    ("objective: {at: some}", "x.yaml: objective.at: 'some' is neither all nor a list of concurrencies."),
    ("objective: {maximise: speedup}", "x.yaml: objective.maximise: no such key. Did you mean 'maximize'?"),
    (
        "objective: {maximize: speedups}",
        "x.yaml: objective.maximize: 'speedups' is nothing to maximize. Did you mean 'speedup'?",
    ),
    (
        "objective: {limits: {ttft_p9_ms: 3}}",
        (
            "x.yaml: objective.limits.ttft_p9_ms: no metric that can be limited from above. "
            "Did you mean 'ttft_p90_ms' or 'ttft_p99_ms'?"
        ),
    ),
    ("objective: {limits: {ttft_p99_ms: fast}}", "x.yaml: objective.limits.ttft_p99_ms: 'fast' is not a number."),
    ("objective: {limits: [1]}", "x.yaml: objective.limits: [1] is no section: write e.g. {ttft_p99_ms: 500}."),
    (
        "budget: {launches: }",
        "x.yaml: budget: has no bound: a sweep would never end. Give launches, gpu_hours or hours.",
    ),
    (
        "engine: {python: }",
        (
            "x.yaml: engine.python: missing: the interpreter of the environment SGLang is installed in, "
            "e.g. /opt/sglang/bin/python."
        ),
    ),
    ("target: {path: ''}", "x.yaml: target.path: missing: the directory of the target model, or its hub name."),
    (
        "target: {path: /no/such/model}",
        "x.yaml: target.path: /no/such/model: no such directory. Give a checkpoint's directory, or a hub name.",
    ),
    (
        "workload: {prompts: chatmix}",
        "x.yaml: workload.prompts: 'chatmix' is neither a JSONL file nor shipped. Did you mean 'chat-mix'?",
    ),
    (
        "workload: {prompts: random}",  # case B01
        (
            "x.yaml: workload.prompts: random words are like no text: acceptance on them says nothing. "
            "Give real prompts, or random_prompts: true."
        ),
    ),
    (
        "workload: {arrival: poisson}",
        "x.yaml: workload.request_rate: missing: arrival poisson needs requests per second and stream, e.g. 0.5.",
    ),
    (
        "workload: {request_rate: 3}",
        "x.yaml: workload.request_rate: only arrival: poisson has a rate; a closed loop sends as fast as it is answered.",
    ),
    ("workload: {input_tokens: long}", "x.yaml: workload.input_tokens: 'long' is not a number."),
    ("workload: {input_tokens: 0}", "x.yaml: workload.input_tokens: 0 is below 1."),
    (
        "target: {context_length: 1000}\nworkload: {input_tokens: 900}",
        "x.yaml: workload.input_tokens: 900 and output_tokens 256 are more than target.context_length 1000.",
    ),
    (
        "target: {context_length: 256}",
        "x.yaml: workload.output_tokens: 256 leave no room for a prompt in target.context_length 256: every request would be refused. Lower it, or serve a longer context.",
    ),
    (
        "workload: {client: bench_serving, arrival: poisson, request_rate: 1}",
        "x.yaml: workload.client: bench_serving is run with arrival: closed alone.",
    ),
    ("engine: {url: 'http://127.0.0.1:1'}", "x.yaml: engine.url: only engine.name: attached has one."),
    ("engine: {launch_mode: warm}", "x.yaml: engine.launch_mode: 'warm' is not one of plain, overlap, standby."),
    (
        "engine: {name: replay, recording: ., launch_mode: standby}",
        "x.yaml: engine.launch_mode: engine.name: replay launches no server. Leave it out.",
    ),
    # references and secrets
    (
        "target:\n  path: ${oc.env:NO_SUCH_VAR_XYZ}/target",
        "x.yaml: target.path: '${oc.env:NO_SUCH_VAR_XYZ}/target': Environment variable 'NO_SUCH_VAR_XYZ' not found.",
    ),
    (
        "drafters:\n  own: ${drafters.publik}",
        "x.yaml: drafters.own: '${drafters.publik}': Interpolation key 'drafters.publik' not found.",
    ),
    ("space:\n  drafter:\n  - ${a}", "x.yaml: space.drafter[0]: '${a}': Interpolation key 'a' not found."),
    ("target:\n  dtype: ${target.dtype}", "x.yaml: target.dtype: '${target.dtype}': Recursive interpolation detected."),
    (
        "target:\n  dtype: ${oc.env:HF_TOKEN}",
        (
            "x.yaml: target.dtype: '${oc.env:HF_TOKEN}': looks like a secret, and a config is stored with its run. "
            "Set it in the shell that starts the sweep instead."
        ),
    ),
    (
        "engine: {env: {HF_TOKEN: abc}}",
        (
            "x.yaml: engine.env.HF_TOKEN: looks like a secret, and a config is stored with its run. "
            "Set it in the shell that starts the sweep instead."
        ),
    ),
    (
        "server_args: {api-key: abc}",
        (
            "x.yaml: server_args.api_key: looks like a secret, and a config is stored with its run. "
            "Set it in the shell that starts the sweep instead."
        ),
    ),
    (
        "engine: {env: {CUDA_VISIBLE_DEVICES: 0}}",
        "x.yaml: engine.env.CUDA_VISIBLE_DEVICES: is set for each launch. Choose GPUs with cluster.gpus.",
    ),
    ("target:\n  path: ???", "x.yaml: target.path: must be given: a config that this one builds on leaves it to you."),
    # files
    ("a: [", "x.yaml: line 2, column 5: not YAML: expected the node content, but found '<stream end>'"),
    (
        "a: !!python/name:os.x",
        "x.yaml: line 2, column 4: not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.x'",
    ),
]


@pytest.mark.parametrize(
    ("text", "line"), MISTAKES, ids=[line.split(": ", 2)[1] + str(i) for i, (_, line) in enumerate(MISTAKES)]
)
def test_each_mistake_has_its_line_and_no_other(here, text, line):
    """C02 and C04 among them: one slip, one line: the file, the key, what is wrong, and what was meant."""
    assert mistakes(text) == [line]


WORDS = [
    ("budgit.launches=1", "command line: budgit: no such key. Did you mean 'budget'?"),
    ("budget.launches=two", "command line: budget.launches: 'two' is not a number."),
    ("workload.concurrency=[1,0]", "command line: workload.concurrency[1]: 0 is below 1."),
    ("foo", "command line: 'foo': not key=value, e.g. budget.launches=12"),
    (
        "--budget.launches=3",
        "command line: '--budget.launches=3': flags are -h and --json only. Write budget.launches=3",
    ),
    ("--verbose", "command line: '--verbose': flags are -h and --json only."),
    ("-v=1", "command line: '-v=1': flags are -h and --json only."),
    (
        "workload.concurrency[0]=3",
        "command line: 'workload.concurrency[0]=3': a list is replaced whole. Write workload.concurrency=[…]",
    ),
    (
        "space.num_steps=[",
        "command line: space.num_steps: '[': line 1, column 2: not YAML: expected the node content, but found '<stream end>'",
    ),
    ("conf=x.yaml", "command line: conf: given twice. Keep one of them."),
    ("target={dtype: a, dtype: b}", "command line: target.dtype: given twice. Keep one of them."),
]


@pytest.mark.parametrize(("word", "line"), WORDS)
def test_a_mistake_on_the_command_line_says_so(here, word, line):
    """The words are one more source; what is wrong with them is told like the rest."""
    assert mistakes("", word) == [line]


def test_a_word_given_twice_is_a_mistake(here):
    """As in a file, the second would silently win."""
    assert mistakes("", "budget.launches=1", "budget.launches=2") == [
        "command line: budget.launches: given twice. Keep one of them."
    ]


def test_all_mistakes_of_all_files_come_in_one_go(here):
    """Each with the file that holds it, also when another file builds on that one."""
    Path("b.yaml").write_text("engine: {nane: sglang}\nspace: {num_steps: []}")
    found = mistakes("spase: {}\nworkload: {concurency: 8}\nbudget: 5\nbudget: 50", "seed=1", base="good, b")

    assert found == [
        "x.yaml: budget: given twice. Keep one of them.",
        "x.yaml: spase: no such key. Did you mean 'space'?",
        "command line: seed: no such key. Did you mean 'workload.seed' or 'sampler.seed'?",
        "b.yaml: space.num_steps: an empty list leaves nothing to choose: give values, or leave the key out.",
        "b.yaml: engine.nane: no such key. Did you mean 'name'?",
        "x.yaml: workload.concurency: no such key. Did you mean 'concurrency'?",
    ]


def test_mistakes_do_not_come_in_layers(here):
    """What must hold between sound keys is said beside the mistakes of other keys, of the same sections too."""
    text = """
target: {dtype: 16, tpsize: 8}
drafters: {own: ./nope, public: 3}
engine: {host: off, pyton_path: x}
cluster: {gpus: some, adress: local}
space:
  {algorithm: [none, EAGLE3], drafter: [own, public, onw], num_steps: [0], page_size: [], max_running_requests: 4}
workload: {concurrency: [1, 8], temperature: hot, prompts: chatmix}
objective: {at: [7], maximise: speedup}
budget: {launches: null, finalists: -1}
warm_start: [3, ./old]
spaze: {}
"""
    found = mistakes(text, "foo", base="")

    assert sorted(line.split(": ")[1] for line in found) == sorted([
        "'foo'", "spaze", "target.dtype", "target.tpsize", "drafters.public", "engine.host", "engine.pyton_path",
        "cluster.adress", "space.num_steps[0]", "space.page_size", "workload.temperature", "objective.maximise",
        "budget.finalists", "warm_start[0]",
        # and between keys
        "target.path", "drafters.own", "engine.python", "cluster.gpus", "space.drafter", "space.eagle_topk",
        "space.num_draft_tokens", "space.max_running_requests", "workload.prompts", "objective.at", "budget", "warm_start",
    ])  # fmt: skip


FOLLOW_ONS = [
    ("engine: {pyhton: ./p}\ntarget: {path: a/b}", "engine.pyhton"),
    ("engine: {python: ./p}\ntraget: {path: a/b}", "traget"),
    ("engine: {python: ./p}\npath: a/b", "path"),
    ("engine: {python: ./p}\nserver_args: {model-path: a/b}", "server_args.model_path"),
    ("engine: {nmae: simulated}", "engine.nmae"),
    ("engine: {name: simulatd}", "engine.name"),
    ("engine: {name: simulated, profile: nope}\nspace: {algorithm: EAGLE3, drafter: [own]}", "engine.profile"),
    ("engine: {name: simulated}\nspace: {algorithm: EAGLE3, drafter: x}\ndrafter: {x: a/b}", "drafter"),
    ("engine: {name: simulated}\nspace: {algorithm: [EAGEL3], num_steps: 3}", "space.algorithm[0]"),
    ("engine: {name: simulated}\nspace: {algorithm: EAGLE3, draftr: own}", "space.draftr"),
    (
        "engine: {name: simulated}\nspace: {algorithm: NEXTN, num_steps: 3, eagle_topk: 1, num_draft_token: 4}",
        "space.num_draft_token",
    ),
    (
        "engine: {name: simulated}\nspace: {algorithm: NEXTN, eagle_topk: 1, num_draft_tokens: 4}\nserver_args: {speculative-num-steps: 3}",
        "server_args.speculative_num_steps",
    ),
    ("engine: {name: simulated}\nworkload: {concurency: [7]}\nobjective: {at: [7]}", "workload.concurency"),
    ("engine: {name: simulated}\nworkload: {concurrency: [7, 0]}\nobjective: {at: [7]}", "workload.concurrency[1]"),
    ("engine: {name: simulated}\nbudget: {launches: null, hour: 3}", "budget.hour"),
]


@pytest.mark.parametrize(("text", "key"), FOLLOW_ONS)
def test_what_only_follows_from_a_mistake_is_not_said(here, text, key):
    """A misspelt key is not missing as well, and a value that cannot be read disagrees with nothing."""
    [line] = mistakes(text, base="")

    assert line.startswith(f"x.yaml: {key}: ")


@pytest.mark.parametrize("word", ["target.path", "target.path:org/model", "--target.path=org/model"])
def test_a_badly_formed_word_is_not_a_missing_key_as_well(here, word):
    """It was meant to be given."""
    [line] = mistakes("engine: {python: ./p}", word, base="")

    assert line.startswith(f"command line: '{word}': ")


def test_a_profile_that_cannot_be_read_is_one_mistake():
    """Not one for every drafter that it may have."""
    with pytest.raises(ConfError) as caught:
        load_plan(["conf=demo", "engine.profile=nope"])

    [line] = caught.value.mistakes
    assert line.startswith("command line: engine.profile: no profile 'nope'")


def test_a_budget_may_be_smaller_than_its_race(here):
    """A third of the launches is kept back at most, so one launch, of the plain server, is a budget as well."""
    assert load("budget: {launches: 1, finalists: 9}").budget.launches == 1


def test_every_wrong_value_of_a_list_is_named(here):
    """Not only the first one."""
    found = mistakes("space: {algorithm: [off, EAGLE3, ~], eagle_topk: {low: 0, high: 99}}")

    assert [line.split(": ")[1] for line in found] == [
        "space.algorithm[0]", "space.algorithm[2]", "space.eagle_topk.low", "space.eagle_topk.high",
    ]  # fmt: skip


def test_several_disagreements_are_named_together(here):
    """What must hold between keys is checked as a whole, too."""
    found = mistakes("space: {num_steps: null, max_running_requests: 4, drafter: [onw]}\nbudget: {launches: }")

    assert [line.split(": ")[1] for line in found] == [
        "space.num_steps", "space.drafter", "space.max_running_requests", "budget",
    ]  # fmt: skip


def test_a_directory_without_a_checkpoint_is_told_apart_from_none(here):
    """The path is in the message; a drafter that the space does not choose is not looked at."""
    (here / "empty").mkdir()

    assert mistakes("drafters: {own: ./empty, new: ./nope, unused: ./nope}\nspace: {drafter: [own, new]}") == [
        f"x.yaml: drafters.own: {here}/empty: no config.json in it. Give a checkpoint's directory, or a hub name.",
        f"x.yaml: drafters.new: {here}/nope: no such directory. Give a checkpoint's directory, or a hub name.",
    ]


def test_a_drafter_of_the_shipped_config_that_is_not_here_can_be_left_out(here):
    """drafters: of a config and of the words are added up; which of them are there is named."""
    assert mistakes("drafters: {own: ./own, new: ./nope}\nspace: {drafter: [own, new]}") == [
        f"x.yaml: drafters.new: {here}/nope: no such directory. Give a checkpoint's directory, or a hub name. To leave it out: space.drafter=[own]."
    ]


def test_earlier_runs_must_be_there(here):
    """A warm start from nowhere would silently be a cold one; where a run is near, it is named."""
    assert mistakes("warm_start: [./old]") == [f"x.yaml: warm_start: {here}/old: no such directory."]
    RunDir.at(here / "eagle3" / "run1").plan.write_text("a: 1\n")
    (mistake,) = mistakes("warm_start: [./eagle3]")
    assert mistake.endswith(f"neither plan.yaml nor trials/). Did you mean {here}/eagle3/run1 ?")
    assert load("warm_start: [./eagle3/run1]").warm_start == (here / "eagle3" / "run1",)


@pytest.mark.parametrize("algorithm", ["NEXTN", "NGRAM", "EAGLE"])
def test_some_algorithms_need_no_drafter(here, algorithm):
    """NGRAM has none, NEXTN and EAGLE may find their layers in the target."""
    plan = load(f"space: {{algorithm: [none, {algorithm}]}}", "space.drafter=null")

    assert "drafter" not in plan.space.domains


@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE", "DFLASH"])
def test_others_are_refused_without_one(here, algorithm):
    """The server would load the target a second time as its own drafter, and die."""
    assert mistakes(f"space: {{algorithm: {algorithm}, drafter: null}}") == [
        f"x.yaml: space.drafter: missing: {algorithm} needs a drafter. Write drafter: [own, public]."
    ]


def test_without_drafters_the_remedy_names_both_keys(here):
    """There is no name to offer yet."""
    text = "engine: {python: ./p}\ntarget: {path: ./target}\nspace: {algorithm: EAGLE3}"

    assert mistakes(text, base="") == [
        "x.yaml: space.drafter: missing: EAGLE3 needs a drafter. Write drafter: NAME, and drafters: {NAME: path}."
    ]


def test_drafters_without_an_algorithm_are_a_mistake(here):
    """They would be ignored."""
    text = "engine: {python: ./p}\ntarget: {path: ./target}\ndrafters: {a: ./own}"

    assert mistakes(text, base="") == [
        "x.yaml: space.algorithm: missing, though drafters are given. Write e.g. algorithm: [none, EAGLE3]."
    ]


def test_an_unknown_profile_or_drafter_of_one_is_named(here):
    """A simulated engine knows its profile's drafters only."""
    pytest.importorskip("orchestrator.simulator.profile")
    [unknown] = mistakes("engine: {name: simulated, profile: demi}")
    [drafter] = mistakes("engine: {name: simulated}\ndrafters: {onw: /models/onw}")

    assert unknown.startswith("x.yaml: engine.profile: no profile 'demi'")
    assert drafter == "x.yaml: drafters.onw: profile demo knows no such drafter. Did you mean 'own'?"


def test_a_conf_that_is_not_there_gets_the_nearest_name(here):
    """Shipped names and files alike."""
    for word, line in {
        "conf=eagel3": f"command line: conf=eagel3: there is no {ROOT}/conf/eagel3.yaml. Did you mean 'eagle3'?",
        "conf=demo.yaml": "command line: conf=demo.yaml: there is no demo.yaml. Did you mean conf=demo, which is shipped?",
        "conf=./godo.yaml": "command line: conf=./godo.yaml: there is no godo.yaml. Did you mean 'good.yaml'?",
    }.items():
        with pytest.raises(ConfError) as caught:
            load_plan([word])
        assert caught.value.mistakes == [line]


def test_a_sweep_needs_a_conf():
    """Nothing starts by itself; what is shipped is listed.  Only who does not run it may go without."""
    with pytest.raises(ConfError) as caught:
        load_plan(["budget.launches=3", "foo"])

    assert caught.value.mistakes == [
        "command line: 'foo': not key=value, e.g. budget.launches=12",
        "command line: conf=… is missing: a shipped name (demo, eagle3, kimi-k2.5) or a path to a YAML.",
    ]
    assert load_plan(["out=elsewhere"], to_run=False, otherwise="demo").name == "demo"


def test_a_conf_that_is_a_directory_lists_its_yamls(here):
    """The nearest to its name first, each as it can be given."""
    for name in ("alpha.yaml", "sweep.yaml", "sweeps.yml", "notes.txt"):
        (here / "sweeps").mkdir(exist_ok=True)
        (here / "sweeps" / name).touch()
    (here / "empty").mkdir()
    said = "There is: conf=sweeps/sweeps.yml, conf=sweeps/sweep.yaml, conf=sweeps/alpha.yaml."
    for word, line in {
        "conf=./sweeps": f"conf=./sweeps is a directory. {said}",
        "conf=sweeps": f"conf=sweeps is a directory. {said}",
        f"conf={here}/empty": f"conf={here}/empty is a directory. It holds no YAML: give a path to one.",
        "conf=.": "conf=. is a directory. There is: conf=./good.yaml.",
    }.items():
        with pytest.raises(ConfError) as caught:
            load_plan([word])
        assert caught.value.mistakes == [f"command line: {line}"]


def test_defaults_that_are_missing_or_circular_are_named(here):
    """With the chain; the words are looked at all the same."""
    Path("y.yaml").write_text("defaults: [x]")

    assert mistakes("", "foo", base="y, goood") == [
        "command line: 'foo': not key=value, e.g. budget.launches=12",
        "y.yaml: defaults: x → y → x is a circle.",
        "x.yaml: defaults: goood: there is no goood.yaml. Did you mean 'good.yaml'?",
    ]


# Stored and taken up again


def test_a_plan_survives_its_own_yaml(here):
    """plan.yaml holds everything: read again it is an equal Plan, in any directory."""
    plan = load("server_args: {a: ['1e3', '08', 'yes', 12.5]}\nobjective: {at: [8], limits: {itl_p99_ms: 9}}")

    assert plan_from_conf(yaml.safe_load(to_yaml(plan)), plan.name, here / "run") == plan
    assert plan_from_conf(read_yaml(to_yaml(plan), lambda *_: None), plan.name, here / "run") == plan


def test_a_stored_conf_is_checked_like_any_other(here):
    """Someone may have edited it."""
    conf = {**load("").conf, "bugdet": {}}
    with pytest.raises(ConfError) as caught:
        plan_from_conf(conf, "x", here / "run")

    assert caught.value.mistakes == ["run/plan.yaml: bugdet: no such key. Did you mean 'budget'?"]


def test_a_resume_may_change_budget_cluster_interpreter_and_deadlines(here):
    """These say nothing about what is measured."""
    old = load("")
    new = with_words(old, ["budget.launches=99", "cluster.gpus=[0]", "engine.python=./other", "deadlines.load_s=9"])

    assert changed(old, new) == []
    assert (new.budget.launches, new.engine.python, new.name) == (99, str(here / "other"), "x")


def test_whatever_else_a_resume_changes_is_shown_old_to_new(here):
    """A line a key."""
    old = load("")
    new = with_words(
        old,
        ["space.num_steps.high=5", "space.eagle_topk=[1,4,8]", "workload.ignore_eos=true", "space.page_size=16",
         "objective.limits.ttft_p99_ms=500", "sampler.seed=3"],
    )  # fmt: skip

    assert changed(old, new) == [
        "space.num_steps: 1..3 → 1..5",
        "space.eagle_topk: [1, 4] → [1, 4, 8]",
        "workload.ignore_eos: false → true",
        "sampler.seed: null → 3",
        "space.page_size: not given → 16",
        "objective.limits.ttft_p99_ms: not given → 500.0",
    ]


def test_a_resume_derives_anew_what_other_sections_imply(here):
    """max_running_requests follows the concurrency, also when it was held by itself before."""
    assert with_words(load(""), ["workload.concurrency=[256]"]).space.domains["max_running_requests"] == Held(256)


def test_a_resume_keeps_its_conf_and_has_its_words_checked(here):
    """conf= is refused, a mistyped word gets its line."""
    with pytest.raises(ConfError) as caught:
        with_words(load(""), ["conf=demo", "budget.launchs=3"])

    assert caught.value.mistakes == [
        "command line: conf: the config of this run is fixed. Leave conf= out.",
        "command line: budget.launchs: no such key. Did you mean 'launches'?",
    ]


def test_a_mistyped_conf_is_answered_without_the_heavy_libraries():
    """In a fraction of a second: neither Ray nor Optuna nor pandas is imported, nor OmegaConf without a ${reference}."""
    code = (
        "import sys\nfrom orchestrator.config import load_plan\nfrom orchestrator.errors import ConfError\n"
        "try: load_plan(['conf=demo', 'budget.launchs=3'])\nexcept ConfError as e: print(e)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    said, modules = done.stdout.splitlines()

    assert said == "command line: budget.launchs: no such key. Did you mean 'launches'?"
    assert not {"ray", "optuna", "pandas", "scipy", "pyarrow", "torch", "omegaconf"}.intersection(modules.split())


# Rules with a domain

NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6)
SCALARS = (
    st.booleans() | st.integers(-5, 10**6) | st.floats(-1e9, 1e9) | st.text(max_size=6).filter(lambda t: "${" not in t)
)
WORDS = st.lists(st.integers(-5, 10**6) | st.sampled_from(["a", "08", "1e3", "yes"]), min_size=1, max_size=3)
SMALL = {
    "space": st.fixed_dictionaries(
        {
            "num_steps": st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True),
            "eagle_topk": st.integers(1, 64),
            "num_draft_tokens": st.tuples(st.integers(2, 512), st.integers(2, 512)).map(lambda r: {"low": min(r), "high": max(r)}),
            "mem_fraction_static": st.floats(0.01, 1.0),
        }
    ),
    "workload": st.fixed_dictionaries(
        {},
        optional={
            "concurrency": st.lists(st.integers(1, 10**4), min_size=1, max_size=4, unique=True),
            "temperature": st.floats(0, 2),
            "ignore_eos": st.booleans(),
        },
    ),
    "budget": st.fixed_dictionaries({"launches": st.integers(1, 99)}, optional={"hours": st.floats(0, 1e4, exclude_min=True)}),
    "server_args": st.dictionaries(NAMES.map("z{}z".format), SCALARS | WORDS.map(lambda words: [words]), max_size=3),
    "objective": st.fixed_dictionaries({}, optional={"limits": st.dictionaries(st.sampled_from(["ttft_p99_ms", "itl_p50_ms"]), st.floats(0, 1e6))}),
}  # fmt: skip
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(small=st.fixed_dictionaries({}, optional=SMALL))
def test_any_valid_config_round_trips_through_its_yaml(here, small):
    """Whatever the values: written, read by this reader and by the usual one, it is the same Plan."""
    plan = load(write_yaml(small) if small else "")

    assert plan_from_conf(yaml.safe_load(to_yaml(plan)), plan.name, here) == plan
    assert dataclasses.replace(load_stored(plan), name=plan.name) == plan


def load_stored(plan: Plan) -> Plan:
    Path("stored.yaml").write_text(to_yaml(plan))
    return load_plan(["conf=./stored.yaml"])


ALL_KEYS = [
    *[(name,) for name in KEYS],
    *[(section, field.name) for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)],
    *[("objective", name) for name in OBJECTIVE],
    *[("space", name) for name in knobs()],
    *[("objective", "limits", metric.name) for metric in metrics().values() if metric.better == "lower"],
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(ALL_KEYS), data=st.data())
def test_one_wrong_letter_in_any_key_is_reported_with_the_right_name(here, key, data):
    """Added, dropped, changed, or swapped with its neighbour, at any depth."""
    *above, name = key
    wrong = data.draw(one_letter_off(name))
    assume((*above, wrong) not in ALL_KEYS and wrong != "defaults")
    line = mistakes(write_yaml(nested([*above, wrong], 1)), base="good")[0]

    assert line.startswith(f"x.yaml: {'.'.join([*above, wrong])}: no ")
    assert f"'{name}'" in line.partition("Did you mean ")[2]


@st.composite
def one_letter_off(draw, name: str) -> str:
    at, letter = draw(st.integers(0, len(name) - 1)), draw(st.sampled_from(string.ascii_lowercase))
    options = [name[:at] + letter + name[at:], name[:at] + letter + name[at + 1 :]]
    options += [name[:at] + name[at + 1 :]] if len(name) > 2 else []
    options += [name[:at] + name[at + 1] + name[at] + name[at + 2 :]] if at + 1 < len(name) else []
    return draw(st.sampled_from([option for option in options if option != name] or [f"{name}x"]))


def nested(key: list[str], value: object) -> object:
    return {key[0]: nested(key[1:], value)} if key else value


@given(one=NAMES, other=NAMES)
def test_distance_counts_edits(one, other):
    """Nothing between equals, the same both ways, at most the longer name, and small for near names."""
    assert distance(one, one) == 0
    assert distance(one, other) == distance(other, one) <= max(len(one), len(other))
    assert near(one, [one, other])[0] == one


def test_random_prompts_are_fine_without_speculation_and_when_forced(here):
    """Case B01: the same file with no speculation in it is no mistake; with it, a person may say so all the same."""
    plain = {f"space.{name}": "null" for name in ("drafter", "num_steps", "eagle_topk", "num_draft_tokens")}
    words = [f"{key}={value}" for key, value in plain.items()]

    assert load("workload: {prompts: random}\nspace: {algorithm: none}", *words).workload.prompts == "random"
    assert load("workload: {prompts: random, random_prompts: true}").workload.random_prompts


def test_a_server_that_already_runs_has_an_address_and_no_space(here):
    """engine.name: attached: what it runs is not ours to choose, and no GPU of this machine is taken."""

    def alone(engine: str, *words: str) -> Plan:
        Path("x.yaml").write_text(f"engine: {engine}")
        return load_plan(["conf=x.yaml", *words])

    plan = alone("{name: attached, url: 'http://127.0.0.1:30000'}")
    assert (plan.engine.url, plan.cluster.gpus) == ("http://127.0.0.1:30000", "none")
    with pytest.raises(ConfError, match=r"engine\.url: missing: the server that already runs"):
        alone("{name: attached}")
    with pytest.raises(ConfError, match=r"engine\.url: 'server' is no http://host:port"):
        alone("{name: attached, url: server}")
    with pytest.raises(ConfError, match=r"engine\.python: missing: bench_serving is run by the interpreter"):
        alone("{name: attached, url: 'http://127.0.0.1:30000'}", "workload.client=bench_serving")
    for section in ("space", "server_args"):
        with pytest.raises(ConfError) as caught:
            alone(
                "{name: attached, url: 'http://127.0.0.1:30000'}",
                f"{section}={{max_running_requests: 64, page_size: 1}}" if section == "space" else "server_args={a: 1}",
            )
        assert caught.value.mistakes == [
            f"command line: {section}: nothing can be chosen of a server that already runs. Name a config without space and server_args (docs/guide.md has one)."
        ]
