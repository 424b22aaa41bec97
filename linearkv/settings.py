"""Settings of an engine, each also an environment variable `LINEARKV_<NAME>`."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from linearkv.console import utf8
from linearkv.prompt import DEFAULT_SYSTEM

MIB = 1 << 20
GIB = 1 << 30


class Settings(BaseSettings):
    """What can be tuned. Settings that shape states or chunks are part of their identity: changing one re-indexes."""

    model_config = SettingsConfigDict(env_prefix="LINEARKV_", extra="forbid", frozen=True)

    system_prompt: str = Field(default=DEFAULT_SYSTEM, description="The system prompt every chunk stands behind.")
    chunk_tokens: int = Field(default=512, ge=16, description="Target size of a chunk in model tokens.")
    storage: Literal["fp32", "fp16"] = Field(default="fp16", description="Precision of stored transitions and updates.")
    memory_budget: int = Field(default=2 * GIB, ge=0, description="Bytes of host memory for chunk states.")
    disk_budget: int | None = Field(
        default=64 * GIB, ge=0, description="Bytes of disk for chunk states; none is unlimited."
    )
    max_document_bytes: int = Field(default=64 * MIB, ge=1, description="Larger documents are reported and skipped.")
    batch_tokens: int = Field(default=8192, ge=1, description="Padded tokens per forward pass while indexing.")
    embedder: Path | None = Field(
        default=None, description="A sentence-transformers folder; the packaged MiniLM if none."
    )
    follow_outside: bool = Field(
        default=False, description="Read files that links inside a corpus point to outside of it."
    )

    @field_validator("system_prompt")
    @classmethod
    def _text(cls, value: str) -> str:
        value = utf8(value)
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("it holds bytes that are not UTF-8")
        return value
