"""Does a drafter fit a target: every deliberate mistake gives exactly its finding, and what is right gives none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.architectures import rewritten
from sweeps.capabilities import can, table
from sweeps.checkpoint import Checkpoint, read_checkpoint
from sweeps.drafter import algorithm_of, inspect_drafter, inspect_own_layers
from sweeps.facts import KNOWN_VERSIONS
from sweeps.finding import Finding
from sweeps.headers import Tensor
from tests.fakes.checkpoints import (
    IDS,
    LLAMA_8B,
    SMOLLM2_TARGET,
    Shapes,
    config,
    eagle3_shapes,
    eagle_shapes,
    head_of,
    write_checkpoint,
    write_real_head,
    write_tokenizer,
)

HEAD = head_of(LLAMA_8B)
TARGET = Checkpoint("target", LLAMA_8B)


def checkpoint(about: dict[str, Any], shapes: Shapes | None = None) -> Checkpoint:
    tensors = None if shapes is None else {name: Tensor("BF16", shape) for name, shape in shapes.items()}
    return Checkpoint("drafter", about, tensors)


def head(shapes: Shapes | None = None, without: tuple[str, ...] = (), **changes: Any) -> Checkpoint:
    """The fit EAGLE3 head with some keys of its config changed (None: null; `without`: left out) or other tensors."""
    about = {name: value for name, value in (HEAD | changes).items() if name not in without}
    return checkpoint(about, eagle3_shapes(HEAD) if shapes is None else shapes)


def said(
    drafter: Checkpoint, target: Checkpoint = TARGET, algorithm: str | None = None, **more: Any
) -> list[tuple[str, str]]:
    """(severity, check) of everything but notes."""
    found = inspect_drafter(drafter, target, algorithm, more.pop("version", "0.5.17"), **more)
    return [(one.severity, one.check) for one in found if one.severity != "note"]


def text_of(drafter: Checkpoint, target: Checkpoint = TARGET, algorithm: str | None = None, **more: Any) -> str:
    return " ".join(map(str, inspect_drafter(drafter, target, algorithm, more.pop("version", "0.5.17"), **more)))


def test_a_real_head_is_fit_for_its_target(tmp_path: Path) -> None:
    """EAGLE3, nothing against it in either known version; and headers cannot show whether it was trained."""
    drafter = read_checkpoint(str(write_real_head(tmp_path / "head")))
    target = Checkpoint("target", SMOLLM2_TARGET)
    assert algorithm_of(drafter) == "EAGLE3"
    for version in KNOWN_VERSIONS:
        found = inspect_drafter(drafter, target, None, version)
        assert [(one.severity, one.check) for one in found] == [("note", "training")]
        assert "a sweep ranks them" in str(found[0]).lower()


# Public heads, by their documented fields

QWEN3_8B = config("Qwen3ForCausalLM", 4096, 36, (32, 8), 151936, model_type="qwen3", head_dim=128, rope_theta=1000000.0)
QWEN3_MOE = config("Qwen3MoeForCausalLM", 2048, 48, (32, 4), 151936, model_type="qwen3_moe", head_dim=128)
QWEN25_VL = config("Qwen2_5_VLForConditionalGeneration", 3584, 28, (28, 4), 152064, model_type="qwen2_5_vl")
GPT_OSS = config("GptOssForCausalLM", 2880, 36, (64, 8), 201088, model_type="gpt_oss", head_dim=64)
KIMI_TEXT = config(
    "DeepseekV3ForCausalLM", 7168, 61, (64, 64), 163840, model_type="kimi_k2", num_nextn_predict_layers=0
)
KIMI = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": KIMI_TEXT}
DEEPSEEK = config(
    "DeepseekV3ForCausalLM", 7168, 61, (128, 128), 129280, model_type="deepseek_v3", num_nextn_predict_layers=1
)
MLA = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

PUBLIC = {
    "Llama 3.1 8B": (LLAMA_8B, head_of(LLAMA_8B, (1, 15, 28))),
    "Qwen3 8B": (QWEN3_8B, head_of(QWEN3_8B, (1, 17, 32))),
    "Qwen3 30B A3B": (QWEN3_MOE, head_of(QWEN3_MOE, (1, 23, 44), num_key_value_heads=4)),
    "Qwen2.5 VL 7B": (QWEN25_VL, head_of(QWEN25_VL, (1, 13, 24), num_attention_heads=28, num_key_value_heads=4)),
    "Kimi K2.5": (KIMI, head_of(KIMI, (2, 30, 58), draft=163840, num_attention_heads=64, num_key_value_heads=64)),
    "Kimi K2.5, the last layer": (KIMI, head_of(KIMI, (2, 30, 60), draft=163840)),
    "DeepSeek V3": (DEEPSEEK, head_of(DEEPSEEK, (1, 29, 57), draft=32000)),
    "without layer ids": (LLAMA_8B, {**head_of(LLAMA_8B), "eagle_config": None}),
    "without an eagle_config": (LLAMA_8B, {n: v for n, v in head_of(LLAMA_8B).items() if n != "eagle_config"}),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_heads_like_the_public_ones_are_fit(name: str) -> None:
    """Llama, Qwen, DeepSeek and Kimi, dense and MoE, with and without a vocabulary of their own."""
    target, about = PUBLIC[name]
    drafter = checkpoint(about, eagle3_shapes(about))
    assert said(drafter, Checkpoint("t", target)) == []


def test_a_head_that_shares_the_target_s_output_has_no_output_of_its_own() -> None:
    """gpt-oss: draft_vocab_size is null, and neither lm_head nor d2t is missing."""
    about = head_of(GPT_OSS, (1, 17, 32), num_attention_heads=64, num_key_value_heads=8, draft_vocab_size=None)
    shapes = {
        name: shape for name, shape in eagle3_shapes(about).items() if name not in ("lm_head.weight", "d2t", "t2d")
    }
    assert said(checkpoint(about, shapes), Checkpoint("t", GPT_OSS)) == []


def test_a_head_with_latent_attention_is_fit() -> None:
    """Kimi's other head: SGLang's Eagle3DeepseekV2ForCausalLM."""
    about = {**head_of(KIMI, (2, 30, 58), draft=163840), "architectures": ["Eagle3DeepseekV2ForCausalLM"], **MLA}
    about |= {"num_attention_heads": 64, "num_key_value_heads": 64, "model_type": "kimi_k2"}
    shapes = {name.replace("midlayer", "layers.0"): shape for name, shape in eagle3_shapes(about).items() if "_proj" not in name or "mlp" in name}  # fmt: skip
    for name, shape in {
        "q_a_proj": (1536, 14336), "q_a_layernorm": (1536,), "q_b_proj": (64 * 192, 1536), "kv_a_proj_with_mqa": (576, 14336),
        "kv_a_layernorm": (512,), "kv_b_proj": (64 * 256, 512), "o_proj": (7168, 64 * 128),
    }.items():  # fmt: skip
        shapes[f"layers.0.self_attn.{name}.weight"] = shape
    assert said(checkpoint(about, shapes), Checkpoint("t", KIMI)) == []
    shapes["layers.0.self_attn.kv_b_proj.weight"] = (64 * 256, 1024)
    assert said(checkpoint(about, shapes), Checkpoint("t", KIMI)) == [("error", "shapes")]


def test_a_wider_target_is_fit_when_the_head_says_so_and_has_an_embedding() -> None:
    """target_hidden_size; then the target's embedding is not shared, and the head's own must be there."""
    about = {**HEAD, "hidden_size": 2048, "intermediate_size": 4096, "target_hidden_size": 4096}
    shapes = {**eagle3_shapes(about), "fc.weight": (2048, 3 * 4096), "embed_tokens.weight": (128256, 2048)}
    assert said(checkpoint(about, shapes)) == []
    del shapes["embed_tokens.weight"]
    assert said(checkpoint(about, shapes)) == [("error", "missing_tensors")]


def test_other_targets_take_other_algorithms() -> None:
    """By the class that config.json names."""
    known = {
        "LlamaForCausalLMEagle3": "EAGLE3", "Eagle3DeepseekV2ForCausalLM": "EAGLE3", "Qwen3ForCausalLMEagle3": "EAGLE3",
        "LlamaForCausalLMEagle": "EAGLE", "Qwen2ForCausalLMEagle": "EAGLE", "DeepseekV3ForCausalLMNextN": "NEXTN",
        "MiMoMTP": "NEXTN", "DeepseekV3ForCausalLM": "NEXTN", "Qwen3MoeForCausalLM": "NEXTN",
        "Gemma4AssistantForCausalLM": "NEXTN", "DFlashDraftModel": "DFLASH", "DSparkDraftModel": "DSPARK",
        "LlamaForCausalLM": "STANDALONE", "Qwen3ForCausalLM": "STANDALONE", "BertModel": None, "": None,
    }  # fmt: skip
    assert {name: algorithm_of(Checkpoint("x", {"architectures": [name]})) for name in known} == known
    assert algorithm_of(Checkpoint("x", {})) is None


# EAGLE3, one mistake at a time


def test_an_eagle3_head_as_eagle_is_an_error_that_names_the_right_algorithm() -> None:
    """Case S01: SGLang serves this without a word, at acceptance length 1.0."""
    for asked in ("EAGLE", "NEXTN"):
        assert said(head(), algorithm=asked) == [("error", "algorithm")]
        assert "Write algorithm: EAGLE3." in text_of(head(), algorithm=asked)
        assert "acceptance length 1.0" in text_of(head(), algorithm=asked)
    assert said(head(), algorithm="EAGLE3") == []


def test_a_head_by_the_name_of_its_target_is_still_a_head() -> None:
    """Case S01: draft_vocab_size gives it away; SGLang would load it as a whole model."""
    disguised = head(architectures=["LlamaForCausalLM"])
    assert algorithm_of(disguised) == "EAGLE3"
    assert said(disguised, algorithm="EAGLE3") == [("error", "architecture")]
    assert said(disguised, algorithm="EAGLE") == [("error", "architecture"), ("error", "algorithm")]
    assert "architectures: [LlamaForCausalLMEagle3]" in text_of(disguised)


def test_layer_ids_at_the_top_of_the_config_are_not_read() -> None:
    """SGLang captures its default layers instead; the remedy shows where they belong."""
    for about in ({"eagle_config": {"use_aux_hidden_state": True}}, {"eagle_config": None}):
        misplaced = head(**about, **{IDS: [1, 13, 28]})
        assert said(misplaced) == [("error", "aux_layers_place")]
        assert f"eagle_config: {{{IDS}: [1, 13, 28]" in text_of(misplaced)


def test_four_layer_ids_at_the_top_do_not_make_fc_wrong_as_well() -> None:
    """One mistake, one finding."""
    shapes = {**eagle3_shapes(HEAD), "fc.weight": (4096, 4 * 4096)}
    assert said(head(shapes, eagle_config={}, **{IDS: [1, 9, 18, 28]})) == [("error", "aux_layers_place")]


@pytest.mark.parametrize(
    "ids", [[1, 13, 31], [13, 1, 28], [1, 1, 28], [1, 13, -1], [1, 13, "28"], [1, 13, 2.5], "1,13,28", [], [1, 13, 99]]
)
def test_layer_ids_must_ascend_within_the_target(ids: Any) -> None:
    """Id i is the output of layer i, captured where layer i+1 begins: the last layer of a Llama is out of reach."""
    assert said(head(eagle_config={IDS: ids})) == [("error", "aux_layers")]


def test_fewer_layers_than_the_head_was_trained_on() -> None:
    """The config names two, fc takes three."""
    assert said(head(eagle_config={IDS: [1, 28]})) == [("error", "fc_width")]
    assert said(head(num_aux_hidden_states=4)) == [("error", "aux_layers")]


def test_a_head_of_one_layer_loses_its_fc() -> None:
    """Its input is as wide as its output, and SGLang takes that for no need of fc."""
    shapes = {**eagle3_shapes(HEAD), "fc.weight": (4096, 4096)}
    assert said(head(shapes, eagle_config={IDS: [28]})) == [("error", "aux_layers")]


def test_a_head_told_to_read_no_layers() -> None:
    """use_aux_hidden_state false."""
    assert said(head(eagle_config={IDS: [1, 13, 28], "use_aux_hidden_state": False})) == [("error", "aux_hidden_state")]


def test_a_head_of_another_width_is_refused_by_its_width_alone() -> None:
    """Case L11: 5120 against 4096, whether the tensors follow the config or not."""
    wide = {**HEAD, "hidden_size": 5120}
    for shapes in (eagle3_shapes(HEAD), eagle3_shapes(wide)):
        assert said(checkpoint(wide, shapes)) == [("error", "hidden_size")]
    text = text_of(checkpoint(wide, eagle3_shapes(wide)))
    assert "5120" in text
    assert "4096" in text


def test_fc_of_another_width() -> None:
    """Trained on four layers; the config names three."""
    assert said(head({**eagle3_shapes(HEAD), "fc.weight": (4096, 4 * 4096)})) == [("error", "fc_width")]


def test_another_vocabulary_than_the_target_s() -> None:
    """The embedding is shared."""
    assert said(head(vocab_size=128258)) == [("error", "vocabulary")]


def test_a_missing_map_of_the_draft_vocabulary() -> None:
    """Case L11: 32,000 of 128,256 tokens, and no d2t to say which."""
    assert said(head({n: s for n, s in eagle3_shapes(HEAD).items() if n != "d2t"})) == [("error", "d2t")]


def test_the_draft_vocabulary_is_the_rows_of_the_output() -> None:
    """Case L11: one finding for lm_head and d2t together; and one where the config does not say."""
    assert said(head(draft_vocab_size=8192)) == [("error", "draft_vocabulary")]
    assert said(head(without=("draft_vocab_size",))) == [("error", "draft_vocabulary")]
    assert said(head(draft_vocab_size=200000)) == [("error", "draft_vocabulary")]


def test_tied_embeddings_leave_the_trained_output_unread() -> None:
    """tie_word_embeddings with a vocabulary of its own, or with lm_head.weight in the files."""
    assert said(head(tie_word_embeddings=True)) == [("error", "tie_word_embeddings")]
    about = head_of(KIMI, (2, 30, 58), draft=163840, tie_word_embeddings=True)
    assert said(checkpoint(about, eagle3_shapes(about)), Checkpoint("t", KIMI)) == [("error", "tie_word_embeddings")]


@pytest.mark.parametrize(
    "name",
    ["fc.weight", "norm.weight", "lm_head.weight", "midlayer.self_attn.k_proj.weight", "midlayer.hidden_norm.weight"],
)
def test_a_tensor_that_is_missing_is_named(name: str) -> None:
    """SGLang leaves it at its initial values without a word."""
    drafter = head({n: s for n, s in eagle3_shapes(HEAD).items() if n != name})
    assert said(drafter) == [("error", "missing_tensors")]
    assert name.removeprefix("midlayer.") in text_of(drafter)


def test_tensors_that_sglang_drops_are_a_warning() -> None:
    """Norms of queries, biases of attention: its class has none."""
    for name in ("midlayer.self_attn.q_norm.weight", "midlayer.self_attn.q_proj.bias", "extra.weight"):
        assert said(head({**eagle3_shapes(HEAD), name: (128,)})) == [("warning", "unexpected_tensors")]


def test_fused_and_quantized_tensors_are_not_missing() -> None:
    """qkv_proj for the three; packed weights under other names and shapes."""
    fused = {
        n: s for n, s in eagle3_shapes(HEAD).items() if not any(part in n for part in ("q_proj", "k_proj", "v_proj"))
    }
    fused["midlayer.self_attn.qkv_proj.weight"] = (6144, 8192)
    assert said(head(fused)) == []
    packed = {
        n.replace("_proj.weight", "_proj.qweight"): (1, 1) if "_proj" in n else s
        for n, s in eagle3_shapes(HEAD).items()
    }
    assert said(head(packed, quantization_config={"quant_method": "gptq"})) == []


def test_norms_that_are_not_switched_on() -> None:
    """The files hold them, config.json does not say so."""
    each = {**eagle3_shapes(HEAD), **{f"aux_norm_{which}.weight": (4096,) for which in ("low", "mid", "high")}}
    assert said(head(each)) == [("error", "norm_switch")]
    assert said(head(each, use_aux_norm=True)) == []
    before = {**eagle3_shapes(HEAD), "input_norm.weight": (3 * 4096,)}
    assert said(head(before)) == [("error", "norm_switch")]
    assert said(head(before, norm_before_fc=True)) == []
    assert said(head(norm_before_fc=True)) == [("error", "missing_tensors")]


def test_attention_of_another_shape_than_the_config() -> None:
    """All of it in one finding."""
    assert said(head(num_key_value_heads=4)) == [("error", "shapes")]


def test_a_short_context_is_refused_with_both_numbers_and_both_remedies() -> None:
    """Case L10: 2048 against 8192; at 2048 it is fit; overridden on purpose it is a warning."""
    short = head(max_position_embeddings=2048)
    text = text_of(short, context_length=8192)
    assert said(short) == said(short, context_length=8192) == [("error", "context_length")]
    for words in (
        "2048",
        "8192",
        "target.context_length=2048",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
        "context_overridden",
    ):
        assert words in text
    assert said(short, context_length=2048) == []
    assert said(short, context_length=8192, context_overridden=True) == [("warning", "context_length")]


def test_a_drafter_is_split_like_its_target() -> None:
    """Heads over GPUs: 32 and 8 over 4 or 16, not over 3; of the target as well."""
    assert [said(head(), tp_size=size) for size in (1, 4, 16)] == [[], [], []]
    assert said(head(), tp_size=3) == [("error", "tensor_parallel"), ("error", "target_split")]


def test_what_may_cost_speed_is_a_warning() -> None:
    """Another rope, another dtype, quantization that the head inherits, keys left to defaults."""
    assert said(head(rope_theta=10000.0)) == [("warning", "rope")]
    assert said(head(torch_dtype="float16")) == [("warning", "dtype")]
    assert said(head(), quantization="fp8") == [("warning", "quantization")]
    assert said(head(without=("rms_norm_eps", "hidden_act"))) == [("warning", "incomplete_config")]


def test_values_of_the_wrong_kind_are_named() -> None:
    """A number in quotes, an activation that SGLang's heads do not know."""
    assert ("error", "config_value") in said(head(num_attention_heads="32"))
    assert said(head(hidden_act="gelu")) == [("error", "hidden_act")]


def test_a_class_that_sglang_does_not_have() -> None:
    """A head must go by the name of one of SGLang's two classes; unknown versions may have more."""
    odd = head(architectures=["Qwen3ForCausalLMEagle3"])
    assert said(odd) == [("error", "architecture")]
    assert said(odd, version="0.9.0") == [("warning", "architecture")]
    assert "LlamaForCausalLMEagle3" in text_of(odd)
    assert said(head(architectures=[])) == [("error", "architecture")]
    assert said(head(architectures=["BertModel"])) == [("error", "architecture")]


@pytest.mark.parametrize(
    ("name", "version", "severities"),
    [
        ("MixtralForCausalLM", "0.5.17", ["error"]),
        ("SomethingNewForCausalLM", "0.5.17", ["error"]),
        ("SomethingNewForCausalLM", "0.6.0", ["warning"]),
        ("Qwen2MoeForCausalLM", "0.5.17", ["error"]),
        ("ExaoneMoeForCausalLM", "0.5.17", ["error"]),
        ("ExaoneMoeForCausalLM", "0.5.23", []),
        ("ExaoneMoeForCausalLM", "0.5.23+cu130", []),
        ("Gemma3ForCausalLM", "0.5.17", []),
    ],
)
def test_the_target_s_class_must_hand_over_what_the_drafter_reads(
    name: str, version: str, severities: list[str]
) -> None:
    """By the table of the version; a version that is not known gets the benefit of the doubt."""
    found = said(head(), Checkpoint("t", {**LLAMA_8B, "architectures": [name]}), version=version)
    assert found == [(severity, "target_class") for severity in severities]


def test_a_target_that_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    """And the drafter's own checks still run."""
    absent = read_checkpoint(str(tmp_path / "absent"))
    assert said(head(), absent) == [("error", "target")]
    assert said(head(num_key_value_heads=4), absent) == [("error", "target"), ("error", "shapes")]


# Other kinds

EAGLE_HEAD = {**config("LlamaForCausalLMEagle", 4096, 1, (32, 8), 128256, rope_theta=500000.0)}


def test_an_eagle_head_is_fit_as_eagle_and_as_nothing_else() -> None:
    """NEXTN is another name of EAGLE."""
    drafter = checkpoint(EAGLE_HEAD, eagle_shapes(EAGLE_HEAD))
    assert said(drafter) == said(drafter, algorithm="EAGLE") == said(drafter, algorithm="NEXTN") == []
    assert said(drafter, algorithm="EAGLE3") == [("error", "algorithm")]
    assert said(drafter, algorithm="STANDALONE") == [("error", "algorithm")]


def test_mistakes_of_eagle_heads() -> None:
    """Width, fc, tensors, the bias that SGLang's class has."""
    shapes = eagle_shapes(EAGLE_HEAD)
    assert said(checkpoint({**EAGLE_HEAD, "hidden_size": 5120}, shapes)) == [("error", "hidden_size")]
    assert said(checkpoint(EAGLE_HEAD, {**shapes, "fc.weight": (4096, 12288)})) == [("error", "fc_width")]
    assert said(checkpoint(EAGLE_HEAD, {n: s for n, s in shapes.items() if n != "fc.bias"})) == [("warning", "fc_bias")]
    assert said(checkpoint(EAGLE_HEAD, {n: s for n, s in shapes.items() if "o_proj" not in n})) == [
        ("error", "missing_tensors")
    ]
    disguised = checkpoint({**EAGLE_HEAD, "architectures": ["LlamaForCausalLM"]}, shapes)
    assert said(disguised, algorithm="EAGLE") == [("error", "architecture")]


def test_a_target_that_drafts_for_itself_needs_the_layers_for_it() -> None:
    """Case L08: NEXTN without a drafter is fine for DeepSeek V3, not for Qwen2."""
    layers = {"model.layers.61.eh_proj.weight": (7168, 14336)}
    assert inspect_own_layers(Checkpoint("t", DEEPSEEK), "NEXTN", "0.5.17") == []
    assert inspect_own_layers(checkpoint(DEEPSEEK, layers), "EAGLE", "0.5.17") == []
    qwen2 = Checkpoint("t", {"architectures": ["Qwen2ForCausalLM"]})
    (finding,) = inspect_own_layers(qwen2, "EAGLE", "0.5.17")
    assert (finding.severity, finding.check) == ("error", "mtp_layers")
    assert "Name a drafter." in str(finding)


def test_layers_that_an_upload_dropped_are_missed() -> None:
    """The config promises them, the files do not hold them; or the config says there are none."""
    dropped = checkpoint(DEEPSEEK, {"model.layers.60.mlp.gate.weight": (4, 4)})
    none = checkpoint({**DEEPSEEK, "num_nextn_predict_layers": 0}, {"model.layers.61.eh_proj.weight": (4, 4)})
    for target in (dropped, none):
        assert [one.check for one in inspect_own_layers(target, "NEXTN", "0.5.17")] == ["mtp_layers"]
    exported = checkpoint(
        {**DEEPSEEK, "architectures": ["DeepseekV3ForCausalLMNextN"]}, {"model.layers.0.eh_proj.weight": (4, 4)}
    )
    assert said(exported, Checkpoint("t", DEEPSEEK), algorithm="NEXTN") == []


def test_a_small_model_needs_the_very_vocabulary_of_the_target(tmp_path: Path) -> None:
    """Case S08: another size; and the same size with two ids swapped."""
    small = config("LlamaForCausalLM", 512, 4, (8, 8), 49152, tie_word_embeddings=True)
    words = {"a": 0, "b": 1, "c": 2}
    target = write_checkpoint(tmp_path / "target", SMOLLM2_TARGET)
    drafter = write_checkpoint(tmp_path / "drafter", small, {"model.norm.weight": (512,)})
    write_tokenizer(target, words)
    write_tokenizer(drafter, words)
    assert said(read_checkpoint(str(drafter)), read_checkpoint(str(target)), "STANDALONE") == []
    write_tokenizer(drafter, words | {"a": 1, "b": 0})
    found = inspect_drafter(read_checkpoint(str(drafter)), read_checkpoint(str(target)), "STANDALONE", "0.5.17")
    assert found[0].check == "tokenizer"
    assert "Same size, different mapping: 2 tokens differ" in str(found[0])
    (drafter / "config.json").write_text(json.dumps({**small, "vocab_size": 49280}))
    assert said(read_checkpoint(str(drafter)), read_checkpoint(str(target)), "STANDALONE") == [("error", "vocabulary")]


def test_a_foreign_small_model_is_refused_by_its_vocabulary() -> None:
    """Case S08: 49,152 tokens against 256,000."""
    bigcode, target = {"architectures": ["GPTBigCodeForCausalLM"], "vocab_size": 49152}, {"vocab_size": 256000}
    assert ("error", "vocabulary") in said(checkpoint(bigcode, {}), Checkpoint("t", target), "STANDALONE")


def test_small_models_that_sglang_takes_for_something_else() -> None:
    """As a drafter, Qwen3MoeForCausalLM is loaded as layers that predict further tokens."""
    moe = checkpoint(QWEN3_MOE, {"lm_head.weight": (151936, 2048)})
    assert ("error", "architecture") in said(moe, Checkpoint("t", QWEN3_8B), "STANDALONE")
    untied = checkpoint(config("LlamaForCausalLM", 512, 4, (8, 8), 49152), {"model.norm.weight": (512,)})
    assert ("error", "tie_word_embeddings") in said(untied, Checkpoint("t", SMOLLM2_TARGET), "STANDALONE")


DFLASH = {
    **config("DFlashDraftModel", 4096, 5, (32, 8), 151936, model_type="qwen3", rope_theta=1000000.0), "block_size": 16,
    "num_target_layers": 36, "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}  # fmt: skip


def dflash_shapes() -> Shapes:
    shapes: Shapes = {"fc.weight": (4096, 5 * 4096), "hidden_norm.weight": (4096,), "norm.weight": (4096,)}
    for layer in range(5):
        shapes |= {f"layers.{layer}.{name}.weight": (4096,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"layers.{layer}.self_attn.{name}_proj.weight": (4096, 4096) for name in "qkvo"}
    return shapes


def test_a_block_drafter_is_fit_for_its_target() -> None:
    """DFLASH for Qwen3 8B; Qwen2 hands over nothing for it."""
    assert said(checkpoint(DFLASH, dflash_shapes()), Checkpoint("t", QWEN3_8B)) == []
    qwen2 = Checkpoint("t", {**QWEN3_8B, "architectures": ["Qwen2ForCausalLM"]})
    assert said(checkpoint(DFLASH, dflash_shapes()), qwen2) == [("error", "target_class")]


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"dflash_config": {"mask_token_id": 151936}}, ("error", "mask_token")),
        ({"dflash_config": {"target_layer_ids": [1, 36]}}, ("error", "target_layers")),
        ({"block_size": 0}, ("error", "block_size")),
        ({"hidden_size": 5120}, ("error", "hidden_size")),
        ({"num_target_layers": 40}, ("warning", "target_layers")),
    ],
)
def test_mistakes_of_block_drafters(change: dict[str, Any], finding: tuple[str, str]) -> None:
    """One at a time, of the config alone."""
    assert said(checkpoint({**DFLASH, **change}), Checkpoint("t", QWEN3_8B)) == [finding]


def test_dspark_needs_its_markov_head() -> None:
    """markov_rank above 0, and a mask token."""
    dspark = {**DFLASH, "architectures": ["DSparkDraftModel"], "markov_rank": 8, "mask_token_id": 151669}
    target = Checkpoint("t", QWEN3_8B)
    assert said(checkpoint(dspark), target) == []
    assert said(checkpoint({**dspark, "markov_rank": 0}), target) == [("error", "markov_rank")]


# Promises


def test_the_table_of_classes_knows_the_versions_that_the_rules_know() -> None:
    """One list of versions, two tables."""
    assert {version for of_class in table().values() for version in of_class} == set(KNOWN_VERSIONS)


def test_the_table_of_classes_says_what_sglang_can_do() -> None:
    """A few of its lines, as they were read from its sources."""
    assert can("LlamaForCausalLM", "0.5.17") == {"eagle3", "dflash", "head"}
    assert can("Qwen2MoeForCausalLM", "0.5.17") == {"eagle3"}
    assert can("Qwen4ExpForConditionalGeneration", "0.5.17") is None
    assert can("NoSuchForCausalLM", "0.6.0") is None
    assert rewritten("DeepseekV32ForCausalLM", "0.5.17") == "DeepseekV3ForCausalLMNextN"
    assert rewritten("LlamaForCausalLM", "0.5.17") is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [*HEAD, *DFLASH, IDS, "target_hidden_size", "num_aux_hidden_states", "text_config", "rope_scaling", "rope_parameters",
     "quantization_config", "norm_before_fc", "fc_norm", "num_nextn_predict_layers", "markov_rank", "dtype"]
)  # fmt: skip
NAMES = st.sampled_from([*eagle3_shapes(HEAD), *eagle_shapes(EAGLE_HEAD), "lm_head.weight", "x", ""]) | st.text(
    max_size=8
)
TENSORS = st.none() | st.dictionaries(
    NAMES, st.builds(Tensor, st.text(max_size=4), st.lists(st.integers(0, 9999), max_size=3).map(tuple)), max_size=30
)
ARCHITECTURES = st.sampled_from(
    ["LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM", "LlamaForCausalLMEagle", "DeepseekV3ForCausalLM",
     "LlamaForCausalLM", "DFlashDraftModel", "DSparkDraftModel", "Gemma4AssistantForCausalLM"]
)  # fmt: skip


@settings(deadline=None)
@given(
    mutations=st.dictionaries(KEYS, VALUES, max_size=6),
    of_target=st.dictionaries(KEYS, VALUES, max_size=4),
    architectures=ARCHITECTURES.map(lambda name: [name]) | VALUES,
    tensors=TENSORS,
    algorithm=st.sampled_from([None, "EAGLE3", "EAGLE", "NEXTN", "STANDALONE", "DFLASH"]),
    tp_size=st.integers(1, 64),
)
def test_no_config_brings_the_inspection_down(
    mutations: dict[str, Any],
    of_target: dict[str, Any],
    architectures: Any,
    tensors: dict[str, Tensor] | None,
    algorithm: str | None,
    tp_size: int,
) -> None:
    """Any values under any keys, any tensors: findings that can be written anywhere, and no traceback."""
    drafter = Checkpoint("d", HEAD | {"architectures": architectures} | mutations, tensors)
    target = Checkpoint("t", LLAMA_8B | of_target)
    found = inspect_drafter(drafter, target, algorithm, "0.5.17", None, tp_size)
    found += inspect_own_layers(dataclasses.replace(target, tensors=tensors), "EAGLE", "0.5.17")
    assert all(isinstance(one, Finding) and str(one).encode() for one in found)
    assert len("".join(map(str, found))) < 100_000
