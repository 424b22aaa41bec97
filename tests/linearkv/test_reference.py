"""The model that ships: loaded like any checkpoint, small enough to ship, exact where exactness is promised."""

import pytest

from linearkv import PromptFormat, compose, pack, unpack
from linearkv.models import load_model
from linearkv.models.loading import REFERENCE

LENGTHS = (1, 2, 3, 63, 64, 65, 512)


@pytest.fixture(scope="module")
def model():
    return load_model("reference", device="cpu")


@pytest.fixture(scope="module")
def prompt(model):
    return PromptFormat(REFERENCE, model.vocab_size)


@pytest.fixture(scope="module")
def chunks(prompt):
    """Token ids of each length, from running text."""
    text = "The north pump was replaced in May by Odile Varga, who keeps its spare seals in locker nine. " * 60
    ids = prompt.chunk_ids(text)
    return [ids[7 * n : 7 * n + length] for n, length in enumerate(LENGTHS)]


def relative(actual, expected):
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("ragged", [False, True], ids=["alone", "ragged batch"])
def test_one_chunk_behind_its_prefix_is_exact(model, prompt, chunks, ragged):
    prefix = model.prefill_prefix(prompt.prefix_ids)
    asked = prompt.question_ids("Who replaced the north pump?")
    states = model.prefill_chunks(prefix, chunks) if ragged else [model.prefill_chunks(prefix, [c])[0] for c in chunks]
    for ids, state in zip(chunks, states, strict=True):
        full = model.logits(model.prefill(ids, after=compose(prefix, [])), asked)
        assert relative(model.logits(compose(prefix, [state]), asked), full) < 1e-5, len(ids)


def test_one_chunk_in_fp16_storage_keeps_its_stated_tolerance(model, prompt, chunks):
    """Measured worst case 5e-5 relative in the logits; stated as 2e-4."""
    prefix = model.prefill_prefix(prompt.prefix_ids)
    asked = prompt.question_ids("Who replaced the north pump?")
    for ids, state in zip(chunks, model.prefill_chunks(prefix, chunks), strict=True):
        stored = unpack(pack(state, model.layer_types, "fp16"))
        full = model.logits(model.prefill(ids, after=compose(prefix, [])), asked)
        assert relative(model.logits(compose(prefix, [stored]), asked), full) < 2e-4, len(ids)


def test_one_chunk_in_bfloat16_keeps_its_stated_tolerance(prompt, chunks):
    """Measured worst case 8e-3 relative in the logits with fp16 storage; stated as 3e-2."""
    model = load_model("reference", device="cpu", dtype="bfloat16")
    prefix = model.prefill_prefix(prompt.prefix_ids)
    asked = prompt.question_ids("Who replaced the north pump?")
    for ids, state in zip(chunks, model.prefill_chunks(prefix, chunks), strict=True):
        stored = unpack(pack(state, model.layer_types, "fp16"))
        full = model.logits(model.prefill(ids, after=compose(prefix, [])), asked)
        assert relative(model.logits(compose(prefix, [stored]), asked), full) < 3e-2, len(ids)


def test_its_prompt_has_no_token_it_does_not_know(model, prompt):
    assert max(prompt.prefix_ids + prompt.question_ids("Who?")) < model.vocab_size


def test_what_ships_is_at_most_25_megabytes():
    assert sum(file.stat().st_size for file in REFERENCE.iterdir() if file.is_file()) <= 25_000_000


def test_it_answers_from_its_documents(model, prompt):
    """A sanity check of the whole path on an easy question, not a measure of quality."""
    prefix = model.prefill_prefix(prompt.prefix_ids)
    texts = [
        "# Depot\nThe manager of the depot is Alba Prowse.\n\n",
        "# Garage\nThe manager of the garage is Tom Reed.\n\n",
    ]
    context = compose(prefix, model.prefill_chunks(prefix, [prompt.chunk_ids(text) for text in texts]))
    asked = prompt.question_ids("Who is the manager of the depot?")
    answer = prompt.decode(model.generate(context, asked, 12, stop=tuple(prompt.stop_ids)))
    assert answer.strip() == "Alba Prowse"


def test_its_parameters_are_stored_in_bfloat16():
    from safetensors import safe_open

    with safe_open(REFERENCE / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
