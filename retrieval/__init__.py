"""Retrieval: from folders of documents to the chunks that fit a question. Knows nothing of language models.

One *sync* runs through the files in this order: ``walking`` finds the files, ``decoding`` and ``loaders`` turn each
into ``documents``, ``chunker`` cuts those along their headings to a number of model tokens, ``embedder`` gives each new
chunk its vectors, and ``store`` commits it all, batch by batch. ``syncing`` is the loop around them.

One *search* starts in ``retriever``: ``embedder`` for the question, ``index`` for the nearest vectors, ``store`` for
the chunks that share words with it; both rankings are fused, and the places where each chunk stands are looked up.
"""

from .chunker import Chunk, chunk_document, render
from .documents import Document, Note, Section, Skipped
from .embedder import Embedder, TextEmbedder
from .index import VectorIndex
from .loaders import load
from .retriever import Hit, Retriever
from .store import DocumentStore, StoredChunk, set_aside_damaged
from .syncing import Batch, Progress, SyncReport
from .walking import Found, walk

__all__ = [
    "Batch",
    "Chunk",
    "Document",
    "DocumentStore",
    "Embedder",
    "Found",
    "Hit",
    "Note",
    "Progress",
    "Retriever",
    "Section",
    "Skipped",
    "StoredChunk",
    "SyncReport",
    "TextEmbedder",
    "VectorIndex",
    "chunk_document",
    "load",
    "render",
    "set_aside_damaged",
    "walk",
]
