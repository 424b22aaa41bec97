import inspect
import os
import socket
import sys

import pytest

from linearkv.retrieval import Found, Skipped, walk
from linearkv.retrieval.walking import shown


def walked(folder, **options):
    root = os.path.realpath(folder)
    items = list(walk(root, root=root, **options))
    found = [item.path for item in items if isinstance(item, Found)]
    return found, {item.path: item.reason for item in items if isinstance(item, Skipped)}


@pytest.fixture
def tree(write, tmp_path):
    """A corpus with every kind of awkward entry."""
    docs = write({"one.md": "Crate 5.", "sub/two.md": "Crate 6.", ".git/note.md": "hidden"})
    write({"secret.md": "outside"}, folder="outside")
    (docs / "loop").symlink_to(".")
    (docs / "sub" / "up").symlink_to("..")
    (docs / "dead.md").symlink_to("/nonexistent/target.md")
    (docs / "link_out.md").symlink_to("../outside/secret.md")
    (docs / "a_again.md").symlink_to("one.md")
    (docs / "into_hidden.md").symlink_to(".git/note.md")
    os.mkfifo(docs / "pipe.md")
    return docs


def test_each_real_file_is_found_once_despite_link_cycles(tree):
    assert walked(tree)[0] == ["one.md", "sub/two.md"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("dead.md", "a link to nothing: /nonexistent/target.md"),
        ("link_out.md", "out of the indexed folder"),
        ("pipe.md", "a named pipe: not opened"),
        (".git", "hidden"),
        ("into_hidden.md", "a link to something hidden"),
        ("a_again.md", "the same file as one.md"),
        ("loop", "the same folder as ."),
        ("sub/up", "the same folder as ."),
    ],
)
def test_whatever_is_left_out_is_reported_with_its_reason(tree, path, reason):
    assert reason in walked(tree)[1][path]


def test_outside_files_are_read_when_asked(tree):
    assert "link_out.md" in walked(tree, follow_outside=True)[0]


def test_a_hard_link_is_the_same_file(write):
    docs = write({"a.md": "text"})
    os.link(docs / "a.md", docs / "b.md")
    assert walked(docs)[0] == ["a.md"]


def test_a_socket_is_not_opened(write, monkeypatch):
    docs = write({"a.md": "text"})
    monkeypatch.chdir(docs)  # socket paths are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("live.md")
        assert walked(docs)[1] == {"live.md": "a socket: not opened"}


def test_the_index_inside_the_corpus_is_left_out(write):
    docs = write({"a.md": "text", "store/b.md": "not a document"})
    found, skipped = walked(docs, leave_out=frozenset([os.path.realpath(docs / "store")]))
    assert (found, skipped) == (["a.md"], {"store": "holds the index itself"})


def test_a_name_that_is_not_utf8_is_shown_escaped(write):
    docs = write({"a.md": "text"})
    (docs / os.fsdecode(b"pond_\xff_log.txt")).write_text("nine carp")
    assert walked(docs)[0] == ["a.md", r"pond_\xff_log.txt"]


def test_different_names_are_shown_differently():
    names = [os.fsdecode(b"p\xff"), r"p\xff", "p\n", r"p\n", "pÿ"]
    assert len({shown(name) for name in names}) == len(names)


def test_folders_may_be_nested_deeper_than_the_stack(write):
    docs = write({"d/" * 300 + "deep.md": "text"})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 200)
    try:
        found = walked(docs)[0]
    finally:
        sys.setrecursionlimit(limit)
    assert found == ["d/" * 300 + "deep.md"]
