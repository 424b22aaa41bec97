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
    with pytest.raises(
        StoreMismatchError, match="format 99, this LinearKV reads format 1: index the corpus into a new"
    ):
        DocumentStore(tmp_path)


def test_a_damaged_file_is_refused_with_what_to_do(tmp_path):
    (tmp_path / FILE).write_bytes(b"not a database at all" * 100)
    with pytest.raises(LinearKVError, match="is damaged .*delete the file and index again"):
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
    pages = quick.store._connection.execute("PRAGMA page_count").fetchone()[0]
    quick.store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
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


def test_token_ids_are_kept_for_their_tokenizer_only(quick, write, tmp_path, hashing_embedder):
    quick.sync(write({"a.md": "one", "b.md": "two"}))
    key = next(chunk.content_hash for chunk in quick.iter_chunks() if chunk.text == "one")
    quick.set_token_ids({key: [5, 300000, 7]})
    kept = {chunk.text: None if chunk.token_ids is None else chunk.token_ids.tolist() for chunk in quick.iter_chunks()}
    assert kept == {"one": [5, 300000, 7], "two": None}
    with Retriever(tmp_path / "store", hashing_embedder, tokenizer="another", mode="ro") as other:
        assert all(chunk.token_ids is None for chunk in other.iter_chunks())


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
