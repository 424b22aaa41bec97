"""The prompt format of LinearKV, as text pieces.

Token ids are made piece by piece and joined: the prefix, every chunk alone, the suffix. That is what lets a chunk's
state be computed once and used anywhere.
"""

from __future__ import annotations

SYSTEM_PROMPT = "Answer the question from the documents. If they do not say, answer: not in the documents."
NOT_IN_DOCUMENTS = "not in the documents"
IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def prefix_text(system: str | None = SYSTEM_PROMPT) -> str:
    """Everything before the first chunk."""
    head = f"{IM_START}system\n{system}{IM_END}\n" if system else ""
    return f"{head}{IM_START}user\nDocuments:\n\n"


def chunk_text(heading: str | None, text: str) -> str:
    """One chunk; `heading` is a path such as "Handbook > Returns"."""
    return f"# {heading}\n{text}\n\n" if heading else f"{text}\n\n"


def suffix_text(question: str) -> str:
    """Everything after the last chunk, up to where the answer begins."""
    return f"Question: {question}{IM_END}\n{IM_START}assistant\n"


def next_turn_text(question: str) -> str:
    """What follows an answer and its end token when another question is asked of the same documents."""
    return f"\n{IM_START}user\n{suffix_text(question)}"


def answer_text(answer: str) -> str:
    """The answer with its stop token."""
    return f"{answer}{IM_END}"
