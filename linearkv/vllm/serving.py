"""Stored states for the requests of a vLLM server: found, loaded and composed beside the engine, which goes on.

A context is made by a thread of its own, before its request is scheduled, from the pages of one tenant's store. On a
GPU, copies and compositions run on a stream of their own, a few layers at a time; the engine's step waits for each
layer's part only when it comes to that layer.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from linearkv.cache import NO_TAG, Hit, Miss, NotStored, Page, encode, open_pages
from linearkv.device_states import DeviceStates
from linearkv.errors import LinearKVError
from linearkv.identity import ModelIdentity, chunk_key, prefix_key
from linearkv.planner import IN_MEMORY, Located, Planner, machine
from linearkv.prompt import CONDITIONING
from linearkv.settings import Settings
from linearkv.state_cache import DEVICE, content_tags
from linearkv.states import ChunkState, PrefixState
from linearkv.storage import pack, pack_prefix, unpack, unpack_prefix
from linearkv.tenants import open_tenant
from linearkv.vllm.asked import Compose, Index, Refused
from linearkv.vllm.composed import LAYERS_AT_A_TIME, Composed, compose_in_parts
from linearkv.vllm.counts import Counts
from linearkv.vllm.jobs import Captured
from linearkv.vllm.worker import Worker

_log = logging.getLogger(__name__)

SPEEDS = "speeds-vllm.json"
"""What loading and prefilling take here, beside those of the Python engine, which are others."""
STAGED = 2
"""Parts of a page that are on the GPU at a time: one that is composed, one that arrives."""
ROOM_WAIT_S = 60.0
"""How long a context waits for others to be written. Also a process that ends without closing its engine ends then."""
PREFIXES = 8
"""Prefixes that are kept where the model computes."""


@dataclass
class Options:
    """What `kv_connector_extra_config` may say; everything else is a setting, see `linearkv.Settings`.

    Attributes:
        store: folder of the store; without one, requests from outside are served as any other.
        tenant: whose states.
        conditioning: what chunks were indexed behind, see `Engine.open`.
        loading_bytes: of GPU memory, beside vLLM's own and that of `Settings.device_budget`, that contexts on their way
            may take together. One that needs more is prefilled instead.
    """

    store: str | None = None
    tenant: str = "default"
    conditioning: str = "prefix"
    loading_bytes: int = 4 << 30

    @classmethod
    def read(cls, given: dict[str, Any]) -> "Options":
        """Raises LinearKVError for what is not known."""
        try:
            options = cls(**given)
        except TypeError as error:
            raise LinearKVError(
                f"kv_connector_extra_config has {', '.join(given)}; LinearKV knows store, tenant, "
                "conditioning and loading_bytes"
            ) from error
        if options.conditioning not in CONDITIONING:
            raise LinearKVError(
                f"unknown conditioning {options.conditioning!r}: expected one of {', '.join(CONDITIONING)}"
            )
        return options


@dataclass
class Loading:
    """A context that is being made for one request.

    Attributes:
        asked: as the request says it.
        composed: the context; None if there is none to be had, and `reason` says why.
        hits: chunks whose states are in it.
        bytes: loaded for it from below host memory.
        seconds: that it took.
    """

    asked: Compose
    composed: Composed | None = None
    reason: str = ""
    hits: int = 0
    unknown: list[int] = field(default_factory=list)
    """Chunks, by place, that are not in the store; not looked for are pivots, and a chunk that ends the prompt."""
    bytes: int = 0
    seconds: float = 0.0
    read_s: float = 0.0
    """Of these, until its pages were in host memory and there was room for it."""
    counted: bool = False
    ended: bool = False
    """Nobody waits for it any more."""
    _room: int = 0
    _done: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ready(self, wait: float = 0.0) -> bool:
        """Whether it is made; waits so many seconds for it."""
        return self._done.wait(wait)

    @property
    def told(self) -> str:
        """Why not all was composed, for who asked; what went wrong in a server stays in its log."""
        return "failed: see the server's log" if self.reason.startswith("failed") else self.reason

    def arrived(self) -> bool:
        """Whether a context that is made is on the device in whole."""
        last = self.composed.parts[-1].ready if self.composed is not None else None
        return last is None or last.query()


class Serving:
    """The store of one tenant behind one engine.

    Args:
        worker: of the engine.
        identity: of its model.
        layer_types: of its model.
        primer_ids: ids of the primer, where chunks stand behind one.

    Attributes:
        found: chunks' states so far, by the tier they were found in.
    """

    def __init__(
        self,
        options: Options,
        settings: Settings,
        worker: Worker,
        identity: ModelIdentity,
        layer_types: Sequence[str],
        primer_ids: Sequence[int],
        counts: Counts,
    ) -> None:
        assert options.store is not None
        self.options = options
        self._worker = worker
        self.identity = identity
        self._layer_types = list(layer_types)
        self._policy = settings.storage
        self._conditioning = options.conditioning
        self._primer = list(primer_ids)
        self._counts = counts
        tenant = open_tenant(Path(options.store), options.tenant)
        self._secret = tenant.secret
        self._tag = content_tags(tenant.secret)
        self.pages = open_pages(
            tenant.folder,
            tenant.secret,
            **settings.page_options,
        )
        self._room = _Room(options.loading_bytes)
        self._restore = settings.restore
        self.planner = Planner.read(tenant.folder / SPEEDS, machine(worker.device, identity.digest()))
        on_gpu = worker.device.type != "cpu"
        self._on_device = DeviceStates(settings.device_budget if on_gpu else 0)
        self._stream = torch.cuda.Stream(worker.device) if on_gpu else None
        self.found: dict[str, int] = {}
        self._composed_before: set[tuple[str, bool]] = set()
        self._prefixes: dict[str, PrefixState] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="linearkv-load")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="linearkv-write")
        self._writing: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Writes what was captured, then closes the store."""
        self._room.close()
        self._loader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        self._on_device.clear()
        self.pages.close()
        self.planner.keep()

    # Composing

    def begin(self, asked: Compose, prompt: Sequence[int], again: int | None = None) -> Loading:
        """Starts to make the context of a request, which `Loading.ready` tells the end of.

        Args:
            again: of so many chunks it was made before, so it is made again of no more, whatever is sooner.
        """
        loading = Loading(asked)
        ids = list(prompt)

        def load() -> None:
            if loading.ended:
                loading._done.set()
                return
            started = time.perf_counter()
            pages: dict[str, Page] = {}
            composed = None
            try:
                with torch.inference_mode(), torch.cuda.stream(self._stream):
                    pages = self._load(loading, ids, again)
                composed = loading.composed
            except Refused as error:
                loading.reason = f"refused: {error}"
            except Exception as error:  # whatever it is, the request is prefilled as any other
                _log.exception("A context could not be made; its request is prefilled")
                loading.reason = f"failed: {type(error).__name__}: {error}"
            loading.seconds = time.perf_counter() - started
            with loading._lock:
                loading._done.set()
                ended = loading.ended
            if ended:
                self._let_go(loading)
            self._timed(composed, started + loading.read_s, pages, loading.hits, asked.order)
            del composed
            self._promote(pages)
            if self._stream is not None:
                self._stream.synchronize()  # what pages lie in is not held for copies that are still to come

        self._loader.submit(load)
        return loading

    def settle(self) -> None:
        """Waits until what was begun is done, states that are kept on the GPU included."""
        self._loader.submit(lambda: None).result()
        if self._stream is not None:
            self._stream.synchronize()

    def end(self, loading: Loading) -> None:
        """Lets go of a context that was written, or is not needed any more."""
        if self._stream is not None:
            # The engine may still be reading what is let go of here, and made anew on that stream.
            self._stream.wait_stream(torch.cuda.current_stream())
        with loading._lock:
            loading.ended = True
            done = loading._done.is_set()
        if done:
            self._let_go(loading)

    def _let_go(self, loading: Loading) -> None:
        loading.composed = None
        self._room.release(loading._room)
        loading._room = 0

    def _load(self, loading: Loading, prompt: list[int], again: int | None) -> dict[str, Page]:
        """Makes the context; returns the pages that were brought to the device for it, by key."""
        began = time.perf_counter()
        asked = loading.asked
        prefix_ids, chunks = asked.split(prompt)
        chunks = chunks[: max(0, len(chunks) - asked.pivot)]
        while chunks and len(prefix_ids) + sum(map(len, chunks)) >= len(prompt):
            chunks = chunks[:-1]  # the last token is computed: the answer follows from it
        if len(prefix_ids) >= len(prompt):
            raise Refused("nothing stands behind the prefix")
        if again is not None:
            chunks = chunks[:again]
        keys = [self._chunk_key(prefix_ids, chunk) for chunk in chunks]
        prefix = self._prefix(prefix_ids)
        if prefix is None:
            loading.reason = "the prefix is not in the store"
            loading.unknown = _without(keys, self._held(keys))
            return {}
        if keys and self._restore != "always" and again is None:
            held = self._held(keys)
            if why := self._sooner_to_prefill(prefix, keys, chunks, held):
                loading.reason = f"planned: {why}"
                loading.unknown = _without(keys, held)
                return {}
        if loading.ended:
            return {}
        states, pages = self._states(loading, keys)
        if len(states) < len(chunks):
            loading.reason = f"chunk {len(states)} is not in the store"
        if loading.ended or (not states and not prefix.length):
            return {}
        if self._stream is not None:
            needed = self._gpu_bytes(prefix, states)
            if not self._room.take(needed):
                loading.reason = (
                    f"failed: the context takes {needed} bytes of GPU memory, and of the {self.options.loading_bytes} "
                    f"of loading_bytes so many were not free for {ROOM_WAIT_S:.0f} s"
                )
                return {}
            loading._room = needed
        loading.read_s = time.perf_counter() - began
        loading.composed = compose_in_parts(prefix, states, asked.order, self._layer_types, self._stream)
        loading.hits = len(states)
        return pages

    def _held(self, keys: list[str]) -> dict[str, tuple[str, int]]:
        """Of the states that are stored, tier and bytes to load, by key."""
        here = self._on_device.contains(keys)
        return self.pages.locate([key for key in keys if key not in here]) | dict.fromkeys(here, (DEVICE, 0))

    def _gpu_bytes(self, prefix: PrefixState, states: Sequence[ChunkState | Page]) -> int:
        """What making a context takes of a GPU: the context, and some layers of the pages at a time."""
        tokens = prefix.length + sum(len(_token_ids(state)) for state in states)
        layers, _, heads, size = prefix.key.shape
        per_token = 2 * layers * heads * size * prefix.key.element_size()
        pages = sum(state.nbytes for state in states if isinstance(state, Page))
        return (
            prefix.recurrent.nbytes + tokens * per_token + pages * STAGED * LAYERS_AT_A_TIME // len(self._layer_types)
        )

    def _sooner_to_prefill(
        self, prefix: PrefixState, keys: list[str], chunks: list[list[int]], held: Mapping[str, tuple[str, int]]
    ) -> str:
        """Why a prompt is prefilled though its states are stored, as the setting `restore` and the planner say."""
        if self._restore == "never":
            return "restore is never"
        located = []
        for key, chunk in zip(keys, chunks, strict=True):
            if key not in held:
                break  # what is behind it is prefilled in any case
            located.append(Located(len(chunk), *held[key]))
        return self.planner.sooner_to_prefill(located, prefix.length)

    def _timed(
        self, composed: Composed | None, started: float, pages: Mapping[str, Page], chunks: int, order: str
    ) -> None:
        """Tells the planner what a composition took, with what was brought to the device for it."""
        if composed is None or not chunks:
            return
        if (last := composed.parts[-1].ready) is not None:
            last.synchronize()
        seconds = time.perf_counter() - started
        kind = (order, bool(pages))
        if kind not in self._composed_before:  # kernels may have been compiled for it
            self._composed_before.add(kind)
        elif pages:
            self.planner.saw_load(IN_MEMORY, sum(page.nbytes for page in pages.values()), seconds)
        else:
            self.planner.saw_compose(chunks, seconds)

    def _promote(self, pages: dict[str, Page]) -> None:
        """Keeps states on the device that a request brought there, as long as there is room for all of them."""
        if self._stream is None or not pages:
            return
        try:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                for key, page in pages.items():
                    if not self._on_device.has_room(page.nbytes):
                        return
                    tensors = {**page.tensors_on(self._worker.device), "token_ids": page.tensors["token_ids"].clone()}
                    self._on_device.put(key, page.tag, unpack(tensors))
        except RuntimeError as error:  # no room on the GPU beside the engine; host memory has them
            _log.warning("States are not kept on the GPU: %s", error)

    def _prefix(self, ids: list[int]) -> PrefixState | None:
        """The stored prefix with these ids, on the device."""
        if not ids:
            return self._worker.empty_prefix()
        key = self._prefix_key(ids)
        prefix = self._prefixes.pop(key, None)
        if prefix is None:
            self._await_writes([key])
            found = self.pages.get([key])[key]
            if not isinstance(found, Hit):
                self._counts.add(damaged=int(found.damaged))
                return None
            # A copy, since it stays and must not hold the page.
            tensors = {name: tensor.clone() for name, tensor in found.page.tensors_on(self._worker.device).items()}
            prefix = unpack_prefix(tensors, self._worker.rotary)
            if self._stream is not None:
                self._stream.synchronize()
        self._prefixes[key] = prefix
        while len(self._prefixes) > PREFIXES:
            del self._prefixes[next(iter(self._prefixes))]
        return prefix

    def _states(self, loading: Loading, keys: list[str]) -> tuple[list[ChunkState | Page], dict[str, Page]]:
        """States of the chunks up to the first that is unknown or damaged; and those not on the device, by key."""
        here = self._on_device.get(dict.fromkeys(keys))
        below = [key for key in dict.fromkeys(keys) if key not in here]
        self._await_writes(below)
        started = time.perf_counter()
        found = self.pages.get(below)
        hits = [hit for hit in found.values() if isinstance(hit, Hit)]
        self.planner.saw_reads([(hit.tier, hit.bytes_loaded) for hit in hits], time.perf_counter() - started)
        self._counts.add(damaged=sum(isinstance(result, Miss) and result.damaged for result in found.values()))
        states: list[ChunkState | Page] = []
        pages = {}
        loading.unknown = _without(keys, {*here, *(key for key, result in found.items() if isinstance(result, Hit))})
        for key in keys:
            result = found.get(key)
            if key in here:
                states.append(here[key])
                tier = DEVICE
            elif isinstance(result, Hit):
                states.append(result.page)
                pages[key] = result.page
                tier = result.tier
                loading.bytes += result.bytes_loaded
            else:
                break
            self.found[tier] = self.found.get(tier, 0) + 1
        return states, pages

    # Indexing

    def keep(self, index: Index, prompt: Sequence[int], captured: Captured) -> None:
        """Writes what was captured of a request to index: every later request finds it; on disk it is some moments
        later."""
        ids = list(prompt)
        key = self._prefix_key(ids) if index.kind == "prefix" else self._key(ids[: index.behind], ids[index.behind :])
        with self._lock:
            done = self._writer.submit(self._write, key, index, ids, captured, self._recorded())
            self._writing[key] = done
        done.add_done_callback(partial(self._written, key))

    @property
    def writes(self) -> int:
        """States that wait to be written."""
        with self._lock:
            return len(self._writing)

    def _recorded(self) -> "torch.cuda.Event | None":
        """An event after what the engine has given its device so far."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def _written(self, key: str, done: "Future[None]") -> None:
        with self._lock:
            if self._writing.get(key) is done:
                del self._writing[key]
        if (error := done.exception()) is not None:
            self._counts.add(not_stored=1)
            _log.error("A state was not stored: %s", error)

    def _await_writes(self, keys: Sequence[str]) -> None:
        """Waits for those of `keys` that are being written."""
        with self._lock:
            writing = [self._writing[key] for key in keys if key in self._writing]
        wait(writing)

    def _write(
        self, key: str, index: Index, ids: list[int], captured: Captured, made: "torch.cuda.Event | None"
    ) -> None:
        if made is not None:
            made.synchronize()
        assert captured.conv_tail is not None and captured.key is not None and captured.value is not None
        if index.kind == "prefix":
            assert captured.recurrent is not None
            prefix = PrefixState(
                captured.recurrent,
                captured.conv_tail,
                captured.key,
                captured.value,
                torch.tensor(ids),
                self._worker.rotary,
            )
            page = encode(key, pack_prefix(prefix, self._layer_types), secret=self._secret, kind="prefix")
        else:
            assert captured.transition is not None and captured.update is not None
            state = ChunkState(
                captured.transition,
                captured.update,
                captured.conv_tail,
                captured.key,
                captured.value,
                torch.tensor(ids[index.behind :]),
            )
            tag = self._tag(index.text) if index.text else NO_TAG
            page = encode(key, pack(state, self._layer_types, self._policy), secret=self._secret, tag=tag)
        outcome = self.pages.put([page])[key]
        if isinstance(outcome, NotStored):
            raise LinearKVError(outcome.reason)
        self._counts.add(stored=1)

    # Keys

    def _chunk_key(self, prefix_ids: list[int], ids: list[int]) -> str:
        behind = {"prefix": prefix_ids, "primer": [*prefix_ids, *self._primer], "none": []}[self._conditioning]
        return self._key(behind, ids)

    def _key(self, behind: list[int], ids: list[int]) -> str:
        return chunk_key(
            self._secret,
            self.identity,
            prefix_token_ids=behind or None,
            chunk_token_ids=ids,
            storage_policy=self._policy,
        )

    def _prefix_key(self, ids: list[int]) -> str:
        return prefix_key(self._secret, self.identity, ids)


def _without(keys: Sequence[str], held: Collection[str]) -> list[int]:
    """Places of the keys that are not held."""
    return [place for place, key in enumerate(keys) if key not in held]


def _token_ids(state: ChunkState | Page) -> torch.Tensor:
    return state.token_ids if isinstance(state, ChunkState) else state.tensors["token_ids"]


class _Room:
    """Bytes that several share, each for a while."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = size
        self._changed = threading.Condition()

    def take(self, some: int) -> bool:
        """Waits until there are so many, and takes them; False if there never will be, or none for a minute."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._free >= some or some > self.size, timeout=ROOM_WAIT_S)
            if not free or some > self.size:
                return False
            self._free -= some
        return True

    def close(self) -> None:
        """Nobody waits any more, and nobody gets anything."""
        with self._changed:
            self.size = -1
            self._changed.notify_all()

    def release(self, some: int) -> None:
        with self._changed:
            self._free += some
            self._changed.notify_all()
