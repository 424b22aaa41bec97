"""Promises of loading: a supported checkpoint loads as it is, and everything else is refused with the reason."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.cache_utils import LinearAttentionLayer

from linearkv.errors import LinearKVError, UnsupportedModelError
from linearkv.models import load_model, loading
from linearkv.models.loading import check_continuation

KINDS = {
    "qwen3_5": ("Qwen3_5ForCausalLM", "qwen3_5"),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", "qwen3_5_moe"),
    "qwen3_next": ("Qwen3NextForCausalLM", "qwen3_next"),
    "qwen3_5_multimodal": ("Qwen3_5ForCausalLM", "qwen3_5"),
    "qwen3_5_moe_multimodal": ("Qwen3_5MoeForCausalLM", "qwen3_5_moe"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
IDS = [5, 300, 7, 7, 44]


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    """A copy of a tiny checkpoint that a test may damage."""
    return shutil.copytree(tiny_checkpoint("qwen3_5"), tmp_path / "checkpoint")


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


# What loads.


@every_kind
def test_logits_are_those_of_the_transformers_class(kind, tiny_checkpoint, tiny_model, assert_close):
    """A multimodal checkpoint gives the text answers of the whole multimodal model."""
    folder = tiny_checkpoint(kind)
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    reference = getattr(transformers, name).from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = reference(input_ids=torch.tensor([IDS])).logits[0]
    model = tiny_model(kind)
    assert type(model.hf).__name__ == KINDS[kind][0]
    assert_close("logits", expected, model.logits(model.empty_context(), IDS), 1e-5)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_cpu_computes_in_float32_unless_asked(dtype, expected, tiny_checkpoint):
    assert load_model(tiny_checkpoint("qwen3_5"), device="cpu", dtype=dtype).dtype == expected


def test_tied_embeddings_are_no_missing_weight(checkpoint):
    edit_config(checkpoint, tie_word_embeddings=True)
    change_weights(checkpoint, lambda weights: weights.pop("lm_head.weight"))
    loaded = load_model(checkpoint).hf
    assert torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)


def test_a_model_that_is_loaded_already_is_used_as_it_is(tiny_checkpoint, tiny_model):
    loaded = transformers.Qwen3_5ForCausalLM.from_pretrained(tiny_checkpoint("qwen3_5"))
    model, other = load_model(loaded), tiny_model("qwen3_5")
    assert model.hf is loaded
    assert model.folder is None
    assert torch.equal(model.logits(model.empty_context(), IDS), other.logits(other.empty_context(), IDS))


# What is refused.


def test_a_model_with_one_key_head_computes_the_same_with_plain_attention(monkeypatch):
    """Which it gets on a GPU, where PyTorch's fused attention is wrong for some lengths."""
    fused = load_model("reference")
    assert fused.identify().attention_backend == "sdpa" and fused.config.num_key_value_heads == 1
    plain = load_model("reference")
    monkeypatch.setattr(type(plain.hf), "device", torch.device("cuda"))
    loading._avoid_wrong_attention(plain.hf)
    monkeypatch.undo()
    assert plain.identify().attention_backend == "eager"
    ids = torch.randint(3, 8000, (365,), generator=torch.Generator().manual_seed(0)).tolist()
    for length in (1, 64, 65):
        found, expected = (model.logits(model.prefill(ids[:300]), ids[300 : 300 + length]) for model in (plain, fused))
        assert (found - expected).norm() < 1e-4 * expected.norm(), length


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in .*nowhere: config.json is missing. .*'reference'"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"{}", b"\xff\xfe\x00", b'{"model_type": "nonesuch"}'])
def test_a_config_that_cannot_be_read(content, checkpoint):
    (checkpoint / "config.json").write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="config.json cannot be read as a model"):
        load_model(checkpoint)


def test_a_config_with_a_value_of_the_wrong_type(checkpoint):
    edit_config(checkpoint, num_hidden_layers="four")
    with pytest.raises(UnsupportedModelError, match="config.json cannot be read as a model.*num_hidden_layers"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        pytest.param(
            transformers.LlamaConfig(architectures=["LlamaForCausalLM"]),
            r"LlamaForCausalLM \(model type 'llama', no layer types",
            id="attention alone",
        ),
        pytest.param(transformers.Mamba2Config(), r"Mamba2Config \(model type 'mamba2'", id="mamba"),
        pytest.param(
            transformers.Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"]),
            r"Lfm2Config \(model type 'lfm2', layer types: conv, full_attention",
            id="convolution",
        ),
        pytest.param(
            transformers.MiniMaxConfig(num_hidden_layers=2),
            r"MiniMaxConfig \(model type 'minimax', layer types: full_attention, linear_attention",
            id="another linear attention",
        ),
    ],
)
def test_another_architecture_is_refused_with_what_was_found_and_what_is_supported(config, found, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=found + ".*Supported: Qwen3_5ForCausalLM.*Qwen3NextForCausalLM"):
        load_model(tmp_path)


@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
def test_layers_of_one_kind_alone_are_no_hybrid(kind, checkpoint):
    edit_config(checkpoint, layer_types=[kind] * 4)
    with pytest.raises(UnsupportedModelError, match=f"layer types: {kind}; LinearKV needs both linear_attention and"):
        load_model(checkpoint)


def test_frequencies_that_change_with_the_length_are_refused(checkpoint):
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.25}
    edit_config(checkpoint, rope_parameters=rope)
    with pytest.raises(UnsupportedModelError, match="rope_type 'dynamic'.* a stored key cannot be moved"):
        load_model(checkpoint)


def test_a_convolution_of_another_width_is_refused(checkpoint):
    edit_config(checkpoint, linear_conv_kernel_dim=3)
    with pytest.raises(UnsupportedModelError, match="short convolution of width 3; LinearKV supports 4"):
        load_model(checkpoint)


def test_a_quantised_checkpoint_is_refused(checkpoint):
    """Read without its scales it would load, and answer nonsense."""
    edit_config(checkpoint, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    with pytest.raises(UnsupportedModelError, match=r"quantised checkpoint \(fp8\).*use the bfloat16 checkpoint"):
        load_model(checkpoint)


def test_a_missing_weight_is_named(checkpoint):
    name = "model.layers.1.linear_attn.in_proj_qkv.weight"
    change_weights(checkpoint, lambda weights: weights.pop(name))
    with pytest.raises(UnsupportedModelError, match=f"no weights for 1 parameters of Qwen3_5ForCausalLM.*{name}"):
        load_model(checkpoint)


def test_a_weight_of_another_shape_is_named(checkpoint):
    name = "model.layers.1.mlp.up_proj.weight"
    change_weights(checkpoint, lambda weights: weights.update({name: torch.zeros(3, 3)}))
    with pytest.raises(UnsupportedModelError, match=re.escape(f"{name} is (3, 3) and should be (96, 64)")):
        load_model(checkpoint)


def test_a_weight_without_a_place_is_named(checkpoint):
    """A checkpoint of more layers than its config says would load, and be another model."""
    name = "model.layers.4.mlp.up_proj.weight"
    change_weights(checkpoint, lambda weights: weights.update({name: torch.zeros(96, 64)}))
    with pytest.raises(UnsupportedModelError, match=f"1 weights that Qwen3_5ForCausalLM has no place for.*{name}"):
        load_model(checkpoint)


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_weight_file_is_refused(kept, checkpoint):
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(UnsupportedModelError, match="weights in .* cannot be read: .*copy the checkpoint again"):
        load_model(checkpoint)


def test_a_folder_without_weights_is_refused(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match="weights in .* cannot be read: .*no file named model.safetensors"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("damaged", "content"),
    [
        ("model-00002-of-*.safetensors", None),
        ("model-00002-of-*.safetensors", b"\x00" * 100),
        ("model.safetensors.index.json", b"{"),
        ("model.safetensors.index.json", b"{}"),
        ("model.safetensors.index.json", None),
    ],
)
def test_a_sharded_checkpoint_with_a_damaged_part_is_refused(damaged, content, tiny_checkpoint, tmp_path):
    transformers.Qwen3_5ForCausalLM.from_pretrained(tiny_checkpoint("qwen3_5")).save_pretrained(
        tmp_path, max_shard_size="200KB"
    )
    (path,) = tmp_path.glob(damaged)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="weights in .* cannot be read: .*copy the checkpoint again"):
        load_model(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "fp32", "int8", ""])
def test_a_dtype_that_is_not_supported_is_refused_by_name(dtype, tiny_checkpoint):
    with pytest.raises(UnsupportedModelError, match=f"dtype '{dtype}' is not supported: expected auto, float32 or bfl"):
        load_model(tiny_checkpoint("qwen3_5"), dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", "mps", "meta", "cpu:x", ""])
def test_a_device_that_is_not_supported_is_refused_by_name(device, tiny_checkpoint):
    with pytest.raises(UnsupportedModelError, match=f"device '{device}' is not supported: expected auto, cpu, cuda or"):
        load_model(tiny_checkpoint("qwen3_5"), device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_cuda_device_that_is_not_there(device, tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        UnsupportedModelError, match=f"device '{device}' was asked for, but torch .* sees no CUDA device"
    ):
        load_model(tiny_checkpoint("qwen3_5"), device=device)


def test_a_loaded_model_without_a_head_is_refused(tiny_checkpoint):
    loaded = transformers.Qwen3_5TextModel.from_pretrained(tiny_checkpoint("qwen3_5"))
    with pytest.raises(UnsupportedModelError, match="Qwen3_5TextModel has no language-model head.*Qwen3_5ForCausalLM"):
        load_model(loaded)


def test_a_module_that_is_no_transformers_model_is_refused():
    with pytest.raises(UnsupportedModelError, match="Linear is not a transformers model; merge adapters"):
        load_model(torch.nn.Linear(2, 2))


# The self-test: an installation of transformers that does not continue a filled cache.


def modeling(kind):
    name = KINDS[kind][1]
    return sys.modules[f"transformers.models.{name}.modeling_{name}"]


def without(function, **dropped):
    """`function`, always called with some arguments replaced."""
    return lambda *args, **kwargs: function(*args, **kwargs | dropped)


def drop_state_of_several_tokens(monkeypatch, kind):
    rule = modeling(kind).torch_chunk_gated_delta_rule
    monkeypatch.setattr(modeling(kind), "torch_chunk_gated_delta_rule", without(rule, initial_state=None))


def drop_state_of_one_token(monkeypatch, kind):
    rule = modeling(kind).torch_recurrent_gated_delta_rule
    monkeypatch.setattr(modeling(kind), "torch_recurrent_gated_delta_rule", without(rule, initial_state=None))


def zero_pad_convolution_of_several_tokens(monkeypatch, kind):
    update = LinearAttentionLayer.update_conv_state

    def only_new(self, conv_states, *args, **kwargs):
        update(self, conv_states, *args, **kwargs)
        return conv_states

    monkeypatch.setattr(LinearAttentionLayer, "update_conv_state", only_new)


def zero_pad_convolution_of_one_token(monkeypatch, kind):
    update = modeling(kind).causal_conv1d_update

    def padded(hidden_states, conv_state, *args):
        return update(hidden_states, torch.zeros_like(conv_state), *args)

    monkeypatch.setattr(modeling(kind), "causal_conv1d_update", padded)


def give_nan(monkeypatch, kind):
    rule = modeling(kind).torch_chunk_gated_delta_rule

    def broken(*args, **kwargs):
        output, state = rule(*args, **kwargs)
        return output * float("nan"), state

    monkeypatch.setattr(modeling(kind), "torch_chunk_gated_delta_rule", broken)


@pytest.mark.parametrize(
    "fault",
    [
        drop_state_of_several_tokens,
        drop_state_of_one_token,
        zero_pad_convolution_of_several_tokens,
        zero_pad_convolution_of_one_token,
        give_nan,
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@every_kind
def test_a_transformers_that_does_not_continue_a_cache_is_refused_by_version(
    kind, dtype, fault, tiny_model, monkeypatch
):
    model = tiny_model(kind, dtype)
    fault(monkeypatch, kind)
    release = re.escape(importlib.metadata.version("transformers"))
    with pytest.raises(
        UnsupportedModelError, match=f"transformers {release} does not continue a filled cache.*pip inst"
    ):
        check_continuation(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@every_kind
def test_a_transformers_that_continues_a_cache_passes(kind, dtype, tiny_model):
    check_continuation(tiny_model(kind, dtype))


def test_loading_runs_the_self_test(tiny_checkpoint, tiny_model, monkeypatch):
    tiny_model("qwen3_5")  # transformers' module is imported
    drop_state_of_several_tokens(monkeypatch, "qwen3_5")
    with pytest.raises(UnsupportedModelError, match="does not continue a filled cache"):
        load_model(tiny_checkpoint("qwen3_5"))


# Packages for GPUs that happen to be installed on a machine without one.


@pytest.fixture
def gpu_packages(tmp_path):
    """A folder with packages that transformers would bind at import, and that fail when they are called."""
    names = {
        "fla": ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"),
        "causal_conv1d": ("causal_conv1d_fn", "causal_conv1d_update"),
    }
    for package, functions in names.items():
        (tmp_path / package).mkdir()
        lines = [f"def {name}(*a, **k): raise RuntimeError('0 active drivers')" for name in functions]
        (tmp_path / package / "__init__.py").write_text("\n".join(lines))
    return tmp_path


def run_python(code, *paths):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=300
    )


def test_gpu_packages_on_a_cpu_machine_change_nothing(gpu_packages, tiny_checkpoint, tiny_model):
    folder = tiny_checkpoint("qwen3_5")
    code = f"""
        import torch
        from linearkv.models import load_model
        model = load_model({str(folder)!r}, device="cpu")
        import fla  # still there for everyone else
        torch.save(model.logits(model.empty_context(), {IDS}), {str(gpu_packages / "logits.pt")!r})
    """
    result = run_python(code, gpu_packages)
    assert result.returncode == 0, result.stderr
    model = tiny_model("qwen3_5")
    logits = torch.load(gpu_packages / "logits.pt")
    torch.testing.assert_close(logits, model.logits(model.empty_context(), IDS), rtol=1e-5, atol=1e-5)


def test_a_transformers_that_bound_gpu_packages_before_is_refused_with_the_reason(gpu_packages, tiny_checkpoint):
    code = f"""
        import transformers.models.qwen3_5.modeling_qwen3_5
        from linearkv.models import load_model
        load_model({str(tiny_checkpoint("qwen3_5"))!r}, device="cpu")
    """
    result = run_python(code, gpu_packages)
    assert "UnsupportedModelError: Qwen3_5ForCausalLM does not run on cpu" in result.stderr
    assert "0 active drivers. On a CPU this happens where fla or causal_conv1d is installed" in result.stderr


def test_refusals_are_errors_of_one_family():
    assert issubclass(UnsupportedModelError, LinearKVError)
