"""Trains the reference model's tokenizer: byte-level BPE in which a copied word keeps its tokens.

A name is written in a document after a space, and at the start of an answer without one. Were the space part of the
word's token, as is usual, the two would be different tokens and copying a name would mean translating it. Here only
common function words carry their space; every other word and its preceding space are separate tokens. Digits are
taken in pairs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .generator import TrainingContexts
from .prompt import END_OF_TEXT, IM_END, IM_START, SYSTEM_PROMPT, chunk_text
from .prose import Prose

VOCABULARY = 8192
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
FUNCTION_WORDS = (
    "the of and to in a is for it at that on with as be by are or from this an can not was has its which will "
    "if have you when must may we all but one their there they only no any who more these were our what used "
    "been other than then up does do how did his her she he into so such also some your them had where after "
    "before every each until would should about out over between most many both under while because"
)
PATTERN = (
    rf" (?:{'|'.join(FUNCTION_WORDS.split())})(?![A-Za-z0-9'\-_])"  # " the"
    r"|[A-Za-z][a-z]*"  # one capital at most: "McKay" is two words
    r"|[^\W\d_A-Za-z]+"  # letters beyond ASCII
    r"|\d{1,2}"
    r"|\n+"
    r"|[ \t]+"
    r"|[^\w\s]{1,3}|_"
    r"|\s"
)
# The template of the product's prompt: documents arrive inside the user's message.
CHAT_TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' %}"
    "{{- '<|im_start|>system\\n" + SYSTEM_PROMPT + "<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def training_text(prose: Prose, contexts: int, seed: int = 0) -> Iterator[str]:
    """Text the merges are learned from: real prose, generated documents and their questions."""
    for document in prose.documents:
        yield " ".join(document)
    made = TrainingContexts(prose, seed)
    for _ in range(contexts):
        sample = made.sample([random.Random(seed).randint(40, 200)] * 6, turns=8)
        for heading, text in sample.chunks:
            yield chunk_text(heading, text)
        for turn in sample.turns:
            yield f"{turn.question}\n{turn.answer}"


def train_tokenizer(prose: Prose, contexts: int = 3000, vocabulary: int = VOCABULARY) -> Tokenizer:
    """A tokenizer of `vocabulary` tokens, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Every pair of digits is a token, however rare.
    pairs = [f"{number:02d}" for number in range(100)] * 2000
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )

    def text() -> Iterator[str]:
        yield from training_text(prose, contexts)
        yield " ".join(pairs)

    tokenizer.train_from_iterator(text(), trainer)
    return tokenizer


def name_pieces(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Tokens of letters, in lower case or with a capital first: material for invented names and words."""
    return tuple(
        sorted(
            token
            for token in tokenizer.get_vocab()
            if token.isascii() and token.isalpha() and token[1:] == token[1:].lower() and len(token) <= 7
        )
    )


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the files that `AutoTokenizer.from_pretrained(folder)` reads."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
