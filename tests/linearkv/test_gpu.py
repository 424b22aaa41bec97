"""The same promises on a CUDA device. Run with `make gpu-test`; skipped, with the reason, where there is none."""

import pytest
import torch

from linearkv import Engine, Settings, compose
from linearkv.cache import encode
from linearkv.eval.reference import questions
from linearkv.identity import digest_parameters
from linearkv.models import load_model

pytestmark = pytest.mark.gpu


def relative(actual, expected):
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 5e-2)])
@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_one_chunk_behind_its_prefix_is_exact(tiny_checkpoint, kind, dtype, bound):
    model = load_model(tiny_checkpoint(kind), device="cuda", dtype=dtype)
    prefix = model.prefill_prefix(range(3, 20))
    chunks = [list(range(5, 5 + length)) for length in (1, 3, 63, 64, 65, 200)]
    for ids, state in zip(chunks, model.prefill_chunks(prefix, chunks), strict=True):
        full = model.logits(model.prefill(ids, after=compose(prefix, [])), range(7, 16))
        assert relative(model.logits(compose(prefix, [state]), range(7, 16)), full) < bound, len(ids)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-3), ("bfloat16", 0.5)])
def test_any_number_of_tokens_behind_a_context_is_what_a_cpu_computes(dtype, bound):
    """PyTorch's fused attention is wrong for some lengths where a model has one key head, as this one has."""
    ids = torch.randint(3, 8000, (700,), generator=torch.Generator().manual_seed(0)).tolist()
    here, there = load_model("reference", device="cuda", dtype=dtype), load_model("reference", device="cpu")
    contexts = [(model, compose(model.prefill_prefix(ids[:300]), [])) for model in (here, there)]
    for length in (1, 2, 63, 64, 65, 66, 127, 128, 129, 193, 257, 321):
        found, expected = (
            model.logits(context, ids[300 : 300 + length])[-1].cpu().log_softmax(-1) for model, context in contexts
        )
        likely = expected > -8
        assert (found - expected)[likely].abs().max() < bound, length


def test_parameters_have_the_same_digest_wherever_they_lie():
    """More than are brought over in one piece, and sizes that fill none."""
    chance = torch.Generator().manual_seed(0)
    sizes = {"a": (40 << 20,), "b": (3, 5), "c": (1,), "d": (7, 0)}
    parameters = {name: torch.randn(size, generator=chance).bfloat16() for name, size in sizes.items()}
    moved = {name: tensor.cuda() for name, tensor in parameters.items()}
    assert digest_parameters(moved) == digest_parameters(parameters)


def test_an_engine_indexes_and_answers_on_the_device(tiny_checkpoint, corpus, tmp_path):
    settings = Settings(chunk_tokens=256)
    with Engine.open(tmp_path / "store", tiny_checkpoint("qwen3_5"), device="cuda", settings=settings) as engine:
        assert engine.index(corpus).prefilled == 8
        first = engine.query("Who recast the bell?", k=4, max_new_tokens=8)
    with Engine.open(tmp_path / "store", tiny_checkpoint("qwen3_5"), device="cuda", settings=settings) as engine:
        again = engine.query("Who recast the bell?", k=4, max_new_tokens=8)
    assert (first.text, first.cache.hits) == (again.text, again.cache.hits) == (first.text, 4)


def test_states_stay_on_the_device_within_a_budget(tiny_checkpoint, corpus, tmp_path):
    settings = Settings(chunk_tokens=256, device_budget=1 << 30)
    with Engine.open(tmp_path / "store", tiny_checkpoint("qwen3_5"), device="cuda", settings=settings) as engine:
        engine.index(corpus)
        answers = [engine.query("Who recast the bell?", k=4, max_new_tokens=8) for _ in range(2)]
        assert [answer.cache.tiers for answer in answers] == [{"disk": 4}, {"device": 4}]
        assert answers[0].text == answers[1].text
        assert engine.stats()["tiers"][0]["tier"] == "device"
        assert 0 < engine.stats()["tiers"][0]["bytes"] <= 1 << 30


def test_a_page_goes_to_the_device_and_back(tmp_path):
    tensors = {"a": torch.randn(3, 5, device="cuda").bfloat16(), "b": torch.arange(7), "c": torch.zeros(0, 4)}
    page = encode("0" * 64, tensors, secret=bytes(32))
    assert page.buffer.is_pinned()
    for name, tensor in page.tensors_on(torch.device("cuda")).items():
        assert tensor.is_cuda
        assert torch.equal(tensor.cpu(), tensors[name].cpu())


@pytest.mark.parametrize("order", ["sequential", "bidirectional", "cyclic"])
def test_the_reference_model_composes_as_on_the_cpu(order):
    chunks = [[300 + 7 * i + j % 90 for j in range(40 + 25 * i)] for i in range(6)]
    logits = {}
    for device in ("cpu", "cuda"):
        model = load_model("reference", device=device, dtype="float32")
        prefix = model.prefill_prefix(range(100, 140))
        context = compose(prefix, model.prefill_chunks(prefix, chunks), order=order)
        logits[device] = model.logits(context, range(200, 220)).cpu()
    assert relative(logits["cuda"], logits["cpu"]) < 1e-4


def test_an_evaluation_on_the_device_gives_the_answers_of_the_cpu(tmp_path):
    file = tmp_path / "questions.jsonl"
    questions.main(["--out", str(file), "--count", "4", "--chunks", "5"])
    answers = {}
    for device in ("cpu", "cuda"):
        with Engine.open(tmp_path / device, device=device, dtype="float32") as engine:
            report = engine.evaluate(file, modes=["bidirectional", "zero_start_seam8"], k=5, shuffles=2, timed=1)
        answers[device] = [record["modes"]["bidirectional"]["answers"] for record in report.records]
    assert answers["cuda"] == answers["cpu"]
