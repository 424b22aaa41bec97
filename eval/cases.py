"""From a question to the case that every mode answers: its chunks, which of them hold the answer, and their orders."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from linearkv import Engine, LinearKVError
from linearkv.eval.questions import EvalQuestion, holds
from linearkv.retrieval import Document, Section, chunk_document, render

GOLD_PLACES = ("first", "middle", "last")
POOL = 500
"""Passages of the question file, drawn at random, that distractors are chosen from where a question has too few."""
DOCUMENT_CHUNKS = 1000
"""Chunks of one document of the store that are searched for the one with the answer."""


@dataclass(frozen=True)
class Order:
    """One order of a case's chunks. `label` is `shuffle` or the place the gold chunk was put: `gold first`, ..."""

    label: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class CaseChunk:
    """A chunk as the question meets it: a name a person recognises, and its text as the prompt has it."""

    name: str
    rendered: str


@dataclass(frozen=True)
class Case:
    """A question with its chunks.

    Attributes:
        chunks: best match of the question first, as retrieval ranks them.
        gold: indices of the chunks that hold the answer; empty where nobody knows.
        orders: which orders are asked.
        note: what a person should know of how the case was made.
    """

    question: EvalQuestion
    chunks: tuple[CaseChunk, ...]
    gold: tuple[int, ...]
    orders: tuple[Order, ...]
    note: str = ""


class CaseMaker:
    """Makes cases of `k` chunks: the gold ones among the most similar others.

    A question with passages of its own draws from those and, where they are fewer than k, from the most similar of
    `POOL` passages of other questions. One without draws from the engine's store.

    Args:
        questions: all of the file, asked or not: the pool of distractors.
        k: chunks of a case; more where a question has more gold ones.
        shuffles: random orders.
        gold_places: whether orders with gold first, in the middle and last come on top, where gold is known.
        seed: a case depends on it, its question and the pool or store alone.
    """

    def __init__(
        self,
        engine: Engine,
        questions: Sequence[EvalQuestion],
        *,
        k: int,
        shuffles: int,
        seed: int,
        gold_places: bool = True,
    ) -> None:
        if k < 1 or shuffles < 1:
            raise ValueError(f"k is {k} and shuffles {shuffles}; both count from 1")
        self.engine, self.questions = engine, questions
        self.k, self.shuffles, self.seed = k, shuffles, seed
        self._gold_places = gold_places

    def case(self, question: EvalQuestion) -> Case:
        """The case of one question.

        Raises:
            LinearKVError: there are no chunks for it, or a gold reference leads nowhere.
        """
        rng = random.Random(f"{self.seed} {question.id}")
        chunks, gold, note = self._of_passages(question) if question.passages else self._of_store(question)
        if not chunks:
            raise LinearKVError(f"question {question.id}: there are no chunks to answer it from")
        return Case(question, tuple(chunks), tuple(gold), tuple(self._orders(len(chunks), gold, rng)), note)

    # Chunks

    def _of_passages(self, question: EvalQuestion) -> tuple[list[CaseChunk], list[int], str]:
        pieces: list[tuple[CaseChunk, bool]] = []
        for index, passage in enumerate(question.passages):
            cut = self._cut(passage.title, passage.text)
            holding = [holds(text, question.answers) for _, text in cut]
            for part, (heading, text) in enumerate(cut):
                name = f"{passage.title or 'passage'} [{index}{f'.{part}' if len(cut) > 1 else ''}]"
                # Of a gold passage that was cut, the parts with the answer are gold; all of it where none has it.
                is_gold = index in question.gold and (holding[part] or not any(holding))
                pieces.append((CaseChunk(name, render(heading, text)), is_gold))
        note = ""
        if len(pieces) < self.k:
            borrowed = self._strangers(question, {chunk.rendered for chunk, _ in pieces})[: self.k - len(pieces)]
            pieces += [(chunk, False) for chunk in borrowed]
            if borrowed:
                note = f"{len(borrowed)} of its chunks are other questions' passages"
            if len(pieces) < self.k:
                note += f"{', and ' if note else ''}there are {len(pieces)} chunks, not {self.k}"
        room = max(0, self.k - sum(is_gold for _, is_gold in pieces))
        kept = []
        for chunk, is_gold in self._ranked(question.question, pieces):
            if is_gold or room:
                kept.append((chunk, is_gold))
                room -= not is_gold
        return [chunk for chunk, _ in kept], [i for i, (_, is_gold) in enumerate(kept) if is_gold], note

    def _of_store(self, question: EvalQuestion) -> tuple[list[CaseChunk], list[int], str]:
        gold, note = self._gold_of_store(question)
        found = [CaseChunk(hit.chunk_id, hit.rendered) for hit in self.engine.search(question.question, self.k)]
        texts = {chunk.rendered for chunk in gold}
        missed = [chunk for chunk in gold if chunk.rendered not in {other.rendered for other in found}]
        notes = [note, f"retrieval had missed {len(missed)} of {len(gold)} gold chunks" if missed else ""]
        # The chunks that rank last make room for them.
        room = max(0, self.k - len(gold))
        kept = []
        for chunk in found:
            if chunk.rendered in texts or room:
                kept.append(chunk)
                room -= chunk.rendered not in texts
        found = kept + missed
        if len(found) < self.k:
            notes.append(f"there are {len(found)} chunks, not {self.k}")
        note = ", and ".join(filter(None, notes))
        if not question.gold_refs:
            texts = {chunk.rendered for chunk in found if holds(chunk.rendered, question.answers)}
        return found, [i for i, chunk in enumerate(found) if chunk.rendered in texts], note

    def _gold_of_store(self, question: EvalQuestion) -> tuple[list[CaseChunk], str]:
        """Its gold chunks in the store, and what to know of them."""
        gold: dict[str, CaseChunk] = {}
        note = ""
        for reference in question.gold_refs:
            if reference in self._by_content:
                gold[reference] = self._by_content[reference]
                continue
            hits = self.engine.search(question.question, DOCUMENT_CHUNKS, where={"path": reference})
            if not hits:
                path, _, rest = reference.rpartition("#")
                hits = self.engine.search(question.question, DOCUMENT_CHUNKS, where={"path": path}) if path else []
                # Small sections are merged under their parent's heading: then any chunk of the document may be meant.
                named = [
                    hit for hit in hits if rest in (hit.heading.rpartition(" > ")[2], hit.chunk_id.rpartition("#")[2])
                ]
                hits = named or hits
            if not hits:
                raise LinearKVError(f"question {question.id}: nothing in the store is called {reference!r}")
            holding = [hit for hit in hits if holds(hit.rendered, question.answers)]
            if not holding:
                note = f"no chunk of {reference} shows an answer: the most similar is taken to hold it"
            gold |= {hit.chunk_id: CaseChunk(hit.chunk_id, hit.rendered) for hit in holding or hits[:1]}
        return list(gold.values()), note

    @cached_property
    def _by_content(self) -> dict[str, CaseChunk]:
        """Chunks of the store by content hash, which is how questions made from the corpus refer to them."""
        return {
            chunk.content_hash: CaseChunk(chunk.content_hash[:16], chunk.rendered) for chunk in self.engine.chunks()
        }

    def _cut(self, title: str, text: str) -> list[tuple[str, str]]:
        """A passage as the index would cut it: (heading, text)."""
        document = Document("passage", text, [Section((title,) if title else (), 1, 0, 0, len(text))], format="text")
        made = chunk_document(document, self.engine.prompt.count_tokens, self.engine.settings.chunk_tokens)
        return [(chunk.heading, chunk.text) for chunk in made]

    def _strangers(self, question: EvalQuestion, known: set[str]) -> list[CaseChunk]:
        """Passages of other questions that do not hold an answer, most similar to the question first."""
        chunks, vectors = self._pool
        scores = self._similar(question.question, vectors)
        ranked = (chunks[i] for i in sorted(range(len(chunks)), key=lambda i: (-scores[i], i)))
        return [
            chunk for chunk in ranked if chunk.rendered not in known and not holds(chunk.rendered, question.answers)
        ]

    @cached_property
    def _pool(self) -> tuple[list[CaseChunk], list[np.ndarray]]:
        """Passages of all questions, at most `POOL` of them, and their vectors."""
        passages = {passage: question.id for question in self.questions for passage in question.passages}
        known = sorted(passages, key=lambda passage: (passage.title, passage.text))
        drawn = random.Random(f"{self.seed} pool").sample(known, min(POOL, len(known)))
        chunks: dict[str, CaseChunk] = {}
        for passage in drawn:
            heading, text = self._cut(passage.title, passage.text)[0]
            chunk = CaseChunk(f"{passage.title or 'passage'} of {passages[passage]}", render(heading, text))
            chunks.setdefault(chunk.rendered, chunk)
        return list(chunks.values()), self.engine.embedder.encode(list(chunks))

    def _ranked(self, question: str, pieces: list[tuple[CaseChunk, bool]]) -> list[tuple[CaseChunk, bool]]:
        """Most similar to the question first, by the store's embedding model."""
        scores = self._similar(question, self.engine.embedder.encode([chunk.rendered for chunk, _ in pieces]))
        return [pieces[i] for i in sorted(range(len(pieces)), key=lambda i: (-scores[i], i))]

    def _similar(self, question: str, vectors: Sequence[np.ndarray]) -> list[float]:
        """Similarity of each text to the question: that of its most similar window."""
        asked = self.engine.embedder.encode_query(question)[0]
        return [float(np.max(rows @ asked)) for rows in vectors]

    # Orders

    def _orders(self, count: int, gold: Sequence[int], rng: random.Random) -> Iterator[Order]:
        everything = list(range(count))
        for _ in range(self.shuffles if count > 1 else 1):
            yield Order("shuffle", tuple(rng.sample(everything, count)))
        if not (self._gold_places and gold) or count < 2:
            return
        others = [i for i in rng.sample(everything, count) if i not in gold]
        for place in GOLD_PLACES:
            at = {"first": 0, "middle": len(others) // 2, "last": len(others)}[place]
            yield Order(f"gold {place}", (*others[:at], *gold, *others[at:]))
