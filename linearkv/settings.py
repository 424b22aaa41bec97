"""Settings of an engine, each also an environment variable `LINEARKV_<NAME>`."""

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from linearkv.console import utf8
from linearkv.prompt import DEFAULT_SYSTEM

MIB = 1 << 20
GIB = 1 << 30


def usable_memory() -> int:
    """Bytes of memory this process may use: the machine's, or less where its container or its limits say so."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such control group, or "max"
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return min(limits)


class Settings(BaseSettings):
    """What can be tuned. Settings that shape states or chunks are part of their identity: changing one re-indexes."""

    model_config = SettingsConfigDict(env_prefix="LINEARKV_", env_parse_none_str="none", extra="forbid", frozen=True)

    system_prompt: str = Field(default=DEFAULT_SYSTEM, description="The system prompt every chunk stands behind.")
    chunk_tokens: int = Field(default=512, ge=32, description="Target size of a chunk in model tokens.")
    restore: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Stored states: restored unless prefilling is sooner on this machine, always, or never.",
    )
    storage: Literal["fp32", "fp16", "compact"] = Field(
        default="fp16", description="Precision of stored transitions and updates."
    )
    memory_budget: int = Field(
        default=min(2 * GIB, usable_memory() // 4),
        ge=0,
        description="Bytes of host memory for chunk states; by default a quarter of what there is, at most 2 GiB.",
    )
    device_budget: int = Field(
        default=0, ge=0, description="Bytes of GPU memory for chunk states; without a GPU they are in memory anyway."
    )
    disk_budget: int | None = Field(
        default=64 * GIB, ge=0, description="Bytes of disk for chunk states; none is unlimited."
    )
    cache: Literal["auto", "lmcache", "files"] = Field(
        default="auto",
        description="Who keeps chunk states in host memory: LMCache, or LinearKV alone; by default LMCache where a "
        "tested release of it is installed. What lies on disk is the same.",
    )
    remote: SecretStr | None = Field(
        default=None,
        description="A Redis server behind the disk, redis://[user:password@]host:port, that machines can share; needs "
        "LMCache.",
    )
    remote_days: int = Field(
        default=30, ge=1, description="How long the remote tier keeps a chunk state after its last use."
    )
    max_document_bytes: int = Field(default=64 * MIB, ge=1, description="Larger documents are reported and skipped.")
    batch_tokens: int = Field(default=8192, ge=1, description="Padded tokens per forward pass while indexing.")
    vllm: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of vllm.LLM, as JSON, where vLLM runs the model: max_model_len and so on.",
    )
    embedder: Path | None = Field(
        default=None, description="A sentence-transformers folder; the packaged MiniLM if none."
    )
    follow_outside: bool = Field(
        default=False, description="Read files that links inside a corpus point to outside of it."
    )

    @property
    def remote_url(self) -> str | None:
        """The remote tier's address, password and all."""
        return None if self.remote is None else self.remote.get_secret_value()

    @property
    def page_options(self) -> dict[str, Any]:
        """What `linearkv.cache.open_pages` is told by them."""
        return {
            "memory_bytes": self.memory_budget,
            "disk_bytes": self.disk_budget,
            "backend": self.cache,
            "remote": self.remote_url,
            "remote_days": self.remote_days,
        }

    @field_validator("system_prompt")
    @classmethod
    def _text(cls, value: str) -> str:
        value = utf8(value)
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("it holds bytes that are not UTF-8")
        return value
