"""Chunk states by identity: look them up, prefill what is missing, keep it for next time."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from blake3 import blake3

from linearkv import retrieval
from linearkv.cache import NO_TAG, Hit, NotStored, Page, PageStore, Stored, TierStat, encode
from linearkv.device_states import DeviceStates
from linearkv.identity import ModelIdentity, chunk_key, prefix_key
from linearkv.models import GDNModel
from linearkv.planner import IN_MEMORY, Choice, Located, Planner, Rate
from linearkv.prompt import PromptFormat
from linearkv.states import ChunkState, Context, PrefixState
from linearkv.storage import pack, pack_prefix, unpack

_log = logging.getLogger(__name__)

DEVICE = "device"
"""The tier of states that are where the model computes."""
PART_STATE_BYTES = 2 << 30
"""Bytes of states, in float32, that indexing holds at a time before they are written."""


def content_tags(secret: bytes) -> Callable[[str], str]:
    """What a page says of the text it belongs to, by the text's hash: tells nothing to who has not the secret."""
    key = blake3(secret, derive_key_context="LinearKV content tag 1").digest()
    return lambda content_hash: blake3(content_hash.encode(), key=key).hexdigest()


class ChunkTokens(NamedTuple):
    """A chunk as the model reads it."""

    content_hash: str
    """Of the chunk's text; ties a stored state to the catalogue, so that removed text takes its states along."""
    token_ids: Sequence[int]

    @classmethod
    def of(cls, chunk: retrieval.Hit | retrieval.StoredChunk, prompt: PromptFormat) -> "ChunkTokens":
        """A retrieved or catalogued chunk in the words of one model."""
        return cls(chunk.content_hash, prompt.chunk_ids(chunk.rendered))


@dataclass
class Restored:
    """States of the chunks asked for, in order, and where each came from."""

    states: list[ChunkState]
    tiers: list[str]
    """Per chunk: `device`, `memory`, `disk`, `prefilled` (missing), or `recomputed` (stored, and sooner computed than
    read)."""
    bytes_loaded: int = 0
    damaged: list[str] = field(default_factory=list)
    not_stored: list[str] = field(default_factory=list)


@dataclass
class Filled:
    """What `StateCache.fill` did, in chunks."""

    prefilled: int = 0
    present: int = 0
    not_stored: list[str] = field(default_factory=list)


class StateCache:
    """The states of one model, prefix and tenant, in a page store.

    Every state that leaves this class has been through a page, also when it was just computed, so an answer does not
    depend on whether its chunks were stored before.

    Args:
        model: computes what is missing.
        identity: of `model`; the tenant's `secret`, `behind_ids` and `policy` join it in the keys.
        behind: what chunks are prefilled behind; `model.empty_context()` for states that serve any prompt.
        behind_ids: token ids of it, part of the identity.
        policy: storage policy, see `linearkv.storage`.
        planner: is told what loading and prefilling took.
        device_bytes: of the model's device, for states that stay there.

    Attributes:
        tag: of a text, by its hash; see `content_tags`.
    """

    def __init__(
        self,
        model: GDNModel,
        identity: ModelIdentity,
        pages: PageStore,
        secret: bytes,
        behind: Context,
        *,
        behind_ids: Sequence[int],
        policy: str,
        batch_tokens: int,
        planner: Planner | None = None,
        device_bytes: int = 0,
    ) -> None:
        self.pages = pages
        self._model = model
        self.identity = identity
        self._secret = secret
        self.tag = content_tags(secret)
        self.behind = behind
        self._behind_ids = list(behind_ids) or None
        self._policy = policy
        self._batch_tokens = batch_tokens
        self.planner = planner or Planner()
        self._on_device = DeviceStates(device_bytes)
        self._warned = False

    def key(self, token_ids: Sequence[int]) -> str:
        """The identity of a chunk's state: 64 hex digits."""
        return chunk_key(
            self._secret,
            self.identity,
            prefix_token_ids=self._behind_ids,
            chunk_token_ids=token_ids,
            storage_policy=self._policy,
        )

    def choose(self, chunks: Sequence[ChunkTokens], before: int) -> Choice:
        """What is soonest for a prompt of `chunks`, see `Planner.choose`. Reads no state."""
        keys = [self.key(chunk.token_ids) for chunk in chunks]
        here = self._on_device.contains(keys)
        held = self.pages.locate([key for key in keys if key not in here]) | dict.fromkeys(here, (DEVICE, 0))
        located = [
            Located(len(chunk.token_ids), *held.get(key, (None, 0))) for key, chunk in zip(keys, chunks, strict=True)
        ]
        return self.planner.choose(located, before)

    def restore(self, chunks: Sequence[ChunkTokens], recompute: Collection[int] = ()) -> Restored:
        """States of `chunks` on the model's device, from the fastest tier that has them.

        What is missing is prefilled and stored. Chunks at the places `recompute` are prefilled and their stored states
        left alone.
        """
        keys = [self.key(chunk.token_ids) for chunk in chunks]
        again = {keys[place] for place in recompute}
        wanted = [key for key in dict.fromkeys(keys) if key not in again]
        here = self._on_device.get(wanted)
        self.pages.touch(here)  # what is used here is not the first to go from behind
        started = time.perf_counter()
        found = self.pages.get([key for key in wanted if key not in here])
        hits = [hit for hit in found.values() if isinstance(hit, Hit)]
        self.planner.saw_reads([(hit.tier, hit.bytes_loaded) for hit in hits], time.perf_counter() - started)
        restored = Restored(states=[], tiers=[])
        missing: dict[str, ChunkTokens] = {}
        for key, chunk in zip(keys, chunks, strict=True):
            result = found.get(key)
            if isinstance(result, Hit) or key in again or key in here:
                continue
            if result is not None and result.damaged and key not in missing:
                restored.damaged.append(f"{key[:12]}: {result.reason}")
            missing[key] = chunk
        filled_before = bool(missing) and any(tier.pages for tier in self.pages.stat())
        computed, outcomes = self._prefill(missing)
        _collect(outcomes, restored.not_stored)
        made = self._recomputed({key: chunk for key, chunk in zip(keys, chunks, strict=True) if key in again})
        pages = {key: result.page for key, result in found.items() if isinstance(result, Hit)} | computed
        made |= here | self._unpacked(pages)
        for key in keys:
            result = found.get(key)
            restored.states.append(made[key])
            if isinstance(result, Hit):
                restored.tiers.append(result.tier)
                restored.bytes_loaded += result.bytes_loaded
            else:
                restored.tiers.append(DEVICE if key in here else "recomputed" if key in again else "prefilled")
        if filled_before:
            self._say_if_nothing_fits(restored)
        return restored

    def _unpacked(self, pages: Mapping[str, Page]) -> dict[str, ChunkState]:
        """The states of pages on the model's device, where they stay as long as there is room."""
        started = time.perf_counter()
        states = {key: self._state(page) for key, page in pages.items()}
        self._model.synchronize()
        self.planner.saw_load(IN_MEMORY, sum(page.nbytes for page in pages.values()), time.perf_counter() - started)
        for key, state in states.items():
            self._on_device.put(key, pages[key].tag, state)
        return states

    def _state(self, page: Page) -> ChunkState:
        """The state of a page on the model's device, which may not have it yet."""
        tensors = page.tensors_on(self._model.device)
        # A copy, since a state that stays on the device must not hold the whole page in memory.
        return unpack({**tensors, "token_ids": page.tensors["token_ids"].clone()})

    def stat(self) -> tuple[TierStat, ...]:
        """Counters and fill of every tier, fastest first; the device's only where it may keep something."""
        device = self._on_device.stat()
        return ((device,) if device.budget else ()) + self.pages.stat()

    def close(self) -> None:
        """Lets go of what is on the device, closes the page store, and keeps what the planner saw."""
        self._on_device.clear()
        self.pages.close()
        self.planner.keep()

    def fill(
        self, chunks: Iterable[ChunkTokens], on_progress: Callable[[int], None] | None = None, group: int = 64
    ) -> Filled:
        """Prefills and stores every chunk whose state is not in the store; each group is durable before the next.

        They go to disk alone: memory is for what is asked for, and its use must not grow with the corpus.

        Ends early, and says so, when the store holds no more of them: it evicts the first of these states to take in
        the last, or takes in nothing at all. A write that fails alone is reported and the others go on.

        Args:
            on_progress: called with the number of chunks done since the last call.
            group: chunks looked up, prefilled and written together: bounds memory, and what an interruption costs.
        """
        filled = Filled()
        first: str | None = None
        remaining = iter(chunks)
        while some := list(islice(remaining, group)):
            wanted = {self.key(chunk.token_ids): chunk for chunk in some}
            present = self.pages.contains(wanted)
            self.pages.touch(present)
            first = first or next((key for key in wanted if key in present), None)
            missing = {key: chunk for key, chunk in wanted.items() if key not in present}
            for part in self._parts(missing):
                brought = self._brought(part)
                filled.present += len(brought)
                if on_progress is not None and brought:
                    on_progress(len(brought))
                part = {key: chunk for key, chunk in part.items() if key not in brought}
                if not part:
                    continue
                _, outcomes = self._prefill(part, bulk=True)
                filled.prefilled += len(part)
                _collect(outcomes, filled.not_stored)
                if all(isinstance(outcome, NotStored) and outcome.lasting for outcome in outcomes.values()):
                    filled.not_stored.append("nothing more was prefilled: queries that need the others compute them")
                    return filled
                first = first or next((key for key, done in outcomes.items() if isinstance(done, Stored)), None)
                if first is not None and not self.pages.contains([first]):
                    filled.not_stored.append(
                        "the disk budget holds no more states: queries that need the others prefill them again; "
                        "raise disk_budget to keep all"
                    )
                    return filled
                if on_progress is not None:
                    on_progress(len(part))
            filled.present += len(some) - len(missing)
            if on_progress is not None:
                on_progress(len(some) - len(missing))
        return filled

    def keep_prefix(self, prefix: PrefixState) -> list[str]:
        """Stores the state of the prefix, unless it is stored; returns why it could not be."""
        key = prefix_key(self._secret, self.identity, prefix.token_ids)
        if self.pages.contains([key]):
            return []
        tensors = pack_prefix(prefix, self._model.layer_types)
        outcome = self.pages.put([encode(key, tensors, secret=self._secret, kind="prefix")], bulk=True)[key]
        return [outcome.reason] if isinstance(outcome, NotStored) else []

    def drop_unless(self, live_tags: set[str]) -> int:
        """Removes stored states whose text is not among `live_tags` (see `tag`); returns how many went."""
        kept = live_tags | {NO_TAG}
        self._on_device.keep_only(kept)
        return self.pages.delete([key for key, tag in self.pages.tags().items() if tag not in kept])

    def _say_if_nothing_fits(self, restored: Restored) -> None:
        """One warning when a store has states and none for a question: it was likely filled with other settings."""
        if self._warned or set(restored.tiers) != {"prefilled"} or restored.damaged:
            return
        self._warned = True
        _log.warning(
            "none of the %d chunks had a stored state for this model, system prompt, conditioning and storage policy: "
            "they were prefilled now. Was the store indexed with others?",
            len(restored.tiers),
        )

    def _computed(self, chunks: dict[str, ChunkTokens], rate: Rate) -> list[ChunkState]:
        """Prefilled, in the order given, and timed."""
        started = time.perf_counter()
        states = self._model.prefill_chunks(
            self.behind, [chunk.token_ids for chunk in chunks.values()], batch_tokens=self._batch_tokens
        )
        self._model.synchronize()
        rate.saw(sum(state.length for state in states), time.perf_counter() - started)
        return states

    def _recomputed(self, chunks: dict[str, ChunkTokens]) -> dict[str, ChunkState]:
        """States as they would come back from the store, which has them and is left alone."""
        if not chunks:
            return {}
        states = self._computed(chunks, self.planner.prefill)
        return {
            key: unpack(pack(state, self._model.layer_types, self._policy)).to(self._model.device)
            for key, state in zip(chunks, states, strict=True)
        }

    def _prefill(
        self, missing: dict[str, ChunkTokens], *, bulk: bool = False
    ) -> tuple[dict[str, Page], dict[str, Stored | NotStored]]:
        """Computes the states of `missing` and stores their pages; returns these, and what became of them, by key."""
        if not missing:
            return {}, {}
        states = self._computed(missing, self.planner.indexing if bulk else self.planner.prefill)
        pages = [
            encode(
                key,
                pack(state, self._model.layer_types, self._policy),
                secret=self._secret,
                tag=self.tag(chunk.content_hash),
            )
            for (key, chunk), state in zip(missing.items(), states, strict=True)
        ]
        return {page.key: page for page in pages}, self.pages.put(pages, bulk=bulk)

    def _brought(self, chunks: Mapping[str, ChunkTokens]) -> set[str]:
        """Those of `chunks` whose states a remote tier had and the disk has now."""
        far = [key for key, (tier, _) in self.pages.locate(chunks).items() if tier == "remote"]
        self.pages.get(far)
        return self.pages.contains(far)

    def _parts(self, chunks: dict[str, ChunkTokens]) -> Iterator[dict[str, ChunkTokens]]:
        """Splits `chunks` so that no part holds many more tokens than a batch, nor states of more than
        `PART_STATE_BYTES`, or than a GPU has room for."""
        most = max(1, max(PART_STATE_BYTES, self._model.room_for_states) // self._model.state_bytes)
        part: dict[str, ChunkTokens] = {}
        tokens = 0
        for key, chunk in chunks.items():
            if part and (len(part) == most or tokens + len(chunk.token_ids) > self._batch_tokens):
                yield part
                part, tokens = {}, 0
            part[key] = chunk
            tokens += len(chunk.token_ids)
        if part:
            yield part


def _collect(outcomes: dict[str, Stored | NotStored], reasons: list[str]) -> None:
    """Adds the reasons why pages were not stored, one of each kind: a full disk is full for every page."""
    known = {reason.partition(":")[0] for reason in reasons}
    for outcome in outcomes.values():
        if isinstance(outcome, NotStored) and (kind := outcome.reason.partition(":")[0]) not in known:
            known.add(kind)
            reasons.append(outcome.reason)
