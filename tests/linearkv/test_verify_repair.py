"""The catalogue and the stored states are rebuilt from each other, and everything that is wrong with either is said."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from linearkv import engine as engines
from linearkv.answers import RepairReport
from linearkv.cli import main
from linearkv.errors import LinearKVError, StoreDamagedError, StoreLockedError, StoreReadOnlyError
from linearkv.retrieval import DocumentStore
from linearkv.tenants import tenant_folder

QUESTION = "Who recast the bell?"
DOCUMENTS, VISIBLE, CHUNKS = 11, 9, 8
"""Of `filled`: a record each; those that can be retrieved; their distinct chunks, a state each."""


@pytest.fixture
def corpus(tmp_path):
    """Eleven documents: two share their text, one is replaced, one superseded, two are records, one is in a folder."""
    folder = tmp_path / "docs"
    (folder / "east").mkdir(parents=True)
    bell = "# The bell\n\nThe bell was recast in 1911 by the foundry of Anselm Korte.\n"
    files = {
        "bell.md": bell,
        "east/bell copy.md": f"---\nshelf: 3\n---\n\n\n{bell}",
        "lamp.md": "---\nid: lamp\nshelf: 1\n---\n# The lamp\n\nThe harbour lamp burns olive oil.\n",
        "lamp-2.md": "---\nreplaces: lamp\n---\n# The lamp\n\nThe harbour lamp burns gas since May.\n",
        "rope.md": "---\nstatus: superseded\n---\nThe blue rope is forty metres long.\n",
        "ferry.md": "# Ferries\n\n## Night\n\nThe night ferry leaves at 23:40.\n\n## Day\n\nThe other leaves at 9.\n",
        "notes.jsonl": '{"id": "n1", "text": "The vault has two keys."}\n{"id": "n2", "text": "The kiln is hot."}\n',
        "mill.md": "# The mill\n\nThe mill grinds rye on Tuesdays.\n",
        "cook.txt": "The cook keeps saffron in the tin marked with a star. 山道记录\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def filled(open_engine, corpus, tmp_path):
    """A closed store of the corpus and of a second folder; its tenant's folder."""
    other = tmp_path / "more"
    other.mkdir()
    (other / "oats.md").write_text("# Oats\n\nOats are ground on Fridays.\n")
    engine = open_engine()
    engine.index([corpus, other])
    engine.close()
    return tenant_folder(engine.store, "default")


def catalogue(folder):
    return folder / "index" / "documents.sqlite"


def states(folder):
    """Files of states; the canary's, the smallest, is left out."""
    return sorted(folder.glob("pages/*/*.safetensors"), key=lambda path: path.stat().st_size)[1:]


def records(folder):
    return sorted(folder.glob("records/pages/*/*.safetensors"))


def said(folder):
    """All that the catalogue says of documents and chunks, whatever numbers its rows have."""
    with closing(sqlite3.connect(catalogue(folder))) as db:
        return {
            "documents": sorted(
                db.execute(
                    "SELECT label, location, files.path, documents.path, title, metadata, content_hash,"
                    " documents.recipe, superseded, replaces, hidden FROM documents JOIN files ON files.id = file_id"
                    " JOIN roots ON roots.id = root_id"
                ),
                key=str,
            ),
            "chunks": sorted(
                db.execute(
                    "SELECT files.path, documents.path, ordinal, contents.id, contents.content_hash, heading, text,"
                    " line_start, line_end, chunks.metadata FROM chunks JOIN contents ON contents.id = content_id"
                    " JOIN documents ON documents.id = document_id JOIN files ON files.id = file_id"
                )
            ),
        }


def answers(engine):
    """What searches and questions bring, to be compared."""
    found = []
    for question in (QUESTION, "When does the ferry leave?", "山道"):
        for hit in engine.search(question, k=5):
            similarity = None if hit.similarity is None else round(hit.similarity, 5)
            found.append((vars(hit) | {"similarity": similarity}, hit.score))
    by_shelf = [hit.path for hit in engine.search("bell", k=3, where={"shelf": 3})]
    return found, by_shelf, engine.query(QUESTION, k=4, max_new_tokens=8).text


def garbage(path):
    path.write_bytes(b"this is no database " * 500)


def cut(path):
    os.truncate(path, path.stat().st_size // 2 + 100)


def empty(path):
    path.write_bytes(b"")


def without_header(path):
    path.write_bytes(bytes(100) + path.read_bytes()[100:])


def with_bad_pages(path):
    data, rng = bytearray(path.read_bytes()), random.Random(1)
    for at in range(4096 * 4, len(data) - 4096, 4096 * 3):
        data[at : at + 600] = rng.randbytes(600)
    path.write_bytes(data)


def with_another_text(path):
    """What SQLite cannot see."""
    data = path.read_bytes()
    assert b"recast in 1911" in data
    path.write_bytes(data.replace(b"recast in 1911", b"recast in 1912"))


def changed(path, sql):
    """Carries out `sql` in the database, and leaves nothing of it beside its file."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(sql)
    db.close()


def without_a_table(path):
    changed(path, "DROP TABLE chunks")


def without_the_index_of_words(path):
    """What SQLite's check does not look into."""
    changed(path, "UPDATE words_data SET block = zeroblob(length(block)) WHERE id > 10")


def without_the_structure_of_words(path):
    changed(path, "UPDATE words_data SET block = x'0102' WHERE id = 10")


def with_another_word(path):
    changed(path, "UPDATE words_data SET block = CAST(replace(block, x'6b6f727465', x'6b6f727466') AS BLOB)")


DAMAGES = (
    with_another_word,
    without_the_structure_of_words,
    garbage,
    cut,
    without_header,
    with_bad_pages,
    with_another_text,
    without_a_table,
    without_the_index_of_words,
)
LOSSES = (Path.unlink, empty)


# ---- the catalogue from the records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [*LOSSES, *DAMAGES], ids=lambda damage: damage.__name__)
def test_a_catalogue_comes_back_without_its_documents_and_nothing_is_prefilled(
    open_engine, corpus, filled, tmp_path, damage
):
    engine = open_engine()
    before = answers(engine), said(filled)
    engine.close()
    shutil.rmtree(corpus)
    shutil.rmtree(tmp_path / "more")
    damage(catalogue(filled))
    bytes_before = catalogue(filled).read_bytes() if damage in DAMAGES else b""

    engine = open_engine(repair=True)
    report = engine.repair()
    assert (report.restored, report.prefilled, report.lost, report.damaged) == (DOCUMENTS, 0, [], [])
    assert (report.reused, report.embedded) == (CHUNKS, CHUNKS + 1), "a document that is replaced has vectors too"
    assert (answers(engine), said(filled)) == before
    found = engine.verify()
    assert (found.clean, found.without_state, found.without_text, found.without_record) == (True, 0, 0, 0)
    if damage in DAMAGES:
        aside = Path(report.set_aside)
        assert aside.parent == filled / "index" and aside.name.startswith("damaged-")
        assert aside.read_bytes() == bytes_before and report.catalogue
    else:
        assert (report.catalogue, report.set_aside) == ([], "")


def test_after_a_repair_documents_are_recognised_as_unchanged(open_engine, corpus, filled):
    catalogue(filled).unlink()
    engine = open_engine(repair=True)
    engine.repair()
    before = said(filled)
    report = engine.index(corpus)
    assert (report.added, report.updated, report.removed, report.prefilled) == (0, 0, 0, 0)
    assert said(filled) == before


def test_a_text_of_two_documents_keeps_both_places(open_engine, filled):
    catalogue(filled).unlink()
    engine = open_engine(repair=True)
    engine.repair()
    hit = engine.search(QUESTION, k=1)[0]
    assert (hit.path, hit.also_in, hit.line_start) == ("bell.md", ["east/bell copy.md"], 3)
    hit = engine.search(QUESTION, k=1, where={"shelf": 3})[0]
    assert (hit.path, hit.line_start, hit.metadata["shelf"]) == ("east/bell copy.md", 8, 3)


def test_what_changed_since_a_state_was_made_comes_back_as_it_is_now(open_engine, corpus, filled):
    """A document moved, one with another front matter and more lines above, one removed: no state was made anew."""
    (corpus / "mill.md").rename(corpus / "east" / "mill.md")
    (corpus / "cook.txt").unlink()
    (corpus / "ferry.md").write_text("---\nshelf: 7\n---\n\n" + (corpus / "ferry.md").read_text())
    engine = open_engine()
    assert engine.index(corpus).prefilled == 0
    before = answers(engine), said(filled)
    engine.close()
    catalogue(filled).unlink()
    engine = open_engine(repair=True)
    assert engine.repair().lost == []
    assert (answers(engine), said(filled)) == before


def test_a_calibration_comes_back(open_engine, corpus, filled):
    engine = open_engine()
    chosen = {"for": engine._fingerprint(), "order": "cyclic", "pivot": 1, "verdict": ""}
    with engine._retriever.writing():
        engine._retriever.store.put(calibration=json.dumps(chosen))
    engine.index(corpus)
    engine.close()
    catalogue(filled).unlink()
    engine = open_engine(repair=True)
    assert engine.repair().restored == DOCUMENTS
    assert engine._calibrated() == ("cyclic", 1)


def test_a_document_whose_record_is_damaged_is_reported_lost_and_its_states_wait(open_engine, corpus, filled):
    catalogue(filled).unlink()
    before = set(states(filled))
    flip(records(filled)[0])  # any document's: what it had replaced may be seen again
    engine = open_engine(repair=True)
    report = engine.repair()
    assert report.restored == DOCUMENTS - 1 and len(report.damaged) == 1
    assert "the document of a damaged record" in report.lost[0] and "index it again" in report.lost[0]
    assert before <= set(states(filled)), "none was removed"
    assert engine.index([corpus, corpus.parent / "more"]).prefilled == 0


def test_without_records_a_lost_catalogue_is_said_to_be_lost(open_engine, corpus, filled):
    catalogue(filled).unlink()
    shutil.rmtree(filled / "records")
    engine = open_engine(repair=True)
    report = engine.repair()
    assert report.restored == 0 and f"{CHUNKS} stored state(s) are of text that no record has" in report.lost[0]
    assert engine.index([corpus, corpus.parent / "more"]).prefilled == 0, "they were not removed"


def test_without_records_a_damaged_catalogue_is_left_where_it_is(open_engine, filled):
    garbage(catalogue(filled))
    shutil.rmtree(filled / "records")
    with pytest.raises(StoreDamagedError, match="delete the file and index again"):
        open_engine(repair=True)
    assert [path.name for path in filled.glob("index/*.sqlite")] == ["documents.sqlite"]


def test_indexing_into_a_lost_catalogue_loses_no_document(open_engine, corpus, filled):
    """Whoever indexes one folder of many after the loss must not remove the states of the others."""
    catalogue(filled).unlink()
    with pytest.raises(LinearKVError, match="nothing is indexed .*: run linearkv repair, there are records"):
        open_engine().query(QUESTION)
    report = open_engine().index(corpus.parent / "more")
    assert (report.documents, report.unchanged, report.prefilled, report.reused) == (VISIBLE, 1, 0, CHUNKS)
    assert report.notes == [f"the catalogue was empty: {DOCUMENTS} document(s) came back from their records"]


def test_removing_from_a_lost_catalogue_removes_only_that(open_engine, filled):
    catalogue(filled).unlink()
    engine = open_engine()
    assert engine.remove("mill.md") == 1
    assert (engine.stats()["documents"], len(records(filled))) == (VISIBLE - 1, DOCUMENTS - 1)


def test_an_old_store_without_records_gets_them_with_the_next_run(open_engine, corpus, filled):
    shutil.rmtree(filled / "records")
    engine = open_engine()
    assert engine.verify().without_record == DOCUMENTS
    assert engine.repair() == RepairReport(reused=CHUNKS, seconds=pytest.approx(0, abs=1e6))
    assert (engine.verify().without_record, len(records(filled))) == (0, DOCUMENTS)


# ---- states from the catalogue, and vectors --------------------------------------------------------------------------


def flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [flip, cut, empty, garbage, Path.unlink], ids=lambda damage: damage.__name__)
def test_states_come_back_and_answers_are_the_same(open_engine, filled, damage):
    engine = open_engine()
    before = answers(engine)
    engine.close()
    for path in states(filled)[:4]:
        damage(path)
    engine = open_engine()
    report = engine.repair()
    assert (report.prefilled, report.reused, report.restored, report.embedded) == (4, CHUNKS - 4, 0, 0)
    assert len(report.damaged) == (0 if damage is Path.unlink else 4)
    assert answers(engine) == before and engine.query(QUESTION, k=8, max_new_tokens=1).cache.hits == CHUNKS
    again = engine.repair()
    assert (again.prefilled, again.reused, again.damaged) == (0, CHUNKS, [])


def test_states_and_catalogue_lost_together_come_back(open_engine, filled):
    engine = open_engine()
    before = answers(engine)
    engine.close()
    shutil.rmtree(filled / "index")
    shutil.rmtree(filled / "pages")
    engine = open_engine(repair=True)
    report = engine.repair()
    assert (report.restored, report.prefilled, report.reused, report.lost) == (DOCUMENTS, CHUNKS, 0, [])
    assert answers(engine) == before


def test_a_damaged_record_is_written_again(open_engine, filled):
    flip(records(filled)[3])
    engine = open_engine()
    found = engine.verify()
    assert len(found.damaged) == 1 and found.damaged[0].startswith("record ") and found.without_record == 1
    assert engine.repair().lost == []
    found = engine.verify()
    assert (found.clean, found.records, found.without_record) == (True, DOCUMENTS, 0)


VECTORS = {
    "length": "UPDATE vectors SET windows = zeroblob(length(windows)) WHERE content_id = 2",
    "not finite": "UPDATE vectors SET windows = CAST(x'0000c07f' || substr(windows, 5) AS BLOB) WHERE content_id = 2",
    "cut": "UPDATE vectors SET windows = substr(windows, 1, 999) WHERE content_id = 2",
    "missing": "DELETE FROM vectors WHERE content_id = 2",
}


@pytest.mark.parametrize("damage", VECTORS)
def test_vectors_are_checked_and_made_again(open_engine, filled, damage):
    engine = open_engine()
    before = answers(engine)
    engine.close()
    changed(catalogue(filled), VECTORS[damage])
    engine = open_engine()
    found = engine.verify()
    assert not found.clean and "vectors" in found.catalogue[0]
    report = engine.repair()
    assert (report.embedded, report.restored, report.set_aside) == (1, 0, "")
    assert engine.verify().clean and answers(engine) == before


# ---- who may repair, and when ----------------------------------------------------------------------------------------


def test_an_interrupted_repair_is_gone_on_with(open_engine, filled, monkeypatch):
    engine = open_engine()
    before = answers(engine), said(filled)
    engine.close()
    garbage(catalogue(filled))
    monkeypatch.setattr(engines, "RESTORED_AT_A_TIME", 4)
    put, calls = DocumentStore.put_record, []

    def interrupted(self, db, record):
        calls.append(record)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return put(self, db, record)

    monkeypatch.setattr(DocumentStore, "put_record", interrupted)
    engine = open_engine(repair=True)
    with pytest.raises(KeyboardInterrupt):
        engine.repair()
    assert 0 < engine.stats()["documents"] <= 4
    engine.close()
    engine = open_engine()
    assert engine.repair().restored == DOCUMENTS
    assert (answers(engine), said(filled)) == before


@pytest.fixture(scope="module")
def killed(tiny_checkpoint, tmp_path_factory):
    """What there is after a repair that was ended before each of its steps in turn, and another repair."""
    from linearkv import Engine, Settings
    from linearkv.models import load_model

    work = tmp_path_factory.mktemp("kills")
    docs = work / "docs"
    docs.mkdir()
    for number in range(7):
        name = "bell" if number < 2 else f"box {number}"
        (docs / f"{number}.md").write_text(f"# The {name}\n\nThe {name} was recast by person {len(name) * 37}.\n")
    checkpoint = tiny_checkpoint("qwen3_5")
    with Engine.open(work / "store", load_model(checkpoint), settings=Settings(chunk_tokens=256)) as engine:
        engine.index(docs)
        hits = engine.search(QUESTION, k=8)
        found = [[hit.chunk_id, hit.also_in, hit.line_start, hit.metadata] for hit in hits]
        expected = {"found": found, "text": engine.query(QUESTION, k=4, max_new_tokens=4).text}
    folder = tenant_folder(work / "store", "default")
    garbage(catalogue(folder))
    states(folder)[0].unlink()
    flip(states(folder)[1])
    shutil.rmtree(docs)
    program = Path(__file__).with_name("kill_repair.py")
    command = [sys.executable, str(program), str(checkpoint), str(work / "store"), str(work)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    return expected, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_repair_that_was_killed_at_any_step_is_made_good_by_the_next(killed):
    expected, trials = killed
    for trial in trials:
        assert "crashed" not in trial and trial["lost"] == []
        assert {name: trial[name] for name in expected} == expected
        assert (trial["clean"], trial["missing"], trial["aside"]) == (True, [0, 0], 1)


def test_a_repair_of_a_good_store_changes_nothing(killed):
    assert [trial["idle"] for trial in killed[1]] == [[0, 0, 0, ""]] * len(killed[1])


def test_the_kills_hit_every_part_of_a_repair(killed):
    """Guards the test itself."""
    assert len(killed[1]) > 10 and [trial["finished"] for trial in killed[1]].count(True) == 1


def test_a_store_that_is_being_indexed_is_not_repaired(open_engine, filled):
    garbage(catalogue(filled))
    with (
        DocumentStore(filled.parent / "elsewhere").writing(),
        pytest.raises(StoreDamagedError, match="linearkv repair makes it anew"),
    ):
        open_engine()
    lock = DocumentStore(filled.parent / "elsewhere")
    lock._lock = type(lock._lock)(filled / "index" / "writer.lock", thread_local=True)
    lock._holder = filled / "index" / "writer.json"
    with lock.writing(), pytest.raises(StoreLockedError, match=f"is being written by process {os.getpid()}"):
        open_engine(repair=True)
    assert [path.name for path in filled.glob("index/*.sqlite")] == ["documents.sqlite"]
    open_engine(repair=True).repair()
    engine = open_engine()
    with DocumentStore(filled / "index").writing(), pytest.raises(StoreLockedError):
        engine.repair()


def test_a_store_opened_for_reading_is_not_repaired(open_engine, filled):
    with pytest.raises(StoreReadOnlyError, match="nothing can be repaired"):
        open_engine(read_only=True, repair=True)
    with pytest.raises(StoreReadOnlyError, match="nothing can be repaired"):
        open_engine(read_only=True).repair()


def test_a_store_opened_for_reading_is_verified_without_a_change(open_engine, filled):
    flip(states(filled)[0])
    flip(records(filled)[0])
    before = sorted((path, path.stat().st_mtime_ns) for path in filled.rglob("*.safetensors"))
    found = open_engine(read_only=True).verify()
    assert len(found.damaged) == 2 and all("(left in place" in line for line in found.damaged)
    assert sorted((path, path.stat().st_mtime_ns) for path in filled.rglob("*.safetensors")) == before


def test_a_damaged_catalogue_that_was_not_set_aside_is_not_built_upon(open_engine, corpus, filled):
    with_another_text(catalogue(filled))
    engine = open_engine()
    with pytest.raises(StoreDamagedError, match="open the store with repair=True"):
        engine.repair()
    with pytest.raises(StoreDamagedError, match="linearkv repair"):
        engine.index(corpus)
    engine.close()
    report = open_engine(repair=True).repair()
    assert (report.restored, report.prefilled) == (DOCUMENTS, 0), "no record was made of it"


def test_who_had_the_old_catalogue_open_does_not_write_into_it(open_engine, corpus, filled):
    early = open_engine()
    catalogue(filled).unlink()
    open_engine(repair=True).repair()
    with pytest.raises(LinearKVError, match="made anew .* since it was opened: open the store again"):
        early.index(corpus)
    report = open_engine().index(corpus)
    assert (report.added, report.prefilled) == (0, 0)


# ---- the commands ----------------------------------------------------------------------------------------------------


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


@pytest.fixture
def store(filled):
    return filled.parents[1]


def test_verify_counts_what_is_there(run, store):
    status, out, err = run("verify", "--store", store, "--json")
    report = json.loads(out)
    assert (status, err) == (0, "")
    assert (report["clean"], report["pages"], report["records"], report["chunks"]) == (
        True,
        CHUNKS + 1,
        DOCUMENTS,
        CHUNKS,
    )
    names = ("damaged", "catalogue", "orphans", "foreign")
    assert [report[name] for name in names] == [[]] * 4
    assert [report[name] for name in ("without_state", "without_text", "without_record")] == [0, 0, 0]
    assert (report["store"], report["tenant"]) == (str(store), "default") and report["bytes"] > 0
    status, out, _ = run("verify", "--store", store)
    assert status == 0 and f"{DOCUMENTS} as written" in out and out.endswith("nothing is damaged\n")


def test_verify_fails_for_a_damaged_state_and_says_what_was_done(run, store, filled):
    damaged, other = states(filled)[:2]
    flip(damaged)
    flip(other)
    (filled / "pages" / "shopping list").write_text("rye")
    status, out, _ = run("verify", "--store", store)
    assert status == 1
    assert "damaged, and set aside unless it says otherwise (2)" in out and f"  {damaged.stem}: damaged: its MAC" in out
    assert f"{CHUNKS} chunks, 2 without a state" in out and "not ours, left alone (1)\n  pages/shopping list" in out
    assert not damaged.exists() and len(list((filled / "quarantine").iterdir())) == 2
    status, out, _ = run("verify", "--store", store, "--json")
    assert (status, json.loads(out)["without_state"]) == (0, 2)


def test_verify_fails_for_a_damaged_state_in_json(run, store, filled):
    flip(states(filled)[0])
    status, out, _ = run("verify", "--store", store, "--json")
    report = json.loads(out)
    assert (status, report["clean"], len(report["damaged"])) == (1, False, 1)


@pytest.mark.parametrize("damage", [*LOSSES, *DAMAGES], ids=lambda damage: damage.__name__)
def test_verify_fails_for_a_damaged_catalogue_and_leaves_it(run, store, filled, damage):
    damage(catalogue(filled))
    before = catalogue(filled).exists() and catalogue(filled).read_bytes()
    status, out, err = run("verify", "--store", store, "--json")
    report = json.loads(out)
    assert (status, report["clean"], report["damaged"]) == (1, False, []) and report["catalogue"]
    assert (report["pages"], report["records"]) == (CHUNKS + 1, DOCUMENTS)
    assert "Traceback" not in err
    assert (catalogue(filled).exists() and catalogue(filled).read_bytes()) == before


def test_verify_counts_states_of_text_that_is_gone(open_engine, run, store, corpus):
    engine = open_engine()
    (corpus / "mill.md").unlink()
    engine._retriever.sync(corpus, leave_out=[engine.store])  # the text is gone, and the process dies here
    engine.close()
    report = json.loads(run("verify", "--store", store, "--json")[1])
    assert (report["clean"], report["chunks"], report["without_state"], report["without_text"]) == (
        True,
        CHUNKS - 1,
        0,
        1,
    )


def test_verify_of_nothing_says_so(run, store, tmp_path):
    status, _, err = run("verify", "--store", tmp_path / "none")
    assert status == 1 and "no store at" in err
    status, out, _ = run("verify", "--store", store, "--tenant", "acme", "--json")
    assert status == 1 and "has nothing of tenant 'acme'" in json.loads(out)["error"]["message"]


@pytest.fixture
def model(tiny_checkpoint):
    return tiny_checkpoint("qwen3_5")


def test_repair_reports_in_json(run, store, filled, model):
    garbage(catalogue(filled))
    flip(states(filled)[0])
    status, out, _ = run("repair", "--store", store, "--model", model, "--json")
    report = json.loads(out)
    assert (status, report["restored"], report["prefilled"], report["reused"]) == (0, DOCUMENTS, 1, CHUNKS - 1)
    assert len(report["damaged"]) == 1 and report["lost"] == report["not_stored"] == []
    assert Path(report["set_aside"]).is_file() and "not a database" in report["catalogue"][0]
    assert run("verify", "--store", store)[0] == 0


def test_repair_reports_in_words(run, store, filled, model):
    garbage(catalogue(filled))
    flip(records(filled)[0])
    status, out, _ = run("repair", "--store", store, "--model", model)
    assert status == 1
    assert f"{DOCUMENTS - 1} documents restored" in out and "the damaged one is now " in out and "lost (" in out
    status, out, _ = run("repair", "--store", store, "--model", model)
    assert status == 0 and "0 documents restored, 0 chunks embedded\n" in out


def test_repair_refuses_a_store_that_is_being_indexed(run, store, filled, model):
    with DocumentStore(filled / "index").writing():
        status, _, err = run("repair", "--store", store, "--model", model)
    assert status == 1 and "is being written by process" in err
    status, _, err = run("repair", "--store", store / "none", "--model", model)
    assert status == 1 and "no store at" in err and not (store / "none").exists()
