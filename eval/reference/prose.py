"""Real prose for training text: sentences of Markdown and reStructuredText documents, or of the standard library."""

from __future__ import annotations

import ast
import random
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_WORD = re.compile(r"\b[a-z]{3,12}\b")
# Never train on these: they serve as evaluation text elsewhere.
EXCLUDED = ("pydoc_data", "xquad")
TEXT_SUFFIXES = (".md", ".rst", ".txt")


def sentences_of(document: str) -> list[str]:
    """Plain sentences of a Markdown or reStructuredText document, in order; markup-heavy paragraphs are skipped."""
    kept = []
    document = re.sub(r"```.*?```", "\n\n", document, flags=re.S)
    for paragraph in re.split(r"\n\s*\n", document):
        if paragraph.startswith((" ", "\t", "#", "|", "..", ">", "- ", "* ", "<", "`", "[")) or "::" in paragraph:
            continue
        text = re.sub(r"`+", "", " ".join(paragraph.split()))
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)|<[^>]*>|\*\*?|:[a-z]+:|_\b", r"\1", text)
        for sentence in _SENTENCE_END.split(text):
            letters = sum(char.isalpha() or char == " " for char in sentence)
            if (
                30 <= len(sentence) <= 260
                and sentence.isascii()
                and sentence[0].isupper()
                and sentence[-1] in ".!?"
                and letters > 0.88 * len(sentence)
            ):
                kept.append(sentence)
    return kept


def _documents(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        if any(name in str(path) for name in EXCLUDED):
            continue
        if path.is_dir():
            yield from _documents(sorted(item for item in path.iterdir() if item.is_dir() or _readable(item.name)))
        elif ".tar" in path.name:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith(TEXT_SUFFIXES):
                        stream = archive.extractfile(member)
                        if stream is not None:
                            yield stream.read().decode("utf-8", errors="ignore")
        elif path.name.endswith(TEXT_SUFFIXES):
            yield path.read_text(encoding="utf-8", errors="ignore")


def _readable(name: str) -> bool:
    return name.endswith(TEXT_SUFFIXES) or ".tar" in name


def _standard_library() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts or any(name in str(path) for name in EXCLUDED):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield text


class Prose:
    """Sentences of real documents.

    Parameters
    ----------
    source : path or None
        A folder of text files or tar archives, or one archive. None, or a source without text, falls back to the
        docstrings of the standard library, with a line on standard error.
    """

    def __init__(self, source: str | Path | None = None):
        documents = [sentences_of(text) for text in _documents([Path(source)])] if source else []
        if not any(documents):
            print("prose: no documents given, using the standard library's docstrings", file=sys.stderr)
            documents = [sentences_of(text) for text in _standard_library()]
        seen: set[str] = set()  # licence lines and other boilerplate count once
        fresh = ([s for s in kept if not (s in seen or seen.add(s))] for kept in documents)  # type: ignore[func-returns-value]
        self.documents = [kept for kept in fresh if kept]
        words = {word for kept in self.documents for sentence in kept for word in _WORD.findall(sentence)}
        self.words = tuple(sorted(words))

    def run(self, rng: random.Random, count: int) -> list[str]:
        """`count` or fewer consecutive sentences of one document."""
        document = rng.choice(self.documents)
        start = rng.randrange(len(document))
        return document[start : start + count]
