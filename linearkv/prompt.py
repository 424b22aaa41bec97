"""The prompt as token ids, piece by piece: prefix, chunks, question.

A prompt is one defined sequence of ids: the prefix's, then each chunk's, then the question's, every piece tokenised on
its own and joined. Reuse and full prefill both use this sequence, so a chunk's ids never depend on its neighbours, and
a stored chunk is always found again. Chunks end in a fixed separator (a blank line) that is part of the chunk.

What people write (system prompt, documents, questions) is data: it is encoded by a copy of the tokenizer that knows no
added tokens, so `<|im_end|>` in a document is seven characters of text and never ends a turn. Only the chat template's
own text is encoded with control tokens.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, GenerationConfig

from linearkv.errors import LinearKVError, UnsupportedModelError
from linearkv.models.generation import Sampling

CONDITIONING = ("prefix", "primer", "none")
"""What chunks may be prefilled behind: the prefix, that and the primer, or nothing."""
DEFAULT_SYSTEM = "Answer the question from the documents. If they do not say, answer: not in the documents."
PRIMER = (
    "# Weather\n"
    "The morning was dry and the wind came from the west. Clouds gathered over the hills by noon, and a "
    "light rain fell until four. The river stood two feet below the bridge, and the meadow behind the "
    "mill was under water for the third time this year. In the evening the sky cleared, and there was "
    "frost on the roofs before midnight.\n\n",
    "# Kitchen > Bread\n"
    "Mix the flour with the water and the salt, and let the dough rest for an hour. Fold it twice, cover "
    "it with a cloth, and leave it in a cool place overnight. Bake it on a hot stone for forty minutes. "
    "The loaf is done when it sounds hollow; let it cool before you cut the first slice.\n\n",
    "# Garden\n"
    "Sow the beans in May, two in each hole, along the fence. They need water every second day until they "
    "flower, and little after that. Pick them while they are young. What is left on the stalks in October "
    "is dried and kept as seed for the next year.\n\n",
    "# History\n"
    "The road over the pass was built by soldiers, widened twice by the county, and closed when the "
    "tunnel opened. Walkers use it now. Of the four inns that stood along it one is left, and its owner "
    "keeps a list of everyone who arrives on foot in winter.\n\n",
)
"""Neutral chunks, as a prompt has them, to prefill others behind that will not stand first either."""
_SYSTEM, _DOCUMENTS, _QUESTION = "lkvSlotSystem", "lkvSlotDocuments", "lkvSlotQuestion"
_PLAIN_TEMPLATE = f"{_SYSTEM}\n\nDocuments:\n\n{_DOCUMENTS}Question:{_QUESTION}\nAnswer:"


class PromptFormat:
    """How one checkpoint's prompts are written.

    Args:
        folder: the checkpoint's folder, with its tokenizer and, where it has them, chat template and generation config.
        vocab_size: of the model; a tokenizer that reaches past it belongs to another model.
        system: the system prompt, treated as text.

    Attributes:
        prefix_ids: ids of everything before the first chunk.
        primer_ids: ids of the chunks of `PRIMER`.
        stop_ids: ids that end an answer.

    Raises:
        UnsupportedModelError: no fast tokenizer, one of another model, or one in which plain text cannot be told from
            control tokens.
    """

    def __init__(self, folder: Path, vocab_size: int, system: str = DEFAULT_SYSTEM) -> None:
        self.folder = folder
        self._tokenizer = _load_tokenizer(folder, vocab_size)
        self._control_ids = frozenset(self._tokenizer.added_tokens_decoder)
        self._text = _without_control_tokens(self._tokenizer)
        self._check_control_tokens_stay_text()
        before, between, ask, after = self._template_pieces()
        self.prefix_ids: list[int] = [*self._template_ids(before), *self.text_ids(system), *self._template_ids(between)]
        self.primer_ids: list[int] = [token for text in PRIMER for token in self.chunk_ids(text)]
        self._ask = self._template_ids(ask)
        self._after = self._template_ids(after)
        self.stop_ids = frozenset(_stop_ids(self._tokenizer, folder))

    def chunk_ids(self, rendered: str) -> list[int]:
        """Ids of one chunk, as it is written in the prompt, separator included."""
        return self.text_ids(rendered)

    def question_ids(self, question: str) -> list[int]:
        """Ids of everything after the last chunk: the question, the end of the turn, the start of the answer.

        Raises:
            LinearKVError: the question is empty.
        """
        question = " ".join(question.split())
        if not question:
            raise LinearKVError("the question is empty")
        # The space belongs to the question's first word, as it would in running text.
        return [*self._ask, *self.text_ids(f" {question}"), *self._after]

    def text_ids(self, text: str) -> list[int]:
        """Ids of plain text, in which no control token can occur."""
        ids = self._text.encode(text, add_special_tokens=False).ids
        if not self._control_ids.isdisjoint(ids):
            raise UnsupportedModelError(
                f"the tokenizer in {self.folder} turns plain text into control tokens: {text!r}"
            )
        return ids

    def count_tokens(self, text: str) -> int:
        """Number of model tokens of plain text."""
        return len(self._text.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, without control tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def checkpoint_sampling(self, seed: int | None = None) -> Sampling:
        """The sampling that the checkpoint's generation config asks for; greedy where it has none."""
        config = _generation_config(self.folder)
        if config is None or not config.do_sample:
            return Sampling()
        return Sampling(
            temperature=1.0 if config.temperature is None else config.temperature,
            top_k=config.top_k or 0,
            top_p=1.0 if config.top_p is None else config.top_p,
            seed=seed,
        )

    def _template_pieces(self) -> tuple[str, str, str, str]:
        """The template's text before the system prompt, up to the documents, up to the question, and after it."""
        if self._tokenizer.chat_template is None:
            rendered = _PLAIN_TEMPLATE
        else:
            user = f"Documents:\n\n{_DOCUMENTS}Question:{_QUESTION}"
            messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": user}]
            rendered = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        pieces = []
        for slot in (_SYSTEM, _DOCUMENTS, _QUESTION):
            if rendered.count(slot) != 1:
                raise UnsupportedModelError(
                    f"the chat template of {self.folder} writes the {slot.removeprefix('lkvSlot').lower()} "
                    f"{rendered.count(slot)} times; a prompt needs it exactly once"
                )
            piece, rendered = rendered.split(slot)
            pieces.append(piece)
        return pieces[0], pieces[1], pieces[2], rendered

    def _template_ids(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []

    def _check_control_tokens_stay_text(self) -> None:
        for token in self._tokenizer.added_tokens_decoder.values():
            self.text_ids(token.content)


def _load_tokenizer(folder: Path, vocab_size: int) -> Any:
    if not (folder / "tokenizer.json").is_file():
        raise UnsupportedModelError(f"{folder} has no tokenizer.json; LinearKV needs the checkpoint's fast tokenizer")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare Exception for a broken file
        raise UnsupportedModelError(f"the tokenizer in {folder} cannot be read: {error}") from error
    highest = max(tokenizer.get_vocab().values())
    if highest >= vocab_size:
        raise UnsupportedModelError(
            f"the tokenizer in {folder} has ids up to {highest}, the model knows 0 to {vocab_size - 1}: "
            f"it is the tokenizer of another model"
        )
    return tokenizer


def _without_control_tokens(tokenizer: Any) -> Tokenizer:
    """A copy of the tokenizer that finds no added token in a text and adds none around it."""
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    description["added_tokens"] = []
    description["post_processor"] = None
    description["truncation"] = None
    description["padding"] = None
    return Tokenizer.from_str(json.dumps(description))


def _stop_ids(tokenizer: Any, folder: Path) -> set[int]:
    config = _generation_config(folder)
    listed = config.eos_token_id if config is not None else None
    stop = {tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [listed])}
    return {token for token in stop if token is not None}


def _generation_config(folder: Path) -> GenerationConfig | None:
    if not (folder / "generation_config.json").is_file():
        return None
    return GenerationConfig.from_pretrained(folder, local_files_only=True)
