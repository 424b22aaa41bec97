import importlib.util
from pathlib import Path

import pytest

from linearkv.retrieval import Embedder, Retriever

HERE = Path(__file__).parent


def _helper(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hashing = _helper("hashing")


@pytest.fixture(scope="session")
def minilm():
    """The default embedder, read once for all tests."""
    return Embedder()


@pytest.fixture(scope="session")
def measure(minilm):
    """Counts real tokens: MiniLM's word pieces stand in for a language model's."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm.folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture
def write(tmp_path):
    """Write files of a corpus, text or bytes, by their paths; returns the corpus folder."""

    def write(files, folder="corpus"):
        for name, content in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / folder

    return write


@pytest.fixture
def hashing_embedder():
    return hashing.HashingEmbedder()


@pytest.fixture
def quick(tmp_path, hashing_embedder):
    """A retriever on a new store that needs no model."""
    with Retriever(tmp_path / "store", hashing_embedder, hashing.words, 64) as retriever:
        yield retriever


@pytest.fixture
def real(tmp_path, minilm, measure):
    """A retriever on a new store with the default embedder."""
    with Retriever(tmp_path / "store", minilm, measure, 128) as retriever:
        yield retriever


@pytest.fixture
def index_process():
    """The script that indexes in a process of its own."""
    return HERE / "index_process.py"


@pytest.fixture
def words():
    return hashing.words


@pytest.fixture
def hashing_of_width():
    return hashing.HashingEmbedder
