"""What the engine returns: answers with their sources, what was reused, what it cost, and reports of long work."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Source(NamedTuple):
    """One chunk the answer was given from."""

    document: str
    """Path of the document, relative to what was indexed."""
    heading: str
    score: float
    """Of the search; higher is better, comparable within one answer only."""
    position: int
    """Place in the prompt, from 0."""
    text: str
    chunk_id: str
    line_start: int
    line_end: int
    also_in: tuple[str, ...]
    """Other documents that hold the very same chunk."""


@dataclass(frozen=True)
class CacheUse:
    """Where an answer's work came from. Tokens are of the whole prompt: prefix, chunks and question."""

    chunks: int
    hits: int
    """Chunks whose state was found in a tier."""
    reused_tokens: int
    computed_tokens: int
    bytes_loaded: int
    """Read from disk for this answer."""
    tiers: dict[str, int] = field(default_factory=dict)
    """Chunks by where their state came from: `device`, `memory`, `disk`, `prefilled` (missing, computed now),
    `recomputed` (stored, and sooner computed than read), `pivot` (prefilled for real on purpose) or `full` (full
    prefill)."""
    damaged: list[str] = field(default_factory=list)
    """Stored states that failed their check, with the reason; each was computed again and written anew."""
    not_stored: list[str] = field(default_factory=list)
    """Why states computed for this answer could not be kept for the next (disk full, budget)."""
    plan: str = ""
    """Why not every stored state was restored, see `linearkv.planner`; empty if every one was."""

    @property
    def prompt_tokens(self) -> int:
        """What full prefill computes."""
        return self.reused_tokens + self.computed_tokens

    @property
    def reuse(self) -> float:
        """Share of the prompt's tokens that were not computed for this answer."""
        return self.reused_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True)
class Timings:
    """Seconds. `ttft_s` is what a person waits for the first token, retrieval included."""

    retrieve_s: float
    restore_s: float
    """States from tiers to the model's device, missing ones prefilled."""
    compose_s: float
    prefill_s: float
    """Of the question, and of pivot chunks; in mode full, of everything."""
    ttft_s: float
    decode_s: float
    """From the first token to the last."""


@dataclass(frozen=True)
class Answer:
    text: str
    sources: list[Source]
    cache: CacheUse
    timings: Timings
    mode: str
    """`full`, or the order with its pivot: `bidirectional`, `sequential_pivot1`, ..."""
    finish: str
    """`stop`: a stop token; `length`: `max_new_tokens` reached; `no documents`: nothing is indexed or was found."""
    tokens: int
    """Answer tokens generated, the stop token not counted."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        cache = asdict(self.cache) | {"prompt_tokens": self.cache.prompt_tokens, "reuse": self.cache.reuse}
        sources = [source._asdict() for source in self.sources]
        return asdict(self) | {"sources": sources, "cache": cache}


class SkippedFile(NamedTuple):
    """A file, or a record of one, that is not in the index, and why."""

    path: str
    reason: str


@dataclass
class IndexReport:
    """What one `index` run did. Counts of documents, except where it says otherwise."""

    documents: int = 0
    """In the store after the run."""
    chunks: int = 0
    """In the store after the run."""
    added: int = 0
    unchanged: int = 0
    updated: int = 0
    renamed: int = 0
    removed: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a person should know of indexed files: an assumed encoding, characters replaced."""
    prefilled: int = 0
    """Chunks whose state was computed in this run."""
    reused: int = 0
    """Chunks whose state was there already."""
    not_stored: list[str] = field(default_factory=list)
    """Reasons why states could not be kept (disk full, budget); queries compute these again."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return asdict(self) | {"skipped": [item._asdict() for item in self.skipped]}


@dataclass
class StoreReport:
    """What `Engine.verify` found after reading everything."""

    pages: int = 0
    """Stored states that are exactly as written."""
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """Stored states and records that failed their check, with the reason. They are set aside, unless it says
    otherwise; states are computed again when next needed, records are written again by the next `index` or `repair`."""
    catalogue: list[str] = field(default_factory=list)
    """What is wrong with the catalogue of documents and chunks. Where it cannot be read, what follows is not known."""
    chunks: int = 0
    """Distinct ones that can be retrieved."""
    without_state: int = 0
    """Chunks whose state is not stored: not prefilled yet, evicted or damaged; queries compute them."""
    without_text: int = 0
    """Stored states of text that is in no document any more; the next `index` removes them."""
    records: int = 0
    """Records of documents, from which the catalogue can be made anew, that are exactly as written."""
    without_record: int = 0
    """Documents whose record is missing or older than the catalogue; the next `index` or `repair` writes it."""
    orphans: list[str] = field(default_factory=list)
    """Temporary files of processes that were killed; removed at the next opening."""
    foreign: list[str] = field(default_factory=list)
    """Files in the store's folder that are not its own; never read."""
    unread: list[str] = field(default_factory=list)
    """What could not be asked for its states, such as a remote tier that does not answer."""

    @property
    def clean(self) -> bool:
        """Nothing that was read is damaged. Chunks without a state, orphans and foreign files do no harm."""
        return not self.damaged and not self.catalogue

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return asdict(self) | {"clean": self.clean}


@dataclass
class RepairReport:
    """What `Engine.repair` found and did."""

    catalogue: list[str] = field(default_factory=list)
    """What was wrong with a catalogue that was set aside."""
    set_aside: str = ""
    """Where that catalogue is now; empty if none was set aside."""
    restored: int = 0
    """Documents that came back into the catalogue from their records."""
    embedded: int = 0
    """Chunks whose vectors were made again."""
    damaged: list[str] = field(default_factory=list)
    """Stored states and records that failed their check, with the reason; set aside, and made again where they can."""
    prefilled: int = 0
    """Chunks whose state was computed."""
    reused: int = 0
    """Chunks whose state was there."""
    lost: list[str] = field(default_factory=list)
    """What could not be brought back, and what to do."""
    not_stored: list[str] = field(default_factory=list)
    """Why states or records could not be kept (disk full, budget)."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return asdict(self)
