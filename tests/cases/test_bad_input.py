"""What a person reads when documents, models or stores are not as they should be."""

import errno
import os
import shutil
import subprocess

import psutil
import pytest

from linearkv.errors import LinearKVError, StoreFullError, StoreReadOnlyError, UnsupportedModelError
from linearkv.models import load_model
from linearkv.tenants import TenantSecretError, tenant_folder

LAMP = {"lamp.md": "# Lamp\n\nThe lamp is kept by Ilse Brandt.\n"}

FILES = {
    "empty.md": (b"", "empty"),
    "blank.txt": (b" \n\t\n", "empty"),
    "front.md": (b"---\ntitle: Only this\n---\n", "empty behind its front matter"),
    "noise.txt": (bytes(range(256)) * 40, "binary, not text"),
    "photo.png": (b"\x89PNG\r\n\x1a\n", ".png files are not read"),
    "broken.pdf": (b"%PDF-1.7\nnothing of a PDF", "the PDF could not be read"),
    "rows.jsonl": (b"[1, 2]\n", "no record in it could be indexed"),
}


def test_each_file_that_is_not_indexed_is_named_with_its_reason(open_engine, write, ask):
    engine = open_engine()
    report = engine.index(write(LAMP | {name: content for name, (content, _) in FILES.items()}))
    reasons = {item.path: item.reason for item in report.skipped}
    assert {name: reasons[name] for name in FILES if not reasons[name].startswith(FILES[name][1])} == {}
    assert report.documents == 1
    assert ask(engine, "Who keeps the lamp?")[0][0] == "lamp.md"


def test_a_huge_document_is_reported_and_costs_no_memory(open_engine, write, tmp_path):
    docs = write(LAMP)
    with (docs / "huge.txt").open("wb") as file:
        file.write(b"The huge one begins. ")
        file.truncate(100_000_000)
    with (docs / "line.jsonl").open("wb") as file:
        file.write(b'{"text": "')
        file.truncate(100_000_000)
    engine = open_engine(settings={"max_document_bytes": 8 << 20})
    before = psutil.Process().memory_info().rss
    report = engine.index(docs)
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert report.documents == 1
    reasons = {item.path: item.reason for item in report.skipped}
    assert reasons["huge.txt"] == "larger than the limit of 8,388,608 bytes"
    assert reasons["line.jsonl#line-1"] == "a line larger than the limit of 8,388,608 bytes"


def test_a_document_over_the_default_limit_is_reported(open_engine, write):
    docs = write(LAMP)
    with (docs / "huge.txt").open("wb") as file:
        file.truncate(100_000_000)
    report = open_engine().index(docs)
    assert [(item.path, item.reason) for item in report.skipped] == [
        ("huge.txt", "larger than the limit of 67,108,864 bytes")
    ]


def test_duplicates_share_a_state_until_the_last_is_deleted(open_engine, write, ask, pages):
    docs = write(dict.fromkeys(("one.md", "two.md"), LAMP["lamp.md"]))
    engine = open_engine()
    report = engine.index(docs)
    assert (report.documents, report.prefilled, len(pages(engine))) == (2, 1, 2)
    (docs / "one.md").unlink()
    assert engine.index(docs).removed == 1
    assert ask(engine, "Who keeps the lamp?", k=5) == [("two.md", "The lamp is kept by Ilse Brandt.")]
    (docs / "two.md").unlink()
    assert engine.index(docs).removed == 1
    assert len(pages(engine)) == 1, "the canary's"
    with pytest.raises(LinearKVError, match="nothing is indexed in .*: run linearkv index first"):
        engine.query("Who keeps the lamp?")


def test_links_that_lead_in_circles_end(open_engine, write):
    docs = write(LAMP | {"sub/rope.md": "# Rope\n\nThe rope is blue.\n"})
    (docs / "again").symlink_to(docs)
    (docs / "sub/up").symlink_to("..")
    (docs / "self").symlink_to("self")
    (docs / "gone.md").symlink_to("/nonexistent/gone.md")
    os.mkfifo(docs / "pipe.md")
    report = open_engine().index(docs)
    reasons = {item.path: item.reason for item in report.skipped}
    assert report.documents == 2
    assert reasons["again"] == reasons["sub/up"] == "the same folder as ., which is indexed already"
    assert reasons["gone.md"] == "a link to nothing: /nonexistent/gone.md"
    assert reasons["self"].startswith("a link: Too many levels")
    assert reasons["pipe.md"] == "a named pipe: not opened"


def test_a_folder_without_a_model_leaves_no_store_behind(open_engine, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no checkpoint in {tmp_path}/nowhere: config.json is missing"):
        open_engine(model=tmp_path / "nowhere")
    assert not (tmp_path / "store").exists()


def test_the_tokenizer_of_another_model_is_refused(open_engine, tiny_checkpoint, tmp_path):
    import json

    other = shutil.copytree(tiny_checkpoint("qwen3_5"), tmp_path / "other")
    description = json.loads((other / "tokenizer.json").read_text())
    description["model"]["vocab"]["zz"] = 70_000
    (other / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(
        UnsupportedModelError, match="has ids up to 70000, the model knows 0 to 511: it is the tokenizer"
    ):
        open_engine(tokenizer=other)


@pytest.mark.parametrize("place", ["store", "store/below"])
def test_a_store_that_is_a_file_is_refused(open_engine, tmp_path, place):
    (tmp_path / "store").write_text("a shopping list")
    with pytest.raises(StoreReadOnlyError, match=f"{tmp_path}/store is not a folder. Give another store."):
        open_engine(place)
    assert (tmp_path / "store").read_text() == "a shopping list"


@pytest.fixture
def filled(open_engine, write):
    """A closed store with one document; its tenant's folder."""
    engine = open_engine()
    engine.index(write(LAMP))
    engine.close()
    return tenant_folder(engine.store, "default")


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 200], ids=["header", "everything"])
def test_a_damaged_catalogue_is_named_and_its_states_are_found_anew(open_engine, write, filled, damage):
    path = filled / "index" / "documents.sqlite"
    content = bytearray(path.read_bytes())
    content[:100] = bytes(100)
    path.write_bytes(damage or content)
    with pytest.raises(LinearKVError, match=r"documents.sqlite is damaged \(.*\): linearkv repair makes it anew"):
        open_engine()
    path.unlink()
    report = open_engine().index(write(LAMP))
    assert (report.unchanged, report.prefilled, report.reused) == (1, 0, 1)
    assert report.notes == ["the catalogue was empty: 1 document(s) came back from their records"]


def test_a_missing_secret_is_named_and_not_replaced(open_engine, filled):
    (filled / "secret").unlink()
    with pytest.raises(TenantSecretError, match="secret is missing, .* Restore it from a backup, or destroy tenant"):
        open_engine()
    assert not (filled / "secret").exists()


def test_a_store_opened_for_reading_says_so_when_asked_to_index(open_engine, write, filled):
    engine = open_engine(read_only=True)
    assert engine.query("Who keeps the lamp?", k=1, max_new_tokens=1).cache.hits == 1
    for change in (lambda: engine.index(write(LAMP)), lambda: engine.remove("lamp.md")):
        with pytest.raises(StoreReadOnlyError, match="was opened for reading, so documents can neither be indexed nor"):
            change()


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 8 MiB; only root can make one."""
    path = tmp_path / "disk"
    path.mkdir()
    can = os.geteuid() == 0 and shutil.which("mount") is not None
    if not can or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", path]).returncode:
        pytest.skip("needs the right to mount a file system")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def fill_up(folder):
    with (folder / "ballast").open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def test_on_a_full_disk_what_was_finished_is_kept_and_the_rest_follows(open_engine, write, ask, small_disk):
    """First the catalogue finds no room, then the states do not; nothing that was there is lost either time."""
    docs = write(LAMP)
    engine = open_engine("disk/store")
    engine.index(docs)
    fill_up(small_disk)
    write({f"box{n}.md": f"# Box {n}\n\nBox {n} holds {n * 7} nails.\n" for n in range(40)})
    with pytest.raises(StoreFullError, match="free some space and index again, finished work is kept"):
        engine.index(docs)
    engine.close()
    engine = open_engine("disk/store")
    assert ask(engine, "Who keeps the lamp?")[0][0] == "lamp.md"
    assert engine.verify().clean

    os.truncate(small_disk / "ballast", (small_disk / "ballast").stat().st_size - (1 << 20))
    report = engine.index(docs)
    assert report.documents == 41 and any("disk" in reason for reason in report.not_stored)
    assert ask(engine, "What does box 39 hold?")[0][0] == "box39.md"
    engine.close()

    (small_disk / "ballast").unlink()
    engine = open_engine("disk/store")
    engine.index(docs)
    found = engine.verify()
    assert (found.clean, found.chunks, found.without_state) == (True, 41, 0)


def test_a_model_that_is_not_served_names_what_it_is(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM"):
        load_model(tmp_path, device="cpu")
