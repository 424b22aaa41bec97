"""Engines over small corpora, with a tiny random model and the real embedder."""

from pathlib import Path

import pytest

TOPICS = [
    ("lamp", "The harbour lamp burns olive oil and is lit at dusk by Ilse Brandt."),
    ("rope", "The blue rope is forty metres long and hangs in the east shed."),
    ("bell", "The bell was recast in 1911 by the foundry of Anselm Korte."),
    ("ferry", "The night ferry leaves at 23:40 from the north pier."),
    ("cook", "The cook keeps saffron in the tin marked with a star."),
    ("vault", "The vault opens with two keys, one held by the mayor."),
    ("kiln", "The kiln reaches nine hundred degrees before the glaze is fired."),
    ("mill", "The mill grinds rye on Tuesdays and oats on Fridays."),
]


def write_corpus(folder: Path, copies: int = 1) -> Path:
    """Eight short documents, `copies` variants of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for copy in range(copies):
        for name, text in TOPICS:
            suffix = "" if copies == 1 else f" This is note {copy} of the {name} book."
            (folder / f"{name}{copy}.md").write_text(f"# The {name}\n\n{text}{suffix}\n")
    return folder


@pytest.fixture
def corpus(tmp_path):
    """A folder of eight short Markdown documents."""
    return write_corpus(tmp_path / "docs")


@pytest.fixture
def open_engine(tiny_model, tmp_path):
    """`open_engine(**options)` -> Engine over `tmp_path/store` with the tiny model; closed after the test."""
    from linearkv.engine import Engine
    from linearkv.settings import Settings

    opened = []

    def get(store="store", model=None, settings=None, **options):
        given = {"chunk_tokens": 256} | (settings or {})
        model = model if model is not None else tiny_model("qwen3_5")
        engine = Engine.open(tmp_path / store, model=model, settings=Settings(**given), **options)
        opened.append(engine)
        return engine

    yield get
    for engine in opened:
        engine.close()
