import json
import shutil

import numpy as np
import pytest

from linearkv.errors import LinearKVError, StoreMismatchError
from linearkv.retrieval import Embedder
from linearkv.retrieval import embedder as module

OPENING = "The survey team walked the lower terrace and wrote down the height of every wall they met. " * 24


def test_vectors_have_length_one_and_their_stated_shape(minilm):
    (vector,) = minilm.encode(["The pier has 14 bollards."])
    assert (vector.shape, vector.dtype) == ((1, minilm.dimension), np.float32)
    assert np.linalg.norm(vector[0]) == pytest.approx(1, abs=1e-5)


def test_the_end_of_a_long_text_has_a_vector_of_its_own(minilm):
    one, other = minilm.encode(
        [OPENING + "The beekeeper repairs accordions.", OPENING + "A submarine cable ends here."]
    )
    question = minilm.encode_query("who repairs accordions")
    assert len(one) == len(other) > 1
    assert (question @ one.T).max() > (question @ other.T).max() + 0.1


def test_windows_are_within_the_models_limit_and_reach_the_end(minilm):
    text = " ".join(str(n * 7919) for n in range(2000))
    windows = minilm._windows(text, "document")
    lengths = [len(minilm._loaded().tokenizer(window)["input_ids"]) for window in windows]
    assert max(lengths) <= minilm.window
    assert windows[-1].endswith(text[-20:])


def test_vectors_do_not_depend_on_what_else_is_embedded(minilm):
    texts = ["short", OPENING, "a text of medium length about lamps"]
    together = minilm.encode(texts)
    for text, vectors in zip(texts, together, strict=True):
        np.testing.assert_allclose(minilm.encode([text])[0], vectors, atol=1e-5)


def test_identity_is_of_the_content_and_not_of_the_place(minilm, tmp_path):
    shutil.copytree(minilm.folder, tmp_path / "elsewhere")
    assert Embedder(tmp_path / "elsewhere").identity == minilm.identity


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "1_Pooling/config.json"])
def test_identity_changes_with_weights_tokenizer_and_pooling(minilm, tmp_path, file):
    shutil.copytree(minilm.folder, tmp_path / "model")
    data = bytearray((tmp_path / "model" / file).read_bytes())
    data[-1] ^= 1
    (tmp_path / "model" / file).write_bytes(data)
    assert Embedder(tmp_path / "model").identity != minilm.identity


def test_damaged_packaged_weights_are_refused(minilm, tmp_path, monkeypatch):
    shutil.copytree(minilm.folder, tmp_path / "model")
    with (tmp_path / "model" / "model.safetensors").open("r+b") as file:
        file.seek(50_000_000)
        file.write(b"\x01")
    monkeypatch.setattr(module, "packaged_folder", lambda: tmp_path / "model")
    with pytest.raises(StoreMismatchError, match="reinstall"):
        Embedder().encode(["text"])


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(LinearKVError, match=f"no embedding model in {tmp_path}"):
        Embedder(tmp_path)


def test_prompts_of_a_model_are_used_for_questions(minilm, tmp_path):
    shutil.copytree(minilm.folder, tmp_path / "model")
    config = tmp_path / "model" / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"prompts": {"query": "question: ", "document": ""}}))
    prompted = Embedder(tmp_path / "model").encode_query("lamps")
    np.testing.assert_allclose(prompted, minilm.encode_query("question: lamps"), atol=1e-5)
