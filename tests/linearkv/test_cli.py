"""The command line's promises: results alone on standard output, one line for what went wrong, honest exit statuses."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from linearkv.cli import main
from linearkv.progress import shown_progress
from linearkv.retrieval import DocumentStore
from linearkv.settings import Settings
from linearkv.tenants import tenant_folder

REPOSITORY = Path(__file__).parents[2]
TEXTS = {
    "lamp": "The harbour lamp burns olive oil and is lit at dusk by Ilse Brandt.",
    "bell": "The bell was recast in 1911 by the foundry of Anselm Korte.",
    "mill": "The mill grinds rye on Tuesdays and oats on Fridays.",
}


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return str(tiny_checkpoint("qwen3_5"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "docs"
    folder.mkdir()
    for number, (name, text) in enumerate(TEXTS.items()):
        (folder / f"{name}.md").write_text(f"---\nshelf: {number}\n---\n# The {name}\n\n{text}\n")
    (folder / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    return folder


@pytest.fixture(scope="module")
def store(model, corpus, tmp_path_factory):
    """A store that the index command made."""
    store = tmp_path_factory.mktemp("stores") / "store"
    with pytest.raises(SystemExit) as ended:
        main(["index", str(corpus), "--store", str(store), "--model", model, "--json"])
    assert ended.value.code == 0
    return store


@pytest.fixture
def run(capsys):
    """`run(*arguments)` -> (exit status, standard output, standard error), in this process."""

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def process(*command, **options):
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background ignores interrupts, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def test_help_and_version_do_not_wait_for_torch():
    script = (
        "import sys\nfrom linearkv.cli import main\n"
        "for arguments in (['--help'], ['query', '--help'], ['--version'], ['query', '--nonsense']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as ended: print(arguments, ended.code)\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    out, err = process("-c", script).communicate()
    assert out.rstrip().endswith("[]"), out + err
    assert "['--help'] 0" in out and "linearkv 0." in out and "['query', '--nonsense'] 2" in out


def test_index_reports_what_it_did_in_json(run, model, corpus, store):
    status, out, _ = run("index", corpus, "--store", store, "--model", model, "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["unchanged"], report["prefilled"], report["reused"]) == (3, 0, 3)
    assert report["bytes_on_disk"] > 0 and report["store"] == str(store)
    assert [item["path"] for item in report["skipped"]] == ["photo.png"] and report["skipped"][0]["reason"]


def test_index_reports_what_it_did_in_words(run, model, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run("index", corpus, "--model", model)
    assert status == 0 and (tmp_path / "linearkv-store").is_dir()
    assert "store linearkv-store (the default; choose with --store), 3 documents in 3 chunks" in out
    assert "3 added" in out and "3 prefilled" in out and "photo.png: " in out and "B of chunk states" in out


def test_a_store_inside_the_corpus_is_not_indexed(run, model, tmp_path):
    """Its files are secrets and states, also of other tenants."""
    (tmp_path / "bell.md").write_text("# The bell\n\nIt was recast in 1911.\n")
    for tenant in ("acme", "other"):
        out = run("index", tmp_path, "--store", tmp_path / "store", "--model", model, "--tenant", tenant, "--json")[1]
        report = json.loads(out)
        assert (report["documents"], report["chunks"]) == (1, 1)
        assert report["skipped"] == [{"path": "store", "reason": "holds the index itself"}]


def test_query_answers_in_words(run, model, store):
    status, out, _ = run("query", "Who recast the bell?", "--store", store, "--model", model, "-k", 2)
    answer, _, rest = out.partition("\nsources\n")
    assert status == 0 and answer.strip()
    assert "  1. bell.md  The bell  (lines " in rest and ", score 0.0" in rest
    assert "bidirectional: reused " in rest and "2 of 2 chunks from disk; first token after " in rest
    assert "\x1b" not in out


def test_query_prints_json_alone_even_where_libraries_print(model, store):
    arguments = ["query", "Who recast the bell?", "--store", store, "--model", model, "-k", "2", "--json"]
    noisy = "import linearkv.engine as e, linearkv.cli as c\nclass Noisy(e.Engine):\n"
    noisy += "    def stream(self, *a, **o):\n        print('noise')\n        return super().stream(*a, **o)\n"
    noisy += f"e.Engine = Noisy\nc.main({[*map(str, arguments)]!r})"
    running = process("-c", noisy)
    out, err = running.communicate()
    answer = json.loads(out)
    assert running.returncode == 0 and "noise" in err
    assert answer["cache"]["tiers"] == {"disk": 2} and 0 < answer["cache"]["reuse"] < 1
    assert answer["sources"][0]["document"] == "bell.md" and answer["timings"]["ttft_s"] > 0


def test_query_takes_conditions_orders_and_modes(run, model, store):
    arguments = ("query", "Who?", "--store", store, "--model", model, "--json", "--max-new-tokens", 2)
    by_number = json.loads(run(*arguments, "--where", "shelf=2")[1])
    assert [source["document"] for source in by_number["sources"]] == ["mill.md"]
    either = json.loads(run(*arguments, "--where", "path=bell.md", "--where", "path=lamp.md", "--order", "cyclic")[1])
    assert {source["document"] for source in either["sources"]} == {"bell.md", "lamp.md"} and either["mode"] == "cyclic"
    full = json.loads(run(*arguments, "--mode", "full")[1])
    assert full["mode"] == "full" and full["cache"]["reuse"] == 0


def test_a_question_that_fits_nothing_is_answered_so(run, model, store):
    status, out, _ = run("query", "Who?", "--store", store, "--model", model, "--where", "shelf=99")
    assert (status, out) == (0, "no documents fit the question\n")


MISTAKES = {
    "no store": (["query", "Who?", "--store", "{tmp}/none"], 1, "no store at {tmp}/none: index something first"),
    "no such tenant": (["query", "Who?", "--tenant", "acme"], 1, "has nothing of tenant 'acme'"),
    "no such model": (["query", "Who?", "--model", "{tmp}/none"], 1, "no checkpoint in {tmp}/none"),
    "no such device": (["query", "Who?", "--device", "tpu"], 1, "device 'tpu' is not supported"),
    "empty question": (["query", " "], 1, "the question is empty"),
    "no such path": (["index", "{tmp}/none", "--store", "{tmp}/new"], 1, "no such file or folder: {tmp}/none"),
    "nothing to index": (["index", "{tmp}/empty", "--store", "{tmp}/new"], 1, "nothing is indexed: none of the paths"),
    "condition": (["query", "Who?", "--where", "shelf"], 1, "'shelf' is not of the form key=value"),
    "unknown mode": (["query", "Who?", "--mode", "best"], 2, "'best' is not one of 'composed', 'full'"),
    "unknown order": (["query", "Who?", "--order", "best"], 2, "'best' is not one of"),
    "k": (["query", "Who?", "-k", "0"], 2, "greater than or equal to 1"),
    "pivot": (["query", "Who?", "--pivot", "-1"], 2, "greater than or equal to 0"),
    "no question": (["query"], 2, "Missing argument 'QUESTION'"),
    "bench order": (["bench", "--order", "best"], 2, "'best' is not one of"),
}


@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_line(run, model, store, tmp_path, mistake, as_json):
    arguments, expected_status, message = MISTAKES[mistake]
    arguments = [argument.format(tmp=tmp_path) for argument in arguments]
    (tmp_path / "empty").mkdir()
    for option, value in (("--store", store), ("--model", model)):
        if option not in arguments and arguments[0] != "bench":
            arguments += [option, value]
    status, out, err = run(*arguments, *(["--json"] if as_json else []))
    assert status == expected_status
    assert "Traceback" not in err
    if as_json:
        error = json.loads(out)["error"]
        assert message.format(tmp=tmp_path) in error["message"] and error["type"]
    else:
        assert message.format(tmp=tmp_path) in err
        assert status == 2 or err.strip().splitlines()[-1].startswith("error: ")
    if arguments[0] == "query":
        assert not (tmp_path / "none").exists()


def test_a_wrong_setting_in_the_environment_is_named(run, model, store, monkeypatch):
    monkeypatch.setenv("LINEARKV_CHUNK_TOKENS", "3")
    status, _, err = run("query", "Who?", "--store", store, "--model", model)
    assert status == 1
    assert err == (
        "error: setting chunk_tokens (LINEARKV_CHUNK_TOKENS) is '3': input should be greater than or equal to 32\n"
    )


def test_no_disk_budget_can_be_asked_for_in_the_environment(run, model, store, monkeypatch):
    monkeypatch.setenv("LINEARKV_DISK_BUDGET", "none")
    status, out, _ = run("query", "Who?", "--store", store, "--model", model, "--json")
    assert status == 0 and json.loads(out)["text"] is not None
    assert Settings().disk_budget is None


def test_a_missing_path_among_others_is_a_failure_after_the_rest_is_indexed(run, model, corpus, store, tmp_path):
    status, out, _ = run("index", corpus, tmp_path / "nothere", "--store", store, "--model", model, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["documents"] > 0
    assert ("nothere", "does not exist") in {(Path(item["path"]).name, item["reason"]) for item in report["skipped"]}


def test_a_store_that_is_being_written_is_refused_for_indexing(run, model, corpus, store):
    with DocumentStore(tenant_folder(store, "default") / "index").writing():
        status, _, err = run("index", corpus, "--store", store, "--model", model)
    assert status == 1
    assert f"is being written by process {os.getpid()}" in err and "Traceback" not in err


def test_a_read_only_store_answers_and_refuses_to_index(model, corpus, store):
    """In a process of another user, since root may write anywhere."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for source, target in ((store, "store"), (model, "model"), (corpus, "docs")):
            shutil.copytree(source, place / target)
        for path in (place, *place.rglob("*")):
            if os.geteuid() == 0:
                os.chown(path, 65534, 65534)
            path.chmod(0o500 if path.is_dir() else 0o400)
        options = ["--store", str(place / "store"), "--model", str(place / "model")]
        script = (
            "import os\nfrom linearkv.cli import main\n"
            "def run(*arguments):\n"
            "    try: main([*arguments])\n"
            "    except SystemExit as ended: print('status', ended.code, flush=True)\n"
            # Once as we are, so that everything is imported: the other user may not be allowed to read Python itself.
            f"run('query', 'Who?', *{[*options]!r})\n"
            "print('---', flush=True)\n"
            "if os.geteuid() == 0: os.setuid(65534)\n"
            f"run('query', 'Who?', *{[*options]!r})\n"
            f"run('index', {str(place / 'docs')!r}, *{[*options]!r})\n"
        )
        out, err = process("-c", script, env=os.environ | {"HOME": "/nonexistent"}).communicate()
        for path in (place, *place.rglob("*")):
            path.chmod(0o700)
    out = out.split("---\n")[1]
    assert "chunks from disk" in out and "status 0" in out and out.endswith("status 1\n"), out + err
    assert "is not writable: answering from it, keeping nothing new" in err
    assert "is not writable for user id" in err and "Traceback" not in err


def test_an_interrupted_run_says_so_and_goes_on(run, model, tmp_path):
    corpus, store = tmp_path / "docs", tmp_path / "store"
    corpus.mkdir()
    for number in range(200):
        (corpus / f"{number}.md").write_text(
            f"# Box {number}\n\nThe box of number {number} holds {number * 7} nails.\n"
        )
    arguments = ["index", str(corpus), "--store", str(store), "--model", model]
    running = process("-m", "linearkv.cli", *arguments)
    deadline = time.monotonic() + 120
    states = "tenants/*/pages/*/*.safetensors"
    while len(list(store.glob(states))) < 2 and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert "interrupted; run the same command again to go on" in err and "Traceback" not in err
    status, out, _ = run(*arguments, "--json")
    report = json.loads(out)
    assert status == 0 and report["documents"] == 200
    assert report["reused"] >= 1 and report["prefilled"] + report["reused"] == report["chunks"]


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    running = subprocess.run(
        [sys.executable, "-m", "linearkv.cli", "--version"],
        cwd=REPOSITORY,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert running.returncode == 1 and running.stderr == ""


def test_progress_says_nothing_where_nobody_asked(capsys):
    with shown_progress(quiet=True) as progress:
        assert progress is None
    with shown_progress() as progress:
        progress("reading", 1, 2)
    assert capsys.readouterr().err == ""


def test_progress_is_a_line_now_and_then_with_rate_and_time_left(capsys):
    from linearkv.progress import _Lines

    now = [0.0]
    lines = _Lines(sys.stderr, clock=lambda: now[0])
    for done in range(0, 101):
        now[0] = done * 0.1
        lines("prefilling", done, 100)
    assert capsys.readouterr().err == (
        "prefilling: 50 of 100 chunks, 10.0 a second, 5.0 s left\nprefilling: 100 of 100 chunks, 10.0 a second\n"
    )


def test_progress_is_a_bar_with_rate_on_a_terminal():
    reader, writer = os.openpty()
    written: list[bytes] = []

    def read():
        # A terminal hands out what it has, a few kilobytes at most, and an error once its other end is closed.
        with contextlib.suppress(OSError):
            while piece := os.read(reader, 4096):
                written.append(piece)

    reading = threading.Thread(target=read)
    reading.start()
    with os.fdopen(writer, "w") as terminal, shown_progress(quiet=True, stream=terminal) as progress:
        for done in range(11):
            progress("prefilling", done, 10)
            time.sleep(0.01)
    reading.join()
    os.close(reader)
    shown = b"".join(written).decode()
    assert "prefilling" in shown and "10/10" in shown and "chunks" in shown and "/s" in shown
