"""LinearKV: a retrieval engine for RAG on hybrid Gated DeltaNet models."""

__version__ = "0.1.0"
