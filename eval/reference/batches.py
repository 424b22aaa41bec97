"""Token batches for training, from worker processes, along a curriculum from one short document to twenty long ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .generator import TrainingContext, TrainingContexts
from .prompt import END_OF_TEXT, answer_text, chunk_text, next_turn_text, suffix_text
from .prose import Prose
from .tokenizer import name_pieces

# What a token is, for its weight in the loss.
PADDING, CONTEXT, QUESTION, FACT, TWO_HOP, NONE, QUOTE, FIRST, FIRST_NONE = range(9)
KIND_NAMES = ("padding", "context", "question", "fact", "two_hop", "none", "quote", "first", "first_none")
# FIRST is the first token of a fact's answer: it alone decides which fact is meant, the rest continues it. Giving up is
# decided by its first token, FIRST_NONE, too, and weighs less, lest it become the answer to every question in
# unfamiliar words. Contexts are full of arbitrary words that nothing can predict, so they weigh little.
LOSS_WEIGHTS = (0.0, 0.03, 0.02, 1.0, 1.0, 0.2, 0.3, 3.0, 1.0)
ANSWER_KINDS = {"fact": FACT, "two_hop": TWO_HOP, "none": NONE, "quote": QUOTE, "blank": QUOTE}

# Share of the run at which a stage ends, then (row length, fewest chunks, most chunks, share of rows).
CURRICULUM = (
    (0.03, ((256, 1, 2, 1.0),)),
    (0.08, ((256, 1, 2, 0.2), (512, 1, 4, 0.8))),
    (0.17, ((512, 1, 5, 0.3), (1024, 2, 9, 0.7))),
    (0.40, ((512, 1, 5, 0.12), (1024, 3, 10, 0.33), (1536, 4, 16, 0.55))),
    (1.01, ((512, 1, 5, 0.07), (1024, 3, 10, 0.2), (1536, 5, 16, 0.58), (2560, 8, 20, 0.15))),
)
ROW_LENGTHS_DIVIDE = 15360  # every row length divides it
SPACE = "\u0120"  # what a token of byte-level BPE begins with where a word begins


def bucket_at(fraction: float, rng: random.Random) -> tuple[int, int, int]:
    """(row length, fewest chunks, most chunks) for a batch at this share of the run."""
    shapes = next(shapes for end, shapes in CURRICULUM if fraction < end)
    length, low, high, _ = rng.choices(shapes, [shape[3] for shape in shapes])[0]
    return length, low, high


def encode_context(tokenizer: Tokenizer, sample: TrainingContext, length: int) -> tuple[list[int], list[int]] | None:
    """Token ids and kinds of one conversation, at most `length` of them; None if not even one question fits.

    Every piece is tokenised alone, as the engine does.
    """
    documents = [sample.prefix] if sample.prefix else []
    documents += [chunk_text(heading, text) for heading, text in sample.chunks]
    turns: list[str] = []
    for number, turn in enumerate(sample.turns):
        turns += [(next_turn_text if number else suffix_text)(turn.question), answer_text(turn.answer)]
    pieces = [encoding.ids for encoding in tokenizer.encode_batch_fast(documents + turns)]
    ids: list[int] = []
    for piece in pieces[: len(documents)]:
        ids += piece
    kinds = [CONTEXT] * len(ids)
    questions = pieces[len(documents) :: 2]
    answers = pieces[len(documents) + 1 :: 2]
    added = 0
    for turn, question, answer in zip(sample.turns, questions, answers, strict=True):
        if len(ids) + len(question) + len(answer) > length:
            continue
        ids += question + answer
        kind = ANSWER_KINDS[turn.kind]
        first = {FACT: FIRST, TWO_HOP: FIRST, NONE: FIRST_NONE}.get(kind, kind)
        kinds += [QUESTION] * len(question) + [first] + [kind] * (len(answer) - 1)
        added += 1
    return (ids, kinds) if added else None


class Renaming:
    """Puts arbitrary tokens in the place of a row's answer tokens, everywhere in the row.

    The names and values that a generator can invent begin and go on with few of a vocabulary's tokens, and a model that
    learns to copy those alone miscopies the rest. After this any token of letters may have to be copied.
    """

    ROWS, TOKENS, MOST_FREQUENT = 0.5, 0.6, 8  # share of rows, share of their answers' tokens; rarer in the row than

    def __init__(self, tokenizer: Tokenizer) -> None:
        words = [(token, index) for token, index in tokenizer.get_vocab().items() if token.strip(SPACE).isalpha()]
        inside = sorted(index for token, index in words if not token.startswith(SPACE))
        beginning = sorted(index for token, index in words if token.startswith(SPACE))
        self._pool = {index: pool for pool in (inside, beginning) for index in pool}

    def __call__(self, ids: list[int], kinds: list[int], rng: random.Random) -> list[int]:
        """The row with some of its answers' tokens renamed, one to one; a token that begins a word stays one."""
        if rng.random() >= self.ROWS:
            return ids
        counts = Counter(ids)
        answers = {token for token, kind in zip(ids, kinds, strict=True) if kind in (FIRST, FACT, TWO_HOP)}
        new: dict[int, int] = {}
        taken = set(counts)
        for token in sorted(answers):
            if token in self._pool and counts[token] <= self.MOST_FREQUENT and rng.random() < self.TOKENS:
                other = rng.choice(self._pool[token])
                if other not in taken:
                    taken.add(other)
                    new[token] = other
        return [new.get(token, token) for token in ids]


def make_row(
    contexts: TrainingContexts,
    tokenizer: Tokenizer,
    renaming: Renaming,
    length: int,
    low: int,
    high: int,
    rng: random.Random,
) -> tuple[list[int], list[int]]:
    """One row of at most `length` tokens about `low` to `high` chunks."""
    share = rng.uniform(0.42, 0.74)
    while True:
        count = rng.randint(low, high)
        room = length * share - 20
        mean = min(180.0, max(35.0, room / count))
        chunk_tokens = [max(30, round(mean * rng.uniform(0.6, 1.4))) for _ in range(count)]
        turns = round((length - sum(chunk_tokens)) / 24) + 3
        sample = contexts.sample(chunk_tokens, turns)
        encoded = encode_context(tokenizer, sample, length)
        if encoded is not None:
            ids, kinds = encoded
            return renaming(ids, kinds, rng), kinds
        share = max(0.3, share - 0.1)


class Batches(IterableDataset):
    """Endless batches (ids int32 [B, T], kinds uint8 [B, T]) of `tokens` tokens; T varies along the curriculum."""

    def __init__(
        self, tokenizer: Tokenizer, prose: Prose, tokens: int, progress: Synchronized[float], seed: int, rank: int = 0
    ):
        self.tokenizer, self.prose, self.tokens = tokenizer, prose, tokens
        self.progress, self.seed, self.rank = progress, seed, rank
        self.pad = tokenizer.token_to_id(END_OF_TEXT)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        seed = f"{self.seed} {self.rank} {number}"
        contexts = TrainingContexts(self.prose, hash_seed(seed), name_pieces(self.tokenizer))
        renaming = Renaming(self.tokenizer)
        rng = random.Random(f"rows {seed}")
        step = number
        while True:
            # The shape depends on the step alone, so that several processes work on equal shapes at a time.
            length, low, high = bucket_at(self.progress.value, random.Random(f"shape {self.seed} {step}"))
            step += workers
            rows = self.tokens // length
            ids = np.full((rows, length), self.pad, dtype=np.int32)
            kinds = np.zeros((rows, length), dtype=np.uint8)
            for row in range(rows):
                row_ids, row_kinds = make_row(contexts, self.tokenizer, renaming, length, low, high, rng)
                ids[row, : len(row_ids)] = row_ids
                kinds[row, : len(row_kinds)] = row_kinds
            yield torch.from_numpy(ids), torch.from_numpy(kinds)


def hash_seed(text: str) -> int:
    """A number from text, the same in every process."""
    return random.Random(text).getrandbits(48)


def loader(batches: Batches, workers: int, pin: bool) -> Iterator[Any]:
    """Batches from worker processes, in the order of their steps."""
    made: DataLoader[Any] = DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=3 if workers else None,
        pin_memory=pin,
        multiprocessing_context="fork" if workers else None,
    )
    return iter(made)
