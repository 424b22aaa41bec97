"""Engines and files for whole cases, from documents on disk to an answer, as a person meets them."""

import pytest


@pytest.fixture
def open_engine(tiny_model, tmp_path):
    """`open_engine(**options)` -> Engine over `tmp_path/store` with the tiny model; closed after the test."""
    from linearkv.engine import Engine
    from linearkv.settings import Settings

    opened = []

    def get(store="store", model=None, settings=None, **options):
        model = model if model is not None else tiny_model("qwen3_5")
        engine = Engine.open(tmp_path / store, model=model, settings=Settings(**settings or {}), **options)
        opened.append(engine)
        return engine

    yield get
    for engine in opened:
        engine.close()


@pytest.fixture
def write(tmp_path):
    """`write({name: text or bytes})` -> the folder `tmp_path/docs` with these files."""

    def make(files, folder="docs"):
        for name, content in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / folder

    return make


@pytest.fixture
def ask():
    """`ask(engine, question, k)` -> [(document, text)], best first."""

    def get(engine, question, k=1, **options):
        answer = engine.query(question, k=k, max_new_tokens=1, **options)
        return [(source.document, source.text) for source in answer.sources]

    return get


@pytest.fixture
def pages():
    """`pages(engine)` -> {file: inode} of every stored state; a state that is written again has another inode."""

    def get(engine):
        found = engine.store.glob("tenants/*/pages/*/*.safetensors")
        return {path: path.stat().st_ino for path in found}

    return get
