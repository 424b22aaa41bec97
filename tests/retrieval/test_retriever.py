import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from linearkv.errors import StoreMismatchError
from linearkv.retrieval import Embedder, Retriever


def paths(hits):
    return [hit.path for hit in hits]


def summary(report):
    names = ("added", "unchanged", "updated", "removed", "renamed", "embedded")
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def reasons(report):
    return {item.path: item.reason for item in report.skipped}


# ---- searching with the default embedder ----------------------------------------------------------------------------


def test_files_with_one_name_in_different_folders_stay_apart(real, write):
    corpus = write(
        {
            "north/readme.md": "# Station\n\nThe north station uses channel 21.\n",
            "south/readme.md": "# Station\n\nThe south station uses channel 58.\n",
            "ab.md": "The tin is violet.",
            "a/b.md": "The tin is green.",
        }
    )
    real.sync(corpus)
    assert paths(real.search("Which channel does the north station use?", 1)) == ["north/readme.md"]
    assert paths(real.search("Which channel does the south station use?", 1)) == ["south/readme.md"]
    south = real.search("south station", 1)[0].content_hash
    write({"north/readme.md": "# Station\n\nThe north station uses channel 33.\n"})
    assert summary(real.sync(corpus)) == {"updated": 1, "unchanged": 3, "embedded": 1}
    assert "channel 33" in real.search("Which channel does the north station use?", 1)[0].text
    assert real.search("south station", 1)[0].content_hash == south


def test_the_last_sentence_of_a_long_chunk_is_found(tmp_path, minilm, words, write):
    opening = "The survey team walked the lower terrace and wrote down the height of every wall they met. " * 24
    corpus = write({"a.txt": opening + "Milo mends accordions.", "b.txt": opening + "The cable comes ashore here."})
    with Retriever(tmp_path / "long", minilm, words, 4096) as retriever:
        assert retriever.sync(corpus).chunks == 2
        assert paths(retriever.search("who mends accordions", 1)) == ["a.txt"]
        assert paths(retriever.search("where does the cable come ashore", 1)) == ["b.txt"]


def test_the_end_of_unbreakable_texts_is_found(real, write):
    blob = "".join(chr(65 + n * 7 % 26) + str(n % 10) for n in range(3000))
    corpus = write(
        {"blob.txt": f"Key {blob}\nThe heron nests in March.", "cjk.txt": "山道记录" * 900 + "守门人叫欧阳竹。"}
    )
    real.sync(corpus)
    assert "heron nests" in real.search("When does the heron nest?", 1)[0].text
    assert real.search("守门人叫什么", 1)[0].text.endswith("守门人叫欧阳竹。")


@pytest.mark.parametrize("number", [3, 37, 118])
def test_a_number_is_found_among_texts_that_are_alike_but_for_it(real, write, number):
    real.sync(write({f"l{n}.md": f"Locker {n} contains {n * 7} buttons." for n in range(120)}))
    assert paths(real.search(f"What is in locker {number}?", 1)) == [f"l{number}.md"]


@pytest.mark.parametrize("k", [1, 2, 10])
def test_no_more_hits_than_chunks_and_none_twice(real, write, k):
    real.sync(write({"one.txt": "The red barge carries salt.", "two.txt": "The grey barge carries wool."}))
    hits = real.search("what does the red barge carry", k)
    assert paths(hits) == ["one.txt", "two.txt"][:k]
    assert [hit.position for hit in hits] == list(range(len(hits)))


@pytest.mark.parametrize(
    "question",
    ['"', "NEAR(red barge", "red AND", "text:red", "bar*", "((", "-red", "'; DROP TABLE chunks; --", "😀", "a\0b\ud800"]
    + ["red " * 2500, "ja" * 5000, "{}[]", "^"],
)
def test_any_question_is_data(real, write, question):
    real.sync(write({"one.txt": "The red barge carries salt."}))
    assert paths(real.search(question, 3)) == ["one.txt"]


# ---- searching ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["", "  \n"])
def test_a_blank_question_finds_nothing(quick, write, question):
    quick.sync(write({"a.md": "text"}))
    assert quick.search(question, 3) == []


def test_an_empty_index_finds_nothing(quick, write):
    assert quick.search("anything", 3) == []


def test_k_below_one_is_refused(quick):
    with pytest.raises(ValueError, match="k is 0"):
        quick.search("anything", 0)


def test_a_hit_says_where_it_stands(quick, write):
    quick.sync(write({"d/a.md": "---\nowner: Dara\n---\n# Kiln\n\nIntro.\n\n## Heat\n\n" + "Kiln is hot. " * 20}))
    hit = quick.search("hot", 1)[0]
    assert (hit.path, hit.title, hit.heading, hit.metadata) == ("d/a.md", "Kiln", "Kiln > Heat", {"owner": "Dara"})
    assert (hit.line_start, hit.line_end) == (10, 10)
    assert hit.rendered == f"# {hit.heading}\n{hit.text}\n\n"
    assert hit.chunk_id == f"d/a.md#{hit.content_hash[:16]}"


def test_equal_chunks_are_one_hit_with_all_its_places(quick, write):
    quick.sync(
        write({"a.md": "# Hours\n\nOpen at six.\n", "b.md": "\ufeff# Hours\r\n\r\nOpen at six.\r\n", "c.md": "Other."})
    )
    first, *rest = quick.search("when open", 5)
    assert (first.path, first.also_in) == ("a.md", ["b.md"])
    assert paths(rest) == ["c.md"]


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"floor": 2}, ["b.md"]),
        ({"floor": [1, 2]}, ["a.md", "b.md"]),
        ({"tags": "red"}, ["a.md"]),
        ({"path": "sub"}, ["sub/c.md"]),
        ({"path": "sub", "floor": 1}, []),
        ({"path": "su"}, []),
    ],
)
def test_where_filters_by_metadata_and_path(quick, write, where, found):
    files = {"a.md": "---\nfloor: 1\ntags: [red, old]\n---\nA lamp.", "b.md": "---\nfloor: 2\n---\nThe lamp."}
    quick.sync(write(files | {"sub/c.md": "No lamp."}))
    assert sorted(paths(quick.search("lamp", 5, where=where))) == found


@pytest.fixture
def corpus_with_hashes(quick, write):
    """An index of names that go on behind a "#", which also stands between a file and its records."""
    lines = '{"id": 1, "text": "Red lamp."}\n{"id": 2, "text": "Blue lamp."}\n'
    names = ("C/a.md", "C#/a.md", "C#.md", "a.jsonl#old/b.md")
    corpus = write({name: f"Lamp {n}." for n, name in enumerate(names)} | {"a.jsonl": lines})
    quick.sync(corpus)
    return corpus


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("C", ["C/a.md"]),
        ("C#", ["C#/a.md"]),
        ("a.jsonl", ["a.jsonl#1", "a.jsonl#2"]),
        ("a.jsonl#1", ["a.jsonl#1"]),
        ("a.jsonl#old", ["a.jsonl#old/b.md"]),
    ],
)
def test_a_path_means_a_folder_a_file_or_a_record_and_nothing_that_only_starts_like_it(
    quick, corpus_with_hashes, path, found
):
    assert sorted(paths(quick.search("lamp", 9, where={"path": path}))) == found
    assert quick.remove(path) == len(found)
    assert set(paths(quick.search("lamp", 9))).isdisjoint(found)


def test_a_folder_that_cannot_be_listed_keeps_nothing_of_one_whose_name_only_starts_like_its(
    quick, corpus_with_hashes, monkeypatch
):
    shutil.rmtree(corpus_with_hashes / "C#")
    listdir = os.listdir

    def refuse(path):
        if Path(path).name == "C":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert summary(quick.sync(corpus_with_hashes))["removed"] == 1
    assert "C/a.md" in paths(quick.search("lamp", 9))


def test_an_open_reader_sees_what_a_writer_adds_and_removes(quick, write, tmp_path, hashing_embedder):
    corpus = write({"a.md": "A lamp."})
    quick.sync(corpus)
    with Retriever(tmp_path / "store", hashing_embedder, mode="ro") as reader:
        assert paths(reader.search("lamp", 5)) == ["a.md"]
        write({"b.md": "Another lamp."})
        (corpus / "a.md").unlink()
        quick.sync(corpus)
        assert paths(reader.search("lamp", 5)) == ["b.md"]


# ---- keeping in step ------------------------------------------------------------------------------------------------


def test_a_second_sync_changes_nothing(quick, write):
    corpus = write({"a.md": "one", "b.jsonl": '{"text": "two"}\n{"text": "three"}\n', "c.txt": b"\xff\xfe"})
    first = quick.sync(corpus)
    second = quick.sync(corpus)
    assert summary(first) == {"added": 3, "embedded": 3}
    assert summary(second) == {"unchanged": 3}
    assert (second.skipped, second.notes) == (first.skipped, first.notes)


def test_settled_files_are_not_read_again(quick, write, monkeypatch):
    corpus = write({"a.md": "one"})
    monkeypatch.setattr("linearkv.retrieval.syncing._SETTLED_NS", -1)
    quick.sync(corpus)
    monkeypatch.setattr("linearkv.retrieval.syncing.load", None)
    assert summary(quick.sync(corpus)) == {"unchanged": 1}


def test_an_edit_that_keeps_size_and_time_is_seen(quick, write):
    corpus = write({"a.md": "The tin is red."})
    os.utime(corpus / "a.md", ns=(10**18, 10**18))
    quick.sync(corpus)
    write({"a.md": "The tin is tan."})
    os.utime(corpus / "a.md", ns=(10**18, 10**18))
    assert summary(quick.sync(corpus)) == {"updated": 1, "embedded": 1}


def test_only_changed_chunks_are_embedded(quick, write):
    parts = [f"# Part {n}\n\n" + f"Locker {n} has buttons. " * 9 + "\n\n" for n in range(10)]
    corpus = write({"a.md": "".join(parts)})
    assert quick.sync(corpus).embedded == 10
    parts[4] = "# Part 4\n\n" + "Locker 4 is empty. " * 9 + "\n\n"
    write({"a.md": "".join(parts)})
    assert quick.sync(corpus).embedded == 1


def test_moved_and_copied_documents_are_followed_without_embedding(quick, write):
    corpus = write({"a.md": "# Bell\n\nRecast by Oona Reyl.\n", "c.md": "# Gate\n\nThe baker keeps the key.\n"})
    quick.sync(corpus)
    (corpus / "sub").mkdir()
    (corpus / "a.md").rename(corpus / "sub" / "a.md")
    assert summary(quick.sync(corpus)) == {"renamed": 1, "unchanged": 1}
    assert summary(quick.sync(corpus)) == {"unchanged": 2}
    assert paths(quick.search("Oona Reyl", 1)) == ["sub/a.md"]
    shutil.copy(corpus / "sub" / "a.md", corpus / "copy.md")
    assert summary(quick.sync(corpus)) == {"added": 1, "unchanged": 2}
    (corpus / "sub" / "a.md").unlink()
    assert summary(quick.sync(corpus)) == {"removed": 1, "unchanged": 2}
    (hit,) = quick.search("Oona Reyl", 1)
    assert (hit.path, hit.also_in) == ("copy.md", [])


def test_removed_documents_leave_nothing_behind(quick, write):
    corpus = write({"a.md": "A lamp.", "b.md": "Plums."})
    quick.sync(corpus)
    (corpus / "b.md").unlink()
    quick.sync(corpus)
    assert paths(quick.search("plums", 5)) == ["a.md"]
    assert len(quick.live_hashes()) == 1
    tables = ("documents", "contents", "vectors", "chunks", "files")
    assert [quick.store._one(f"SELECT count(*) FROM {table}") for table in tables] == [1] * len(tables)
    assert quick.store._one("SELECT count(*) FROM words WHERE words MATCH 'plums'") == 0


def test_records_that_left_a_json_lines_file_are_removed(quick, write):
    corpus = write({"a.jsonl": '{"id": 1, "text": "lamp"}\n{"id": 2, "text": "plums"}\n'})
    quick.sync(corpus)
    write({"a.jsonl": '{"id": 2, "text": "plums"}\n{"id": 3, "text": "tiles"}\n'})
    report = quick.sync(corpus)
    assert sorted(paths(quick.search("lamp plums tiles", 5))) == ["a.jsonl#2", "a.jsonl#3"]
    assert report.embedded == 1


def test_a_sync_of_one_place_leaves_the_others_alone(quick, write):
    docs, notes = write({"a.md": "lamp", "sub/b.md": "plums"}), write({"a.md": "tiles"}, folder="notes")
    quick.sync(docs)
    quick.sync(notes)
    write({"a.md": "lantern"})
    assert summary(quick.sync(docs / "a.md")) == {"updated": 1, "embedded": 1}
    (docs / "sub" / "b.md").unlink()
    assert summary(quick.sync(docs / "sub")) == {"removed": 1}
    assert sorted(paths(quick.search("anything", 5))) == ["a.md", "notes:a.md"]


def test_a_wider_folder_takes_the_narrower_one_over(quick, write):
    docs = write({"sub/a.md": "lamp", "b.md": "plums"})
    quick.sync(docs / "sub")
    assert summary(quick.sync(docs)) == {"unchanged": 1, "added": 1, "embedded": 1}
    assert sorted(paths(quick.search("lamp", 5))) == ["b.md", "sub/a.md"]


@pytest.mark.parametrize("given", [["b.md"], ["sub", "b.md"], ["b.md", "sub"]])
def test_a_wider_folder_that_is_read_in_part_keeps_the_narrower_one(quick, write, given):
    docs = write({"sub/a.md": "lamp", "sub/c.jsonl": '{"id": 1, "text": "tiles"}', "b.md": "plums"})
    quick.sync(docs / "sub")
    quick.sync([docs / name for name in given])
    assert sorted(paths(quick.search("lamp tiles plums", 5))) == ["b.md", "sub/a.md", "sub/c.jsonl#1"]


class Interrupted(Exception):
    pass


def after(calls):
    """A callback that interrupts the run when it is called more often than this."""
    left = [calls]

    def callback(_):
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted

    return callback


@pytest.mark.parametrize("files", [0, 1, 2])
def test_an_interrupted_widening_leaves_no_document_behind(quick, write, files):
    docs = write({"sub/a.md": "lamp", "b.md": "plums", "c.md": "tiles"})
    quick.sync(docs / "sub")
    with pytest.raises(Interrupted):
        quick.sync(docs, progress=after(files))
    assert "sub/a.md" in paths(quick.search("lamp", 5))
    quick.sync(docs)
    shutil.rmtree(docs / "sub")
    assert summary(quick.sync(docs)) == {"unchanged": 2, "removed": 1}
    assert sorted(paths(quick.search("lamp", 5))) == ["b.md", "c.md"]


def test_a_folder_that_an_earlier_run_left_beside_the_wider_one_is_taken_over(quick, write):
    docs = write({"sub/a.md": "lamp", "b.md": "plums"})
    quick.sync(docs)
    with quick.writing():
        left = quick.store.add_root("sub", str(docs / "sub"))
        with quick.store.transaction() as db:
            for name in ("a.md", "gone.md"):
                quick.store.begin_file(db, left, name)
    assert summary(quick.sync(docs)) == {"unchanged": 2}
    assert [root.location for root in quick.store.roots()] == [str(docs)]
    assert [path for _, path in quick.store.files_under(quick.store.roots()[0], "")] == ["b.md", "sub/a.md"]


def test_overlapping_paths_are_indexed_once(quick, write):
    docs = write({"sub/a.md": "lamp"})
    assert quick.sync([docs / "sub", docs, docs / "sub" / "a.md"]).documents == 1


def test_a_corpus_that_moved_is_recognised(quick, write, tmp_path):
    corpus = write({"a.md": "lamp", "b/c.md": "plums"})
    quick.sync(corpus)
    (tmp_path / "elsewhere").mkdir()
    corpus.rename(tmp_path / "elsewhere" / "corpus")
    assert summary(quick.sync(tmp_path / "elsewhere" / "corpus")) == {"unchanged": 2}
    assert paths(quick.search("lamp", 1)) == ["a.md"]


def test_a_corpus_that_moved_and_was_edited_in_part_is_recognised(quick, write, tmp_path):
    corpus = write({"a.md": "lamp", "b.md": "plums", "c.md": "tiles", "d.png": b"", "e.png": b""})
    quick.sync(corpus)
    (tmp_path / "elsewhere").mkdir()
    corpus.rename(tmp_path / "elsewhere" / "corpus")
    write({"c.md": "more tiles"}, folder="elsewhere/corpus")
    assert summary(quick.sync(tmp_path / "elsewhere" / "corpus")) == {"unchanged": 2, "updated": 1, "embedded": 1}


@pytest.mark.parametrize(
    "files",
    [
        {"other.md": "tiles"},
        {"readme.md": "tiles", "licence.md": "A copy of the licence.", "guide.md": "marbles"},
    ],
    ids=["other names", "some names and a text in common"],
)
def test_another_folder_of_the_same_name_leaves_the_documents_of_one_that_is_gone(quick, write, tmp_path, files):
    common = {"licence.md": "A copy of the licence."}
    usb = write({"readme.md": "lamp", "guide.md": "plums"} | common, folder="usb/docs")
    quick.sync(usb)
    (tmp_path / "usb").rename(tmp_path / "unmounted")
    home = write(files, folder="home/docs")
    report = quick.sync(home)
    assert report.removed == 0
    assert {"readme.md", "guide.md"} <= set(paths(quick.search("lamp plums", 9)))
    (note,) = report.notes
    assert (note.path, note.text) == (
        str(usb),
        f"does not exist, and {home} holds other documents: its own stay in the index",
    )
    (tmp_path / "unmounted").rename(tmp_path / "usb")
    assert summary(quick.sync([usb, home])) == {"unchanged": 3 + len(files)}


def test_a_corpus_that_is_gone_is_not_emptied(quick, write, tmp_path):
    corpus = write({"a.md": "lamp"})
    quick.sync(corpus)
    corpus.rename(tmp_path / "unmounted")
    report = quick.sync(corpus)
    assert "does not exist" in report.skipped[0].reason
    assert report.documents == 1


def test_a_path_that_never_was_is_reported(quick, tmp_path):
    assert reasons(quick.sync(tmp_path / "typo")) == {str(tmp_path / "typo"): "does not exist"}


def test_a_folder_that_cannot_be_listed_keeps_its_documents(quick, write, monkeypatch):
    corpus = write({"sub/a.md": "lamp", "b.md": "plums"})
    quick.sync(corpus)
    listdir = os.listdir

    def refuse(path):
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    report = quick.sync(corpus)
    assert reasons(report) == {"sub": "cannot be read: Permission denied"}
    assert report.documents == 2


def test_a_file_that_is_gone_is_removed_when_it_is_named(quick, write):
    corpus = write({"a.md": "lamp", "b.md": "plums"})
    quick.sync(corpus)
    (corpus / "b.md").unlink()
    report = quick.sync(corpus / "b.md")
    assert (summary(report), report.skipped, report.notes) == ({"removed": 1}, [], [])


def test_what_a_missing_package_kept_out_is_read_once_it_is_there(quick, write, monkeypatch):
    corpus = write({"a.html": "<html><body><p>The lamp is lit at six, and put out at nine.</p></body></html>"})
    monkeypatch.setattr("linearkv.retrieval.syncing._SETTLED_NS", -1)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "trafilatura", None)
        for _ in range(2):
            report = quick.sync(corpus)
            assert reasons(report) == {"a.html": "needs trafilatura: pip install 'linearkv[docs]'"}
            assert report.notes == []
    report = quick.sync(corpus)
    assert (summary(report), report.skipped) == ({"added": 1, "embedded": 1}, [])


def test_one_file_that_a_parser_trips_over_is_reported_and_the_others_are_indexed(quick, write, monkeypatch):
    corpus = write({"a.md": "lamp", "b.jsonl": '{"text": "plums"}'})

    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr("linearkv.retrieval.loaders.MarkdownIt", fail)
    report = quick.sync(corpus)
    assert reasons(report) == {"a.md": "cannot be read: MemoryError: no room"}
    assert summary(report) == {"added": 1, "embedded": 1}


def test_removing_is_undone_by_the_next_sync(quick, write):
    corpus = write({"sub/a.md": "lamp", "sub/b.md": "plums", "c.md": "tiles"})
    quick.sync(corpus)
    assert quick.remove(["sub"]) == 2
    assert paths(quick.search("lamp", 5)) == ["c.md"]
    assert summary(quick.sync(corpus)) == {"added": 2, "unchanged": 1, "embedded": 2}


def test_documents_are_removed_by_their_place_too(quick, write):
    corpus = write({"sub/a.md": "lamp", "c.md": "tiles"})
    quick.sync(corpus)
    assert quick.remove([str(corpus / "sub")]) == 1
    assert quick.remove([str(corpus)]) == 1
    assert quick.remove(["nothing/like/it"]) == 0


def test_a_path_or_several_paths_are_removed(quick, write):
    corpus = write({f"{n}.md": f"Locker {n}." for n in range(5)} | {os.fsdecode(b"pond_\xff.md"): "nine carp"})
    quick.sync(corpus)
    assert quick.remove("0.md") == 1
    assert quick.remove(corpus / "1.md") == 1
    assert quick.remove([corpus / "2.md", "3.md"]) == 2
    assert quick.remove(corpus / os.fsdecode(b"pond_\xff.md")) == 1
    assert quick.store.counts()["documents"] == 1


@pytest.mark.parametrize("path", ["", "  ", Path(), ["a.md", ""]])
def test_a_blank_path_is_not_taken_for_the_working_directory(quick, write, monkeypatch, path):
    corpus = write({"a.md": "lamp", "b.md": "plums"})
    quick.sync(corpus)
    monkeypatch.chdir(corpus)
    with pytest.raises(ValueError, match="which is blank: name a document, a file or a folder"):
        quick.remove(path)
    assert quick.store.counts()["documents"] == 2


def test_another_tokenizer_or_target_chunks_again(quick, write, tmp_path, hashing_embedder, words):
    corpus = write({"a.md": "lamp " * 100})
    quick.sync(corpus)
    with Retriever(tmp_path / "store", hashing_embedder, lambda text: 2 * words(text), 64, tokenizer="two") as other:
        other.sync(corpus)
        assert max(2 * words(chunk.rendered) for chunk in other.iter_chunks()) <= 64


def test_a_sync_tells_batches_and_progress(quick, write):
    batches, progress = [], []
    report = quick.sync(
        write({f"{n}.md": f"Locker {n}." for n in range(100)}), on_batch=batches.append, progress=progress.append
    )
    hashes = [key for batch in batches for key in batch.content_hashes]
    assert (len(batches), set(hashes)) == (2, quick.live_hashes())
    assert (progress[0].files_done, progress[-1].files_done, progress[-1].files) == (0, 100, 100)
    assert progress[-1].bytes_done == progress[-1].bytes > 0
    assert report.documents == 100


# ---- documents that are out of date ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["superseded", "Deprecated"])
def test_documents_with_such_a_status_stay_out_and_are_reported(quick, write, status):
    corpus = write(
        {"old.md": f"---\nstatus: {status}\n---\nOld lamp.", "new.md": "---\nstatus: active\n---\nNew lamp."}
    )
    report = quick.sync(corpus)
    assert paths(quick.search("lamp", 5)) == ["new.md"]
    assert reasons(report) == {"old.md": f"its metadata says status: {status.lower()}"}


def test_a_document_that_becomes_superseded_leaves_the_index(quick, write):
    corpus = write({"a.md": "---\nstatus: active\n---\nThe lamp."})
    quick.sync(corpus)
    write({"a.md": "---\nstatus: superseded\n---\nThe lamp."})
    assert quick.sync(corpus).documents == 0
    assert quick.live_hashes() == set()


@pytest.mark.parametrize("target", ["rule-1", "sub/old.md", "old.md"])
def test_what_an_active_document_replaces_stays_out_until_it_is_gone(quick, write, target):
    corpus = write(
        {"sub/old.md": "---\nid: rule-1\n---\nOld lamp.", "sub/new.md": f"---\nreplaces: {target}\n---\nNew lamp."}
    )
    report = quick.sync(corpus)
    assert paths(quick.search("lamp", 5)) == ["sub/new.md"]
    assert reasons(report) == {"sub/old.md": "replaced by sub/new.md"}
    (corpus / "sub/new.md").unlink()
    assert quick.sync(corpus).embedded == 0
    assert paths(quick.search("lamp", 5)) == ["sub/old.md"]


@pytest.mark.parametrize("first", [True, False], ids=["at its first reading", "when it was edited"])
def test_a_replaced_document_is_not_found_while_a_run_goes_on_nor_after_an_interruption(quick, write, first):
    corpus = write({"a-old.md": "Old lamp.", "b-new.md": "---\nreplaces: a-old\n---\nNew lamp."})
    if not first:
        quick.sync(corpus)
        write({"a-old.md": "Old lamp, edited."})
    found = []

    def interrupt(_):
        found.extend(paths(quick.search("lamp", 5)))
        raise Interrupted

    with pytest.raises(Interrupted):
        quick.sync(corpus, on_batch=interrupt)
    assert found == paths(quick.search("lamp", 5)) == ["b-new.md"]


def test_a_replaced_document_is_found_as_soon_as_the_one_that_replaces_it_is_removed(quick, write):
    quick.sync(write({"old.md": "Old lamp.", "sub/new.md": "---\nreplaces: old\n---\nNew lamp."}))
    assert quick.remove("sub") == 1
    assert paths(quick.search("lamp", 5)) == ["old.md"]


def test_a_document_that_replaces_another_is_reported_by_its_present_name(quick, write):
    corpus = write({"old.md": "Old lamp.", "a.md": "---\nreplaces: old\n---\nNew lamp."})
    quick.sync(corpus)
    (corpus / "a.md").rename(corpus / "z.md")
    assert reasons(quick.sync(corpus)) == {"old.md": "replaced by z.md"}


@pytest.mark.parametrize("length", [2, 3])
def test_documents_that_replace_each_other_in_a_circle_all_stay_and_are_noted(quick, write, length):
    circle = {f"{n}.md": f"---\nreplaces: [{(n + 1) % length}]\n---\nLamp {n}." for n in range(length)}
    corpus = write(circle | {"8.md": "Old lamp.", "9.md": "---\nreplaces: [8, 9]\n---\nNew lamp."})
    report = quick.sync(corpus)
    assert sorted(paths(quick.search("lamp", 9))) == [*circle, "9.md"]
    assert reasons(report) == {"8.md": "replaced by 9.md"}
    (note,) = report.notes
    names = [*circle, "0.md"]
    start = names.index(note.path)
    around = [*names[start + 1 :], *names[1 : start + 1]]
    assert note.text == f"replaces {', which replaces '.join(around)}: none of them is left out"


# ---- embedding models -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_minilm(minilm, tmp_path_factory):
    """A model of the same width with other weights."""
    from safetensors.numpy import load_file, save_file

    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(minilm.folder, folder)
    tensors = load_file(folder / "model.safetensors")
    name = "encoder.layer.5.output.dense.weight"
    tensors[name] = np.ascontiguousarray(tensors[name][::-1])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return Embedder(folder)


def test_another_model_of_the_same_width_is_refused_by_name(real, write, tmp_path, measure, other_minilm):
    corpus = write({"a.md": "lamp"})
    real.sync(corpus)
    with Retriever(tmp_path / "store", other_minilm, measure, 128) as other:
        for attempt in (lambda: other.search("lamp", 1), lambda: other.sync(corpus)):
            with pytest.raises(
                StoreMismatchError, match=r"embedded with all-MiniLM-L6-v2 .* opened with other .*--re-emb"
            ):
                attempt()


def test_another_width_is_refused(quick, write, tmp_path, hashing_of_width):
    quick.sync(write({"a.md": "lamp"}))
    with Retriever(tmp_path / "store", hashing_of_width(128)) as other, pytest.raises(StoreMismatchError):
        other.search("lamp", 1)


def test_embedding_again_switches_the_whole_store(quick, write, tmp_path, hashing_of_width, words):
    corpus = write({"a.md": "lamp", "b.md": "plums"})
    quick.sync(corpus)
    with Retriever(tmp_path / "store", hashing_of_width(128), words, 64) as other:
        assert summary(other.sync(corpus, reembed=True)) == {"unchanged": 2, "embedded": 2}
        assert paths(other.search("plums", 1)) == ["b.md"]
        assert other.store._all("SELECT DISTINCT embedder FROM vectors") == [("hashing-128",)]
    with pytest.raises(StoreMismatchError):
        quick.search("lamp", 1)
