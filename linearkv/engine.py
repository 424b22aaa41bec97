"""The engine: index documents once, answer from their chunks in any order.

`Engine.stream` retrieves the chunks of a question; `linearkv.answering` goes on from there.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from linearkv.answering import AnswerStream, Plan
from linearkv.answers import Answer, IndexReport, RepairReport, SkippedFile, StoreReport
from linearkv.cache import NO_TAG, open_pages
from linearkv.canary import check_canary
from linearkv.composition import ORDERS, compose
from linearkv.errors import LinearKVError, StoreDamagedError, StoreMismatchError, StoreReadOnlyError
from linearkv.identity import tokenizer_digest
from linearkv.models import GDNModel, Sampling, load_model
from linearkv.planner import Planner, machine
from linearkv.prompt import CONDITIONING, PromptFormat
from linearkv.records import FOLDER as RECORDS
from linearkv.records import Records
from linearkv.retrieval import Embedder, Hit, Retriever, StoredChunk, set_aside_damaged
from linearkv.retrieval.decoding import clean
from linearkv.retrieval.store import FILE
from linearkv.settings import Settings
from linearkv.state_cache import ChunkTokens, Filled, StateCache
from linearkv.states import Context, PrefixState
from linearkv.tenants import open_tenant, tenant_folder
from linearkv.verifying import check

if TYPE_CHECKING:
    from linearkv.eval.questions import EvalQuestion, QuestionFile
    from linearkv.eval.report import EvalReport

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]
"""Called with (stage, done, total); total is None where it is not known."""

DEFAULT_ORDER = "bidirectional"
BACKENDS = ("transformers", "vllm")
MODES = ("composed", "full")
RESTORE = ("auto", "always", "never")
SPEEDS = "speeds.json"
RESTORED_AT_A_TIME = 64
"""Documents that go from their records into the catalogue in one durable step."""


class Engine:
    """A store, a model and what lies between them. Open with `Engine.open`; use as a context manager or `close()`.

    Attributes:
        model: the loaded model.
        prompt: how its prompts are written.
        states: chunk states by identity.
        settings: what it was opened with.
        prefix: what every prompt begins with, prefilled.
        embedder: gives texts and questions their vectors.
    """

    def __init__(
        self,
        model: GDNModel,
        prompt: PromptFormat,
        retriever: Retriever,
        states: StateCache,
        settings: Settings,
        store: Path,
        tenant: str,
        prefix: PrefixState,
        owner: str,
        refusal: str,
        records: Records,
        opened: ExitStack,
        checked: tuple[list[str], Path | None] | None = None,
    ) -> None:
        self.model = model
        self.prompt = prompt
        self.states = states
        self.settings = settings
        self.store = store
        self.tenant = tenant
        self._retriever = retriever
        self._owner = owner  # what the catalogue says of whose it is
        self._refusal = refusal  # why nothing may be written; empty where it may
        self._records = records
        self._opened = opened  # closes what this engine opened
        self._checked = checked  # what was wrong with the catalogue, and where it was set aside; None: not looked at
        self.prefix = prefix
        self.embedder = retriever.embedder

    @classmethod
    def open(
        cls,
        store: str | Path,
        model: str | Path | GDNModel = "reference",
        *,
        tenant: str = "default",
        secret: bytes | None = None,
        conditioning: str = "prefix",
        tokenizer: str | Path | None = None,
        device: str = "auto",
        dtype: str = "auto",
        backend: str = "transformers",
        read_only: bool | None = None,
        repair: bool = False,
        settings: Settings | None = None,
    ) -> "Engine":
        """Opens a store, making it on first use.

        Args:
            store: folder of the store.
            model: `"reference"`, a checkpoint folder, or a model from `load_model`.
            tenant: whose documents and states; tenants of one store share nothing.
            secret: 32 bytes that key the tenant's states, to be given every time; None lets the store keep one.
            conditioning: what chunks are prefilled behind. `prefix`: the system prompt (one chunk is exact). `primer`:
                the system prompt and a few neutral chunks that are not part of the answer's context, closer to full
                prefill where several chunks follow. `none`: nothing, and states serve any system prompt.
            tokenizer: folder of the tokenizer; the model's own by default.
            device, dtype: see `load_model`; vLLM computes in bfloat16 on the device it was built for.
            backend: who runs the model: `transformers`, or `vllm` in this process, with the options of `settings.vllm`.
                States are of who computed them: a store that one filled, the other fills again.
            read_only: never write. None decides by whether the tenant's files are writable.
            repair: a damaged catalogue is no error: it is moved to another name beside it, for `repair` to make a new
                one. Takes as long as reading all of it.
            settings: see `Settings`; by default from the environment.

        Raises:
            UnsupportedModelError: the model or tokenizer cannot be served.
            StoreMismatchError: the store was made with another embedding model or secret, or the model no longer
                computes what it did.
            StoreReadOnlyError: the store does not exist and cannot be made, or is to be repaired and not writable.
            StoreDamagedError: the catalogue cannot be read.
        """
        if conditioning not in CONDITIONING:
            raise ValueError(f"unknown conditioning {conditioning!r}: expected one of {', '.join(CONDITIONING)}")
        if backend not in BACKENDS:
            raise ValueError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")
        settings = settings or Settings()
        store = Path(store)
        refusal = f"the store {store} was opened for reading" if read_only else ""
        locked = _not_writable(store, tenant) if read_only is None else None
        if read_only is None:
            read_only = locked is not None
            if read_only:
                refusal = f"{locked} is not writable for user id {os.geteuid()}"
        if repair:
            _require_writable(refusal)

        with ExitStack() as opening:  # what was opened is closed again if the rest fails
            if not isinstance(model, GDNModel):
                model = _run_by(backend, model, device, dtype, settings)
                opening.callback(model.close)
            folder = Path(tokenizer) if tokenizer is not None else model.folder
            if folder is None:
                raise LinearKVError("a model that was loaded elsewhere brings no tokenizer: pass tokenizer=<folder>")
            prompt = PromptFormat(folder, model.vocab_size, settings.system_prompt)
            embedder = Embedder(settings.embedder)
            embedder.encode_query("Loads the embedding model, so that the first question does not wait for it.")
            # Only now: a wrong model must not leave an empty store behind.
            opened = open_tenant(store, tenant, secret=secret, create=not read_only)
            if locked is not None:
                _log.warning("%s is not writable: answering from it, keeping nothing new", locked)
            records = Records(opened.folder, opened.secret, read_only=read_only)
            # Without records there is nothing to make a new one from; what can be read of the old one is all there is.
            checked = set_aside_damaged(opened.folder / "index") if repair and records.count() else None
            retriever = Retriever(
                opened.folder / "index",
                embedder,
                prompt.count_tokens,
                settings.chunk_tokens,
                tokenizer=tokenizer_digest(folder),
                mode="ro" if read_only else "rw",
            )
            opening.callback(retriever.close)
            owner = blake3(opened.secret, derive_key_context="LinearKV catalogue 1").hexdigest()
            if retriever.store.get("owner") not in (None, owner):
                raise StoreMismatchError(
                    f"the index in {opened.folder / 'index'} was made for another tenant or with another secret than "
                    f"that of tenant {tenant!r}: put back the tenant's own folder, or remove this index and index again"
                )
            pages = open_pages(
                opened.folder,
                opened.secret,
                read_only=read_only,
                **settings.page_options,
            )
            opening.callback(pages.close)  # twice is no harm: the states close them first
            identity = model.identify()
            check_canary(model, identity, pages, opened.secret)
            prefix = model.prefill_prefix(prompt.prefix_ids)
            behind, behind_ids = _conditioned(conditioning, model, prompt, prefix)
            states = StateCache(
                model,
                identity,
                pages,
                opened.secret,
                behind,
                behind_ids=behind_ids,
                policy=settings.storage,
                batch_tokens=settings.batch_tokens,
                planner=Planner.read(
                    opened.folder / SPEEDS, machine(model.device, identity.digest()), keep=not read_only
                ),
                device_bytes=settings.device_budget if model.device.type != "cpu" else 0,
            )
            opening.callback(states.close)
            opened_all = opening.pop_all()
        return cls(
            model,
            prompt,
            retriever,
            states,
            settings,
            store,
            tenant,
            prefix,
            owner,
            refusal,
            records,
            opened_all,
            checked,
        )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends background work and closes the store. What was acknowledged is on disk already."""
        self._opened.close()

    def index(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        reembed: bool = False,
        progress: Progress | None = None,
    ) -> IndexReport:
        """Brings the store in step with files and folders, and prefills every chunk that has no state yet.

        Only what changed by content is read, embedded and prefilled. A run that was interrupted goes on where it was.

        Args:
            paths: documents and folders; what vanished from them is removed, other documents stay.
            reembed: accept a store of another embedding model, and embed all of it again.
            progress: called as work goes on.

        Raises:
            StoreLockedError: another process is indexing into this store.
            StoreReadOnlyError, StoreMismatchError, StoreFullError: each says what to do.
        """
        started = time.monotonic()
        with self._writing(progress) as restored:
            synced = self._retriever.sync(
                paths,
                follow_outside=self.settings.follow_outside,
                leave_out=[self.store],  # it holds secrets and states, also of other tenants
                max_bytes=self.settings.max_document_bytes,
                reembed=reembed,
                progress=None if progress is None else lambda p: progress("reading", p.files_done, p.files),
            )
            # Before the states: whatever has one is then in the catalogue, and in what that can be made anew from.
            not_recorded = self._records.keep(self._retriever.store.records(), _stage("recording", progress))
            filled = self._fill(progress)
            # Every time: an earlier run may have been killed after the text went and before its states did.
            self._drop_states_of_removed_text()
        return IndexReport(
            documents=synced.documents,
            chunks=synced.chunks,
            added=synced.added,
            unchanged=synced.unchanged,
            updated=synced.updated,
            renamed=synced.renamed,
            removed=synced.removed,
            skipped=[SkippedFile(item.path, item.reason) for item in synced.skipped],
            notes=restored.words() + [f"{note.path}: {note.text}" for note in synced.notes],
            prefilled=filled.prefilled,
            reused=filled.present,
            not_stored=not_recorded + filled.not_stored,
            seconds=time.monotonic() - started,
        )

    def query(self, question: str, k: int = 6, **options: Any) -> Answer:
        """Answers a question from its `k` best chunks. Options as for `stream`."""
        stream = self.stream(question, k, **options)
        for _ in stream:
            pass
        return stream.answer

    def stream(
        self,
        question: str,
        k: int = 6,
        *,
        order: str = "auto",
        pivot: int | None = None,
        mode: str = "composed",
        restore: str | None = None,
        where: dict[str, Any] | None = None,
        max_new_tokens: int = 64,
        sampling: Sampling | str | None = None,
    ) -> AnswerStream:
        """Answers piece by piece; after the last piece, `.answer` is the whole `Answer`.

        Args:
            question: any text; nothing in it is an operator or a control token.
            k: number of chunks; fewer are used where fewer are found.
            order: `sequential`, `bidirectional`, `cyclic`, or `auto`: what `calibrate` chose for this store, its pivot
                included unless one is given, and bidirectional where it chose nothing.
            pivot: the best `pivot` chunks are put last and prefilled for real from the composed state; None is 0, or
                with `order="auto"` what `calibrate` chose.
            mode: `composed`, or `full`: the same prompt, prefilled for real from its first token.
            restore: `auto` restores a stored state unless prefilling its chunk again, or the whole prompt, is sooner on
                this machine (`answer.cache.plan` says so); `always` and `never` force it. None is the setting's.
            where: only documents with this metadata, see `Retriever.search`.
            max_new_tokens: longest answer.
            sampling: greedy by default; a `Sampling`, or `"checkpoint"` for the checkpoint's generation config.

        Raises:
            LinearKVError: nothing is indexed, an empty question, or a prompt longer than the model's positions.
            ValueError: an unknown order, mode or restore, k < 1, pivot < 0, max_new_tokens < 1.
        """
        if order != "auto" and order not in ORDERS:
            raise ValueError(f"unknown order {order!r}: expected auto, {', '.join(ORDERS)}")
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}: expected one of {', '.join(MODES)}")
        restore = self.settings.restore if restore is None else restore
        if restore not in RESTORE:
            raise ValueError(f"unknown restore {restore!r}: expected one of {', '.join(RESTORE)}")
        if pivot is not None and pivot < 0:
            raise ValueError(f"pivot is {pivot}; it counts chunks")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; an answer has at least one token")
        if isinstance(sampling, str):
            if sampling != "checkpoint":
                raise ValueError(f"unknown sampling {sampling!r}: expected a Sampling or 'checkpoint'")
            sampling = self.prompt.checkpoint_sampling()
        if order == "auto":
            order, calibrated_pivot = self._calibrated()
            pivot = calibrated_pivot if pivot is None else pivot
        pivot = pivot or 0
        started = time.perf_counter()
        question = clean(question)
        question_ids = self.prompt.question_ids(question)
        if not self._retriever.store.counts()["chunks"]:
            raise LinearKVError(
                f"nothing is indexed in {self.store} for tenant {self.tenant!r}: run linearkv "
                + ("repair, there are records of documents" if self._records.count() else "index first")
            )
        found = self.search(question, k, where=where)
        retrieve_s = time.perf_counter() - started
        return AnswerStream(
            self.model,
            self.prompt,
            self.states,
            self.prefix,
            Plan(found, min(pivot, len(found)), order, mode, restore),
            question_ids,
            retrieve_s,
            max_new_tokens,
            sampling or Sampling(),
        )

    def search(self, question: str, k: int = 6, *, where: dict[str, Any] | None = None) -> list[Hit]:
        """The `k` best chunks for a question, best first, without answering it; see `Retriever.search`."""
        return self._retriever.search(clean(question), k, where=where)

    def chunks(self) -> Iterator[StoredChunk]:
        """Every distinct chunk of the store that can be retrieved."""
        return self._retriever.iter_chunks()

    def evaluate(
        self,
        questions: "str | Path | QuestionFile | Sequence[EvalQuestion] | None" = None,
        *,
        limit: int | None = None,
        file: str | Path | None = None,
        part: tuple[int, int] | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> "EvalReport":
        """How much of full prefill's quality composed answers keep, for this model and these documents.

        Args:
            questions: a question file (JSON lines with `question` and `answers`, SQuAD, MuSiQue, HotpotQA,
                2WikiMultihopQA, LongBench, RULER), or what `linearkv.eval.questions` makes of one; None makes questions
                from the indexed documents.
            limit: only so many questions, drawn at random.
            file: where finished questions are kept, so that an interrupted run goes on there.
            part: (i, n) asks the i-th of n parts of the questions, so that n processes can share them; the same call
                without it puts together what they kept in `file`.
            options: `modes`, `k`, `shuffles`, `seed`, ...; see `linearkv.eval.runner.EvalOptions`.

        Returns:
            A report: `.summary()`, `.to_json()`, `.to_html()`, `.modes`, `.verdict`.

        Raises:
            LinearKVError: no usable questions, unknown modes, or a `file` of another run.
        """
        # Imported here: the evaluation is made of what users can use, the engine included.
        from linearkv.eval.evaluation import evaluate
        from linearkv.eval.runner import EvalOptions

        if "modes" in options:
            options["modes"] = tuple(options["modes"])
        report = None if progress is None else lambda done, total: progress("evaluating", done, total)
        return evaluate(self, questions, EvalOptions(**options), limit=limit, file=file, part=part, progress=report)

    def calibrate(
        self, questions: "str | Path | QuestionFile | Sequence[EvalQuestion] | None" = None, **options: Any
    ) -> "EvalReport":
        """Chooses order and pivot for this model and these documents by evaluating them, and keeps the choice with the
        store, for queries with `order="auto"` by the same model and system prompt.

        Of the composed modes that surely keep 98% of full prefill's F1 it takes the one that reuses most, the simplest
        where several do; where none does, sequential unless another is surely better. `report.recommended.mode` is what
        was kept, `report.verdict` says how sure that is.

        Args:
            questions, options: as for `evaluate`; `modes` are the composed ones by default.

        Raises:
            LinearKVError: scores cannot tell modes apart, so nothing is changed.
            StoreReadOnlyError: the choice cannot be kept.
        """
        from linearkv.eval.report import COMPOSED

        if options.get("part") is not None:
            raise ValueError("a part of the questions calibrates nothing: calibrate with the whole run")
        _require_writable(self._refusal)
        report = self.evaluate(questions, **{"modes": COMPOSED, **options})
        best = report.recommended
        if best is None:
            raise LinearKVError(f"nothing was calibrated: {report.verdict}")
        order, _, pivot = best.mode.partition("_pivot")
        chosen = {"for": self._fingerprint(), "order": order, "pivot": int(pivot or 0), "verdict": report.verdict}
        with self._writing():
            self._retriever.store.put(calibration=json.dumps(chosen))
            report.notes += self._records.keep(self._retriever.store.records())
        return report

    def _calibrated(self) -> tuple[str, int]:
        """Order and pivot that `calibrate` chose for this model, prefix and storage; else the default."""
        kept = self._retriever.store.get("calibration")
        chosen = json.loads(kept) if kept is not None else {}
        if chosen.get("for") != self._fingerprint():
            return DEFAULT_ORDER, 0
        return chosen["order"], chosen["pivot"]

    def _fingerprint(self) -> str:
        """What a calibration holds for: the key that a chunk of one token would have."""
        return self.states.key([0])

    def remove(self, paths: str | Path | Iterable[str | Path]) -> int:
        """Removes documents, by their paths as shown in sources, and their states; returns how many went.

        They come back with the next `index` of their folder if the files are still there.
        """
        with self._writing():
            removed = self._retriever.remove(paths)
            if removed:
                self._records.keep(self._retriever.store.records())
                self._drop_states_of_removed_text()
        return removed

    def stats(self) -> dict[str, Any]:
        """Documents, chunks, and per tier its pages, bytes, budget, hits and misses; JSON-ready."""
        return {
            "store": str(self.store),
            "tenant": self.tenant,
            "model": str(self.model.folder) if self.model.folder is not None else self.model.architecture,
            "device": str(self.model.device),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "storage": self.settings.storage,
            **self._retriever.store.counts(),
            "tiers": [vars(tier) for tier in self.states.stat()],
        }

    def verify(self, progress: Progress | None = None) -> StoreReport:
        """Reads and checks every stored state and record and the catalogue, and holds them against each other. Damaged
        states and records are set aside; states are computed again when they are next needed, `repair` does it now."""
        report = check(self.states.pages, self._records, self._retriever.store, self.states.tag, progress)
        if report.chunks:  # states of this model and prompt, rather than of any
            keys = [self.states.key(self._chunk_tokens(chunk).token_ids) for chunk in self.chunks()]
            report.without_state = len(keys) - len(self.states.pages.contains(keys))
        return report

    def repair(self, progress: Progress | None = None) -> RepairReport:
        """Rebuilds the catalogue and the stored states from each other; documents are not needed for it.

        A catalogue that is lost, or that `Engine.open(..., repair=True)` has set aside, is made anew from the records
        of its documents and embedded again; chunks without a good state are prefilled; records that are missing are
        written. What is good is left as it is, so the next run goes on where one was interrupted.

        Raises:
            StoreLockedError: another process is indexing into this store.
            StoreReadOnlyError: it cannot be written.
            StoreDamagedError: the catalogue is damaged and was not set aside.
        """
        started = time.monotonic()
        report = RepairReport()
        with self._writing(progress) as restored:
            catalogue = self._retriever.store
            if self._checked is not None:
                report.catalogue, aside = self._checked
                report.set_aside = "" if aside is None else str(aside)
                self._checked = None
            elif wrong := catalogue.damage():
                do = "open the store with repair=True" if self._records.count() else "delete it and index again"
                raise StoreDamagedError(f"{catalogue.path} is damaged ({'; '.join(wrong)}): {do}")
            report.restored = restored.documents
            report.embedded = self._retriever.embed_missing(_stage("embedding", progress))
            recorded = self._records.verify(_stage("checking records", progress))
            states = self.states.pages.verify(_stage("checking", progress))
            report.damaged = [f"{key}: {reason}" for key, reason in states.damaged]
            report.damaged += [f"record {key}: {reason}" for key, reason in recorded.damaged] + restored.damaged
            report.not_stored = self._records.keep(catalogue.records(), _stage("recording", progress))
            filled = self._fill(progress)
            report.prefilled, report.reused = filled.prefilled, filled.present
            report.not_stored += filled.not_stored
            report.lost = self._lost(restored)
        report.seconds = time.monotonic() - started
        return report

    @contextmanager
    def _writing(self, progress: Progress | None = None) -> Iterator["_Restored"]:
        """Holds the writer's lock. A catalogue that is nobody's is new, or was lost, or is only half restored: then it
        takes in what there are records of, and is ours from there on."""
        _require_writable(self._refusal)
        store, restored = self._retriever.store, _Restored()
        with self._retriever.writing():
            if store.get("owner") is None:
                restored = self._restore(_stage("rebuilding", progress))
                store.put(owner=self._owner)
            yield restored

    def _restore(self, progress: Callable[[int, int], None] | None) -> "_Restored":
        checked = self._records.verify()
        restored = _Restored(new=True, damaged=[f"record {key}: {reason}" for key, reason in checked.damaged])
        store, records = self._retriever.store, self._records.read()
        done = 0
        while batch := list(islice(records, RESTORED_AT_A_TIME)):
            with store.transaction() as db:
                restored.documents += sum(store.put_record(db, record) for record in batch)
                store.hide_replaced(db)
            done += len(batch)
            if progress is not None:
                progress(done, checked.pages)
        return restored

    def _lost(self, restored: "_Restored") -> list[str]:
        """What a catalogue that was made anew lacks."""
        lost = [f"the document of a damaged {line}: index it again" for line in restored.damaged]
        live = {self.states.tag(content_hash) for content_hash in self._retriever.live_hashes()}
        without = [tag for tag in self.states.pages.tags().values() if tag not in live and tag != NO_TAG]
        if restored.new and without:
            lost.append(
                f"{len(without)} stored state(s) are of text that no record has: index their documents again, which "
                f"finds them; if others are indexed instead, they are removed"
            )
        return lost

    def _fill(self, progress: Progress | None) -> Filled:
        """Prefills every chunk that has no state yet."""
        done, distinct = 0, self._retriever.store.counts()["distinct_chunks"]

        def count(chunks: int) -> None:
            nonlocal done
            done += chunks
            if progress is not None:
                progress("prefilling", done, distinct)

        not_stored = self.states.keep_prefix(self.prefix) if self.model.has_servers and self.prefix.length else []
        filled = self.states.fill(map(self._chunk_tokens, self.chunks()), count)
        filled.not_stored[:0] = not_stored
        return filled

    def _chunk_tokens(self, chunk: Any) -> ChunkTokens:
        return ChunkTokens.of(chunk, self.prompt)

    def _drop_states_of_removed_text(self) -> None:
        """Removes states, of whatever model, whose text is in no document any more."""
        live = {self.states.tag(content_hash) for content_hash in self._retriever.live_hashes()}
        self.states.drop_unless(live)


@dataclass
class _Restored:
    """What a catalogue took in from records."""

    new: bool = False
    """It had nothing of its own."""
    documents: int = 0
    damaged: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        """What a person should know of it."""
        lines = [f"the catalogue was empty: {self.documents} document(s) came back from their records"]
        return (lines if self.documents else []) + [f"{line}: its document is lost" for line in self.damaged]


def _require_writable(refusal: str) -> None:
    """Raises for the reason why nothing may be written, if there is one."""
    if refusal:
        raise StoreReadOnlyError(
            f"{refusal}, so documents can neither be indexed nor removed, and nothing can be repaired: open it as a "
            f"user who may write there, or use another store"
        )


def _stage(name: str, progress: Progress | None) -> Callable[[int, int | None], None] | None:
    """Progress of one stage."""
    return None if progress is None else lambda done, total: progress(name, done, total)


def _not_writable(store: Path, tenant: str) -> Path | None:
    """What of a tenant's files is there and may not be written, which makes the whole of it read-only."""
    folder = tenant_folder(store, tenant)
    if not os.access(folder, os.F_OK):
        return store if store.is_dir() and not os.access(store, os.W_OK | os.X_OK) else None
    files = (folder / "index" / FILE,)
    for path in (folder, folder / "index", folder / "pages", folder / RECORDS, *files):
        if os.access(path, os.F_OK) and not os.access(path, os.W_OK if path in files else os.W_OK | os.X_OK):
            return path
    return None


def _run_by(backend: str, model: str | Path, device: str, dtype: str, settings: Settings) -> GDNModel:
    """A checkpoint loaded by whoever runs it."""
    if backend == "transformers":
        return load_model(model, device=device, dtype=dtype)
    if device != "auto" or dtype not in ("auto", "bfloat16"):
        raise LinearKVError(
            f"vLLM computes in bfloat16 on the device it was built for: with backend='vllm' there is no choice of "
            f"device {device!r} or dtype {dtype!r}"
        )
    from linearkv.vllm.model import VLLMModel  # vLLM has an environment of its own

    return VLLMModel(model, **settings.vllm)


def _conditioned(
    conditioning: str, model: GDNModel, prompt: PromptFormat, prefix: PrefixState
) -> tuple[Context, list[int]]:
    """What chunks are prefilled behind, and its token ids."""
    if conditioning == "none":
        return model.empty_context(), []
    start = compose(prefix, [])
    if conditioning == "prefix":
        return start, prompt.prefix_ids
    return model.prefill(prompt.primer_ids, after=start), [*prompt.prefix_ids, *prompt.primer_ids]
