import sqlite3

import pytest

from linearkv.errors import LinearKVError, StoreFullError, StoreMismatchError, StoreReadOnlyError
from linearkv.retrieval import DocumentStore, Retriever
from linearkv.retrieval.store import FILE, match_expression


@pytest.mark.parametrize("k", ["mode", "missing"])
def test_reading_where_no_index_is_says_so(tmp_path, k):
    with pytest.raises(LinearKVError, match="no index in .*linearkv index"):
        DocumentStore(tmp_path / k, mode="ro")


def test_another_format_is_refused_with_what_to_do(tmp_path):
    DocumentStore(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(StoreMismatchError, match="format 99, this LinearKV reads 1 and 2: index the corpus into a new"):
        DocumentStore(tmp_path)


def test_a_damaged_file_is_refused_with_what_to_do(tmp_path):
    (tmp_path / FILE).write_bytes(b"not a database at all" * 100)
    with pytest.raises(LinearKVError, match="is damaged .*linearkv repair .*delete the file and index again"):
        DocumentStore(tmp_path)


def test_a_read_only_store_refuses_to_write(tmp_path):
    DocumentStore(tmp_path).close()
    with DocumentStore(tmp_path, mode="ro") as store, pytest.raises(StoreReadOnlyError), store.writing():
        pass


def test_a_transaction_that_fails_leaves_nothing(tmp_path):
    with DocumentStore(tmp_path) as store, store.writing():
        generation = store.generation
        with pytest.raises(RuntimeError), store.transaction() as db:
            db.execute("INSERT INTO meta VALUES ('half', 'done')")
            raise RuntimeError
        assert (store.get("half"), store.generation) == (None, generation)


def test_a_full_disk_keeps_what_was_committed(quick, write):
    quick.sync(write({"a.md": "The pier has bollards."}))
    pages = quick.store._writer.execute("PRAGMA page_count").fetchone()[0]
    quick.store._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreFullError, match="free some space"):
        quick.sync(write({f"b{n}.md": f"Locker {n} " * 500 for n in range(50)}))
    assert [hit.path for hit in quick.search("bollards", 1)] == ["a.md"]
    assert quick.store.verify() == []


def test_nothing_in_the_store_depends_on_where_it_lies(quick, write, tmp_path, hashing_embedder):
    quick.sync(write({"a.md": "The pier has bollards."}))
    quick.close()
    (tmp_path / "store").rename(tmp_path / "moved store?#%")
    with Retriever(tmp_path / "moved store?#%", hashing_embedder, mode="ro") as moved:
        assert [hit.path for hit in moved.search("bollards", 1)] == ["a.md"]


@pytest.fixture
def old_store(quick, write, tmp_path, monkeypatch):
    """A store of format 1, with a document that replaces another, and one that is said to be as it is not."""
    monkeypatch.setattr("linearkv.retrieval.syncing._SETTLED_NS", -1)
    quick.sync(write({"new.md": "---\nreplaces: old\n---\nNew lamp.", "old.md": "Old lamp.", "a.md": "Plums."}))
    quick.close()
    with sqlite3.connect(tmp_path / "store" / FILE) as db:
        for name in ("by_path", "by_own_id", "hidden", "replacing"):
            db.execute(f"DROP INDEX documents_{name}")
        db.execute("ALTER TABLE contents ADD COLUMN token_ids BLOB")
        db.execute("ALTER TABLE contents ADD COLUMN tokenizer TEXT")
        db.execute("UPDATE contents SET token_ids = x'0102', tokenizer = 'one'")
        db.execute("""UPDATE files SET findings = '[["note", "a.md", "needs a package"]]' WHERE path = 'a.md'""")
        db.execute("UPDATE meta SET value = '1' WHERE key = 'schema'")
    return tmp_path / "store"


def schema(folder):
    with sqlite3.connect(folder / FILE) as db:
        return sorted(row[0] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_store_of_format_1_is_searched_as_it_is(old_store, hashing_embedder, mode):
    before = schema(old_store)
    with Retriever(old_store, hashing_embedder, mode=mode) as retriever:
        assert {hit.path for hit in retriever.search("lamp plums", 5)} == {"new.md", "a.md"}
        assert len(list(retriever.iter_chunks())) == 2
    assert schema(old_store) == before


def test_what_is_replaced_in_a_store_of_format_1_is_hidden_when_it_is_written(old_store):
    with sqlite3.connect(old_store / FILE) as db:
        db.execute("UPDATE documents SET hidden = NULL")
    with DocumentStore(old_store) as store:
        with store.writing():
            pass
        assert store.counts()["documents"] == 2


def test_a_store_of_format_1_becomes_one_of_format_2_when_it_is_written(old_store, tmp_path, hashing_embedder, words):
    with Retriever(old_store, hashing_embedder, words, 64) as retriever:
        report = retriever.sync(tmp_path / "corpus")
        assert (report.unchanged, report.embedded, report.notes) == (3, 0, [])
        assert {hit.path for hit in retriever.search("lamp plums", 5)} == {"new.md", "a.md"}
        assert (retriever.store.get("schema"), retriever.store.verify()) == ("2", [])
    DocumentStore(tmp_path / "fresh").close()
    assert schema(old_store) == schema(tmp_path / "fresh")


def test_iterating_meets_every_distinct_chunk_once_whatever_the_batch(quick, write):
    quick.sync(write({f"{n}.md": f"Locker {n % 7} is red." for n in range(20)}))
    chunks = list(quick.iter_chunks(batch=2))
    assert sorted(chunk.content_hash for chunk in chunks) == sorted(quick.live_hashes())
    assert len(chunks) == 7


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ('a "b" NEAR(c, 2)', '"a" OR "b" OR "near" OR "c" OR "2"'),
        ("title:x^2 AND y* NOT (z", '"title" OR "x" OR "2" OR "and" OR "y" OR "not" OR "z"'),
        ("山道记录?", '"山 道" OR "道 记" OR "记 录"'),
        ("?! --", ""),
    ],
)
def test_a_question_is_words_and_never_syntax(question, expression):
    assert match_expression(question) == expression
