"""The command line: index, query, eval, bench, verify, repair, doctor.

Results go to standard output, everything else to standard error. With --json standard output is one JSON value and
nothing else, also for errors: {"error": {"type": ..., "message": ...}}. Exit status: 0 done, 1 refused or failed, 2 the
command was written wrongly, 130 interrupted.

Heavy imports happen inside the commands, so that --help and mistyped options answer at once.
"""

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TextIO

import typer

import linearkv
from linearkv.console import console_for, plain, seconds, size, utf8
from linearkv.errors import LinearKVError
from linearkv.progress import shown_progress

if TYPE_CHECKING:
    from rich.console import Console

    from linearkv.answers import Answer, IndexReport, RepairReport, StoreReport
    from linearkv.doctor import Finding
    from linearkv.engine import Engine
    from linearkv.settings import Settings

DEFAULT_STORE = Path("linearkv-store")

# Base class of wrong usage; where typer keeps it differs between its versions.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="linearkv",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Index documents once, answer from their chunks in any order without prefilling them again.",
    epilog="Settings are environment variables, LINEARKV_<NAME>: see linearkv.Settings. Exit status: 0 done, 1 refused "
    "or failed, 2 wrong usage, 130 interrupted.",
)

Store = Annotated[Path, typer.Option("--store", help="Folder of the store.", metavar="FOLDER")]
Model = Annotated[str, typer.Option("--model", help="'reference', or a checkpoint's folder.", metavar="MODEL")]
Tenant = Annotated[
    str, typer.Option("--tenant", help="Whose documents; tenants share nothing.", metavar="NAME", callback=utf8)
]
Conditioning = Annotated[
    Literal["prefix", "primer", "none"],
    typer.Option(
        "--conditioning", help="Prefill chunks behind the system prompt, that and neutral chunks, or behind nothing."
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:<number>.", metavar="DEVICE")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16"], typer.Option("--dtype", help="Compute dtype.")]
Backend = Annotated[
    Literal["transformers", "vllm"], typer.Option("--backend", help="Who runs the model [LINEARKV_VLLM: its options].")
]
ChunkTokens = Annotated[
    int | None,
    typer.Option("--chunk-tokens", min=32, help="Target size of a chunk in model tokens [LINEARKV_CHUNK_TOKENS]."),
]
Storage = Annotated[
    Literal["fp16", "fp32", "compact"] | None,
    typer.Option("--storage", help="Precision of stored states [LINEARKV_STORAGE]."),
]


def _all_of(*known: str) -> Callable[[list[str] | None], list[str] | None]:
    """Checks an option that may be repeated; typer knows choices for single ones only."""

    def check(given: list[str] | None) -> list[str] | None:
        for value in given or []:
            if value not in known:
                raise typer.BadParameter(f"{value!r} is not one of {', '.join(map(repr, known))}.")
        return given

    return check


def _as_part(text: str) -> tuple[int, int]:
    """The part I/N of a whole, counted from 1."""
    number, slash, parts = text.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise typer.BadParameter(f"{text!r} is not I/N with I from 1 to N.")
    return int(number), int(parts)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]


@app.callback(invoke_without_command=True)
def _linearkv(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"linearkv {linearkv.__version__}")
        raise typer.Exit()


@app.command()
def index(
    paths: Annotated[list[Path], typer.Argument(help="Documents and folders.", metavar="PATHS...")],
    store: Store = DEFAULT_STORE,
    model: Model = "reference",
    tenant: Tenant = "default",
    conditioning: Conditioning = "prefix",
    device: Device = "auto",
    dtype: Dtype = "auto",
    backend: Backend = "transformers",
    chunk_tokens: ChunkTokens = None,
    storage: Storage = None,
    re_embed: Annotated[
        bool, typer.Option("--re-embed", help="Accept a store of another embedding model and embed all of it again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a store in step with documents, and prefill what is new. Interrupted, it goes on where it was."""
    with _command(as_json, interrupted="interrupted; run the same command again to go on") as out:
        if missing := [str(path) for path in paths if not path.exists()] if not store.exists() else []:
            raise FileNotFoundError(f"no such file or folder: {', '.join(missing)}")
        settings = _settings(chunk_tokens=chunk_tokens, storage=storage)
        with _open(store, model, tenant, conditioning, device, dtype, backend, settings) as engine:
            with shown_progress(quiet=as_json) as progress:
                report = engine.index(paths, reembed=re_embed, progress=progress)
            disk = engine.stats()["tiers"][-1]
        if not report.documents:
            why = "; ".join(f"{item.path}: {item.reason}" for item in report.skipped) or "there are no files"
            raise LinearKVError(f"nothing is indexed: none of the paths holds a document that can be read ({why})")
        if as_json:
            _print_json(out, report.to_dict() | {"store": str(store), "tenant": tenant, "bytes_on_disk": disk["bytes"]})
        else:
            _print_report(report, store, disk["bytes"], out)
        if not all(path.exists() for path in paths):
            raise typer.Exit(1)  # the report says which; what was there is indexed


@app.command()
def query(
    question: Annotated[str, typer.Argument(help="The question; any text.", metavar="QUESTION", callback=utf8)],
    store: Store = DEFAULT_STORE,
    model: Model = "reference",
    tenant: Tenant = "default",
    conditioning: Conditioning = "prefix",
    k: Annotated[int, typer.Option("-k", min=1, help="Number of chunks.")] = 6,
    order: Annotated[
        Literal["auto", "sequential", "bidirectional", "cyclic"],
        typer.Option("--order", help="How chunk states are composed."),
    ] = "auto",
    pivot: Annotated[int | None, typer.Option("--pivot", min=0, help="Prefill the best PIVOT chunks for real.")] = None,
    mode: Annotated[
        Literal["composed", "full"], typer.Option("--mode", help="Compose states, or prefill everything.")
    ] = "composed",
    restore: Annotated[
        Literal["auto", "always", "never"] | None,
        typer.Option("--restore", help="Stored states: restored unless prefilling is sooner, always or never."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer.")] = 64,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="Only documents with this metadata; repeat for more.", metavar="KEY=VALUE"),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    backend: Backend = "transformers",
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Answer a question from the chunks that fit it best."""
    with _command(as_json) as out:
        conditions = _conditions(where or [])
        _require_store(store, tenant)
        settings = _settings(storage=storage)
        with _open(store, model, tenant, conditioning, device, dtype, backend, settings) as engine:
            stream = engine.stream(
                question,
                k,
                order=order,
                pivot=pivot,
                mode=mode,
                restore=restore,
                where=conditions,
                max_new_tokens=max_new_tokens,
            )
            if as_json:
                for _ in stream:
                    pass
                _print_json(out, {"question": question, "store": str(store)} | stream.answer.to_dict())
                return
            begun = False
            for piece in stream:
                piece = plain(piece) if begun else plain(piece).lstrip()
                if piece:
                    print(piece, end="", file=out, flush=True)
                    begun = True
            print(file=out) if begun else None
            _print_answer(stream.answer, out, max_new_tokens, begun)


@app.command(name="eval")
def evaluate(
    questions: Annotated[
        Path | None,
        typer.Argument(
            help="Question file: JSON lines with question and answers, SQuAD, MuSiQue, HotpotQA, 2WikiMultihopQA, "
            "LongBench or RULER. Without one, questions are made from the indexed documents.",
            metavar="[FILE]",
        ),
    ] = None,
    store: Store = DEFAULT_STORE,
    model: Model = "reference",
    tenant: Tenant = "default",
    conditioning: Conditioning = "prefix",
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Chunks of each question.")] = 10,
    shuffles: Annotated[int, typer.Option("--shuffles", min=1, help="Random orders of each question's chunks.")] = 8,
    gold_places: Annotated[
        bool, typer.Option("--gold-places/--no-gold-places", help="Also the gold chunks first, in the middle and last.")
    ] = True,
    modes: Annotated[
        str | None, typer.Option("--modes", help="Modes with commas between them, or all.", metavar="NAMES")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only so many questions.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of orders and distractors.")] = 0,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer.")] = 32,
    rule: Annotated[
        Literal["linearkv", "squad", "hotpotqa"], typer.Option("--rule", help="How answers are compared.")
    ] = "linearkv",
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Keep the best order and pivot with the store: queries then use them."),
    ] = False,
    run_file: Annotated[
        Path | None,
        typer.Option("--run", help="Keep finished questions here; an interrupted run goes on.", metavar="FILE"),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--part",
            help="Ask the i-th of n parts of the questions only; needs --run. The same command without it puts the "
            "parts together.",
            metavar="I/N",
            callback=lambda text: text if text is None or _as_part(text) else None,
        ),
    ] = None,
    timed: Annotated[int, typer.Option("--timed", min=0, help="How many of the questions are also timed.")] = 5,
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Add modes that take one part of the context at a time from full prefill."),
    ] = False,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Also write the JSON to this file.", metavar="FILE")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Also write the report as a web page to this file.", metavar="FILE")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    backend: Backend = "transformers",
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Measure how much of full prefill's answer quality composed answers keep, over shuffled chunks."""
    share = None if part is None else _as_part(part)
    if share is not None and (run_file is None or out_file is not None or html_file is not None or calibrate):
        raise typer.BadParameter("--part needs --run; --out, --html and --calibrate are for the whole.")
    with _command(as_json, interrupted="interrupted; with --run, the same command goes on") as out:
        _require_folders(out_file, html_file)
        from linearkv.eval.modes import MODES, find_modes
        from linearkv.eval.questions import read_questions
        from linearkv.eval.report import COMPOSED
        from linearkv.eval.runner import DEFAULT_MODES

        usual = COMPOSED if calibrate else DEFAULT_MODES
        wanted = list(MODES) if modes == "all" else modes.split(",") if modes else list(usual)
        wanted = [name.strip() for name in wanted]
        find_modes(wanted)  # what is misspelt is said before a large model is loaded
        asked = None if questions is None else read_questions(questions)
        with ExitStack() as opened:
            if asked is None or calibrate or not all(question.passages for question in asked.questions):
                _require_store(store, tenant)
            else:  # questions that bring their own passages need no store, and leave none behind
                store = Path(opened.enter_context(TemporaryDirectory())) / "store"
            settings = _settings(storage=storage)
            engine = opened.enter_context(_open(store, model, tenant, conditioning, device, dtype, backend, settings))
            progress = opened.enter_context(shown_progress(quiet=as_json))
            run = engine.calibrate if calibrate else engine.evaluate
            report = run(
                asked,
                limit=limit,
                file=run_file,
                part=share,
                progress=progress,
                modes=wanted,
                k=k,
                shuffles=shuffles,
                gold_places=gold_places,
                seed=seed,
                max_new_tokens=max_new_tokens,
                rule=rule,
                diagnose=diagnose,
                timed=timed,
            )
        if not report.modes:
            raise LinearKVError(f"{report.verdict}: {'; '.join(report.notes[-3:])}")
        if share is not None:
            done = f"part {part} is done: {len(report.records)} questions, kept beside {run_file}"
            print(json.dumps({"part": part, "questions": len(report.records)}) if as_json else done, file=out)
            return
        if out_file is not None:
            report.to_json(out_file)
        if html_file is not None:
            report.to_html(html_file)
        if as_json:
            print(report.to_json(), file=out)
        else:
            print(report.summary(), file=out)
            if calibrate and report.recommended is not None:
                print(f"kept with the store: {report.recommended.mode}", file=out)


@app.command()
def bench(
    model: Model = "reference",
    chunks: Annotated[int, typer.Option("--chunks", min=1, help="Chunks in the prompt.")] = 10,
    chunk_tokens: Annotated[int, typer.Option("--chunk-tokens", min=1, help="Tokens of each chunk.")] = 128,
    question_tokens: Annotated[int, typer.Option("--question-tokens", min=1, help="Tokens of the question.")] = 16,
    order: Annotated[
        list[str] | None,
        typer.Option(
            "--order",
            callback=_all_of("sequential", "bidirectional", "cyclic"),
            metavar="ORDER",
            help="sequential, bidirectional (default) or cyclic. Repeat for more.",
        ),
    ] = None,
    tier: Annotated[
        list[str] | None,
        typer.Option(
            "--tier",
            callback=_all_of("device", "memory", "disk", "cold", "prefill"),
            metavar="TIER",
            help="Where states are: device (a GPU's), memory (default), disk, cold (disk, not in the page cache), "
            "prefill (nowhere yet). Repeat.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds, after one that does not count.")] = 7,
    storage: Annotated[
        Literal["fp16", "fp32", "compact"], typer.Option("--storage", help="Precision of states.")
    ] = "fp16",
    seed: Annotated[int, typer.Option("--seed", help="Of the random tokens.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Also write the JSON to this file.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the time to the first token: composed states against full prefill, side by side."""
    with _command(as_json) as out:
        _require_folders(out_file)
        from linearkv.eval.bench import BenchOptions, run_bench
        from linearkv.models import load_model

        options = BenchOptions(
            chunks=chunks,
            chunk_tokens=chunk_tokens,
            question_tokens=question_tokens,
            orders=tuple(order or ("bidirectional",)),
            tiers=tuple(tier or ("memory",)),
            repeats=repeats,
            storage=storage,
            seed=seed,
        )
        loaded = load_model(model, device=device, dtype=dtype)
        with shown_progress(quiet=as_json) as progress:
            report = run_bench(
                loaded,
                options,
                progress=None if progress is None else lambda done, total: progress("measuring", done, total),
            )
        result = report.to_dict()
        if out_file is not None:
            out_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        if as_json:
            _print_json(out, result)
        else:
            _print_bench(result, out)


@app.command()
def verify(store: Store = DEFAULT_STORE, tenant: Tenant = "default", as_json: Json = False) -> None:
    """Read and check every stored byte. Exit status 1 if something is damaged.

    Damaged states are set aside, and computed again when they are next needed. No model is loaded.
    """
    with _command(as_json, interrupted="interrupted; nothing is left half done") as out:
        _require_store(store, tenant)
        from linearkv.verifying import verify_store

        with shown_progress(quiet=as_json) as progress:
            report = verify_store(store, tenant, settings=_settings(), progress=progress)
        if as_json:
            _print_json(out, {"store": str(store), "tenant": tenant} | report.to_dict())
        else:
            _print_verified(report, store, out)
    if not report.clean:
        raise typer.Exit(1)


@app.command()
def repair(
    store: Store = DEFAULT_STORE,
    model: Model = "reference",
    tenant: Tenant = "default",
    conditioning: Conditioning = "prefix",
    device: Device = "auto",
    dtype: Dtype = "auto",
    backend: Backend = "transformers",
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Rebuild catalogue and states from each other. Exit status 1 if something is lost.

    A damaged catalogue is moved to another name beside it and made anew from the records of its documents; chunks
    without a good state are prefilled. Documents are not read. Give the options that the store was indexed with.
    """
    with _command(as_json, interrupted="interrupted; run the same command again to go on") as out:
        _require_store(store, tenant)
        settings = _settings(storage=storage)
        with (
            _open(store, model, tenant, conditioning, device, dtype, backend, settings, repair=True) as engine,
            shown_progress(quiet=as_json) as progress,
        ):
            report = engine.repair(progress)
        if as_json:
            _print_json(out, {"store": str(store), "tenant": tenant} | report.to_dict())
        else:
            _print_repaired(report, store, out)
    if report.lost:
        raise typer.Exit(1)


@app.command()
def doctor(
    store: Annotated[Path | None, typer.Option("--store", help="A store to look at as well.", metavar="FOLDER")] = None,
    model: Model = "reference",
    tenant: Tenant = "default",
    device: Device = "auto",
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Say what is installed, what will be used, and what is wrong. Exit status 1 if something is."""
    with _command(as_json) as out:
        from linearkv.doctor import diagnose

        if store is None and DEFAULT_STORE.is_dir():
            store = DEFAULT_STORE
        findings = diagnose(store, model, tenant=tenant, device=device, dtype=dtype)
        broken = any(finding.level == "error" for finding in findings)
        if as_json:
            _print_json(out, {"ok": not broken, "findings": [finding._asdict() for finding in findings]})
        else:
            _print_findings(findings, out)
    if broken:
        raise typer.Exit(1)


# ---- running a command -----------------------------------------------------------------------------------------------


class _Failed(Exception):
    """A command ended with an exit status, and what there is to say was said."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def main(arguments: list[str] | None = None) -> NoReturn:
    """The `linearkv` command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # What transformers has to say of missing GPU packages is not for who runs a command.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(arguments, standalone_mode=False, prog_name="linearkv")
        sys.stdout.flush()
    except _Failed as failed:
        status = failed.status
    except KeyboardInterrupt:
        status = _fail("--json" in arguments, sys.stdout, "Interrupted", "interrupted", 130)
    except _UsageError as error:
        if "--json" in arguments:
            status = _fail(True, sys.stdout, "UsageError", error.format_message(), 2)
        else:
            error.show()
            status = 2
    except BrokenPipeError:
        status = _reader_is_gone()
    sys.exit(status if isinstance(status, int) else 0)


@contextmanager
def _command(as_json: bool, interrupted: str = "interrupted") -> Iterator[TextIO]:
    """Runs a command's work: yields where its result goes, and turns whatever goes wrong into words and a status."""
    out = sys.stdout
    _log_to_standard_error()
    try:
        # Whatever a library prints must not be mixed into the result.
        with redirect_stdout(sys.stderr):
            yield out
        out.flush()
    except (typer.Exit, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        raise _Failed(_fail(as_json, out, "Interrupted", interrupted, 130)) from None
    except (LinearKVError, ValueError, OSError) as error:
        if os.environ.get("LINEARKV_TRACEBACK"):
            traceback.print_exc()
        raise _Failed(_fail(as_json, out, type(error).__name__, _words(error), 1)) from None
    except Exception as error:
        # Not something a person did: the traceback is what a report of it needs.
        traceback.print_exc()
        raise _Failed(_fail(as_json, out, type(error).__name__, _words(error), 1)) from None


def _fail(as_json: bool, out: TextIO, kind: str, message: str, status: int) -> int:
    try:
        if as_json:
            _print_json(out, {"error": {"type": kind, "message": message}})
        else:
            print(f"{'' if status == 130 else 'error: '}{plain(message)}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        return _reader_is_gone()
    return status


def _reader_is_gone() -> int:
    """Standard output was closed by who read it (`| head`): end quietly."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _words(error: Exception) -> str:
    """One line that says what was wrong."""
    details = getattr(error, "errors", None)
    if callable(details) and hasattr(error, "title"):  # pydantic's: one entry per setting
        return "; ".join(
            f"setting {'.'.join(map(str, item['loc']))} (LINEARKV_{'_'.join(map(str, item['loc'])).upper()}) is "
            f"{item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}"
            for item in details()
        )
    if isinstance(error, OSError) and error.strerror and not isinstance(error, LinearKVError):
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _print_json(out: TextIO, value: Any) -> None:
    print(json.dumps(value, indent=2), file=out, flush=True)


def _log_to_standard_error() -> None:
    log = logging.getLogger("linearkv")
    if not any(isinstance(handler, _LogLines) for handler in log.handlers):
        log.addHandler(_LogLines())


class _LogLines(logging.Handler):
    """One plain line for each record, on whatever is standard error then."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{record.levelname.lower()}: {plain(record.getMessage())}", file=sys.stderr)


# ---- engines and options ---------------------------------------------------------------------------------------------


def _settings(**given: Any) -> "Settings":
    """Settings from the environment, and from options where they were given."""
    from linearkv.settings import Settings

    return Settings(**{name: value for name, value in given.items() if value is not None})


def _open(
    store: Path,
    model: str,
    tenant: str,
    conditioning: str,
    device: str,
    dtype: str,
    backend: str,
    settings: "Settings",
    repair: bool = False,
) -> "Engine":
    from linearkv.engine import Engine

    return Engine.open(
        store,
        model,
        tenant=tenant,
        conditioning=conditioning,
        device=device,
        dtype=dtype,
        backend=backend,
        repair=repair,
        settings=settings,
    )


def _require_folders(*files: Path | None) -> None:
    """Refuses files that could not be written, before the work whose results they are to hold."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise FileNotFoundError(f"no such folder: {file.absolute().parent}")


def _require_store(store: Path, tenant: str) -> None:
    """A question must not make a store, or a tenant, where a name was mistyped."""
    if not store.exists():
        raise LinearKVError(f"no store at {store}: index something first, linearkv index PATHS --store {store}")
    from linearkv.tenants import tenant_folder

    if not tenant_folder(store, tenant).exists():
        raise LinearKVError(
            f"the store {store} has nothing of tenant {tenant!r}: index something for it first, or give another "
            f"--tenant"
        )


def _conditions(given: list[str]) -> dict[str, Any] | None:
    """`--where key=value` as the search takes it: a value may be text, or what YAML makes of it (42, true)."""
    import yaml

    conditions: dict[str, list[Any]] = {}
    for item in map(utf8, given):
        key, equals, text = item.partition("=")
        if not key or not equals:
            raise ValueError(f"--where {item!r} is not of the form key=value, such as --where status=active")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        conditions.setdefault(key, []).extend([text] if value == text else [text, value])
    return conditions or None


# ---- output for people -----------------------------------------------------------------------------------------------


def _default_said(store: Path) -> str:
    return f"store {store} (the default; choose with --store)" if store == DEFAULT_STORE else f"store {store}"


def _print_report(report: "IndexReport", store: Path, on_disk: int, out: TextIO) -> None:
    console = console_for(out)
    console.print(f"{_default_said(store)}, {report.documents:,} documents in {report.chunks:,} chunks")
    changes = ("added", "updated", "renamed", "removed", "unchanged")
    console.print("  documents  " + ", ".join(f"{getattr(report, name):,} {name}" for name in changes))
    console.print(f"  chunks     {report.prefilled:,} prefilled, {report.reused:,} already there")
    console.print(f"  on disk    {size(on_disk)} of chunk states")
    console.print(f"  time       {seconds(report.seconds)}")
    _print_lists(
        console,
        {
            "skipped": [f"{item.path}: {item.reason}" for item in report.skipped],
            "notes": report.notes,
            "not kept": report.not_stored,
        },
    )


def _print_lists(console: "Console", lists: dict[str, list[str]]) -> None:
    """Each list that has something under its title."""
    for title, lines in lists.items():
        if lines:
            console.print(f"{title} ({len(lines):,})")
            for line in lines:
                console.print(f"  {plain(line)}")


def _print_verified(report: "StoreReport", store: Path, out: TextIO) -> None:
    console = console_for(out)
    console.print(_default_said(store))
    console.print(f"  states     {report.pages:,} as written, {size(report.bytes)}")
    console.print(f"  records    {report.records:,} as written; {report.without_record:,} document(s) without one")
    console.print(
        f"  catalogue  {report.chunks:,} chunks, {report.without_state:,} without a state; "
        f"{report.without_text:,} state(s) of text that is gone"
    )
    _print_lists(
        console,
        {
            "damaged, and set aside unless it says otherwise": report.damaged,
            "wrong with the catalogue": report.catalogue,
            "left by processes that were killed": report.orphans,
            "not ours, left alone": report.foreign,
            "not read": report.unread,
        },
    )
    console.print("nothing is damaged" if report.clean else "linearkv repair makes anew what can be")


def _print_repaired(report: "RepairReport", store: Path, out: TextIO) -> None:
    console = console_for(out)
    console.print(_default_said(store))
    aside = f"; the damaged one is now {plain(report.set_aside)}" if report.set_aside else ""
    console.print(f"  catalogue  {report.restored:,} documents restored, {report.embedded:,} chunks embedded{aside}")
    console.print(f"  states     {report.prefilled:,} prefilled, {report.reused:,} already there")
    console.print(f"  time       {seconds(report.seconds)}")
    _print_lists(
        console,
        {
            "was wrong with the catalogue": report.catalogue,
            "damaged, set aside": report.damaged,
            "not kept": report.not_stored,
            "lost": report.lost,
        },
    )


def _print_answer(answer: "Answer", out: TextIO, max_new_tokens: int, begun: bool) -> None:
    if answer.finish == "no documents":
        print("no documents fit the question", file=out)
        return
    if not begun:
        print("(the model gave an empty answer)", file=out)
    if answer.finish == "length":
        print(f"(cut at {max_new_tokens} tokens; --max-new-tokens allows more)", file=out)
    print("\nsources", file=out)
    ranked = sorted(answer.sources, key=lambda source: -source.score)
    for rank, source in enumerate(ranked, 1):
        heading = f"  {plain(source.heading)}" if source.heading else ""
        lines = f"lines {source.line_start}-{source.line_end}"
        print(f"{rank:3}. {plain(source.document)}{heading}  ({lines}, score {source.score:.4f})", file=out)
    print(f"\n{use_line(answer)}", file=out)
    for line in answer.cache.not_stored:
        print(f"warning: states computed for this answer are not kept: {plain(line)}", file=sys.stderr)
    for line in answer.cache.damaged:
        print(f"warning: a stored state was damaged and computed again: {plain(line)}", file=sys.stderr)


def use_line(answer: "Answer") -> str:
    """What an answer reused and how long its first token took, in one line."""
    cache, timings = answer.cache, answer.timings
    where = ", ".join(
        f"{count:,} of {cache.chunks:,} chunks {_TIER_WORDS.get(tier, f'from {tier}')}"
        for tier, count in cache.tiers.items()
    )
    return (
        f"{answer.mode}: reused {cache.reused_tokens:,} of {cache.prompt_tokens:,} prompt tokens ({cache.reuse:.1%}), "
        f"{where}; first token after {timings.ttft_s:.2f} s of which retrieval {timings.retrieve_s:.2f} s"
    )


_TIER_WORDS = {
    "prefilled": "prefilled now",
    "pivot": "prefilled on purpose",
    "full": "prefilled (mode full)",
}


def _print_bench(result: dict[str, Any], out: TextIO) -> None:
    options, model, machine, tokens = (result[name] for name in ("options", "model", "machine", "tokens"))
    print(
        f"{model['class']}, {model['parameters'] / 1e6:,.1f}M parameters, {model['gdn_layers']} GDN and "
        f"{model['attention_layers']} attention layers, {model['dtype']}\n"
        f"{machine['device']}, {machine['threads']} threads, load {machine['load']}; torch {machine['torch']}, "
        f"transformers {machine['transformers']}\n"
        f"prompt of {tokens['prompt']:,} tokens: prefix {tokens['prefix']:,}, {options['chunks']:,} chunks of "
        f"{options['chunk_tokens']:,}, question {tokens['question']:,}; {size(result['bytes_per_chunk'])} of state a "
        f"chunk ({options['storage']})\n"
        f"one composed chunk against full prefill: logits off by {result['check_error']:.1e}\n",
        file=out,
    )
    head = ("time to first token", "median", "min", "full / this", "of it restore", "compose", "prefill")
    rows = [head]
    for arm in (result["full"], result["transformers"], result["question_alone"], *result["composed"]):
        ratio = f"{arm['ratio']:.1f}x ({arm['ratio_min']:.1f}-{arm['ratio_max']:.1f})" if "ratio" in arm else ""
        parts = [seconds(arm[f"{part}_s"]) if f"{part}_s" in arm else "" for part in ("restore", "compose", "prefill")]
        rows.append((arm["name"], seconds(arm["median_s"]), seconds(arm["min_s"]), ratio, *parts))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip(), file=out)
    print(
        f"\nratios are medians (smallest-largest) over {options['repeats']} rounds, each arm once a round; "
        f"the ceiling, full prefill over the question alone, is {result['ceiling']:.1f}x",
        file=out,
    )


def _print_findings(findings: "list[Finding]", out: TextIO) -> None:
    from rich.text import Text

    console = console_for(out)
    styles = {"ok": "green", "warn": "yellow", "error": "bold red"}
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = Text.assemble((f"{finding.level:<5}", styles[finding.level]), f"  {finding.name:<{width}}  ")
        console.print(line.append(plain(finding.value)))
        if finding.advice:
            console.print(f"       {'':<{width}}  -> {plain(finding.advice)}")
    wrong = [finding for finding in findings if finding.level == "error"]
    console.print(f"\n{len(wrong)} thing{'s' * (len(wrong) != 1)} to repair" if wrong else "\neverything needed works")


if __name__ == "__main__":
    main()
