"""Tiny random checkpoints of every supported class, made once per run, on disk, so that tests load them as users do."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What is restored must not depend on how busy the machine is; the planner's own tests ask for it.
os.environ["LINEARKV_RESTORE"] = "always"

from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Before anything imports Triton: what it defines at import is then interpreted or compiled for good.
    os.environ["TRITON_INTERPRET"] = "1"

# The tests' tensors are tiny: a second thread mostly waits for the first, and where the cores are shared it waits long.
torch.set_num_threads(1)


def _tiny_text_settings() -> dict:
    return {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }


@pytest.fixture(scope="session")
def assert_close():
    """`assert_close(name, reference, actual, ratio)`: the error is at most `ratio` of the reference, in 2-norm.

    Both are compared in float64. A reference of zeros asks for zeros, and NaN or infinity anywhere fails.
    """

    def check(name: str, reference: torch.Tensor, actual: torch.Tensor, ratio: float) -> None:
        assert actual.shape == reference.shape, f"{name}: shape {tuple(actual.shape)}, not {tuple(reference.shape)}"
        assert actual.isfinite().all(), f"{name}: {int((~actual.isfinite()).sum())} values are not finite"
        error = float((actual.double() - reference.double()).norm())
        allowed = ratio * float(reference.double().norm())
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g} ({ratio:g} of the reference)"

    return check


MOE_SETTINGS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def make_tiny_checkpoint(kind: str, folder: Path, seed: int = 0) -> Path:
    """Saves a random checkpoint of `kind`: qwen3_5, qwen3_5_moe, qwen3_next, qwen3_5_multimodal or
    qwen3_5_moe_multimodal."""
    import transformers as hf

    torch.manual_seed(seed)
    settings = _tiny_text_settings()
    if kind == "qwen3_5":
        model = hf.Qwen3_5ForCausalLM(hf.Qwen3_5TextConfig(**settings))
    elif kind == "qwen3_5_moe":
        model = hf.Qwen3_5MoeForCausalLM(hf.Qwen3_5MoeTextConfig(**settings | MOE_SETTINGS))
    elif kind == "qwen3_next":
        model = hf.Qwen3NextForCausalLM(hf.Qwen3NextConfig(**settings | MOE_SETTINGS))
    elif kind == "qwen3_5_multimodal":
        vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
        config = hf.Qwen3_5Config(text_config=settings, vision_config=vision)
        model = hf.Qwen3_5ForConditionalGeneration(config)
    elif kind == "qwen3_5_moe_multimodal":
        vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
        config = hf.Qwen3_5MoeConfig(text_config=settings | MOE_SETTINGS, vision_config=vision)
        model = hf.Qwen3_5MoeForConditionalGeneration(config)
    else:
        raise ValueError(kind)
    # Random initialisation leaves states near zero; spread them, so that a dropped state shows in the logits.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and "embed" not in name:
                parameter.mul_(4)
    model.save_pretrained(folder)
    make_tiny_tokenizer(folder)
    return folder


CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_tokenizer(folder: Path) -> None:
    """Saves a byte-level tokenizer of 256 bytes and a few control tokens: small, and complete for any text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, "<|im_end|>": 1, "<|im_start|>": 2}
    vocabulary |= {symbol: index for index, symbol in enumerate(alphabet, len(vocabulary))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_end|>", "<|im_start|>")])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """`tiny_checkpoint(kind)` -> folder of a random checkpoint."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = make_tiny_checkpoint(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return get


@pytest.fixture(scope="session")
def tiny_model(tiny_checkpoint):
    """`tiny_model(kind, dtype="float32")` -> loaded GDNModel on the CPU."""
    from linearkv.models import load_model

    made: dict = {}

    def get(kind: str, dtype: str = "float32"):
        if (kind, dtype) not in made:
            made[kind, dtype] = load_model(tiny_checkpoint(kind), device="cpu", dtype=dtype)
        return made[kind, dtype]

    return get


# A skip is for what cannot be here: a GPU, a data folder that no user has, or a right that containers withhold.
# A missing package is a broken set-up.
ALLOWED_SKIPS = (
    "needs a CUDA device",
    "needs the data folder",
    "needs the right to mount a file system",
    "needs Chromium",
)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Turns a skip for any other reason into a failure when the whole suite is meant to run (`make test`)."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("LINEARKV_NO_SKIPS"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith(ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"skipped, but nothing may be skipped here: {reason}"


def pytest_collection_modifyitems(config, items):
    """GPU tests run where there is a GPU, and say so where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
