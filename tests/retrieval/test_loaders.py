import json
import os
import sys

import pytest

from linearkv.retrieval import Document, Found, Note, Skipped, load


def pdf(*pages):
    """A PDF with a line of text on each page."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%b]/Count %d>>" % (kids, len(pages)),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for n, text in enumerate(pages):
        content = b"BT /F1 12 Tf 20 100 Td (%b) Tj ET" % text.encode()
        resources = b"/Resources<</Font<</F1 3 0 R>>>>"
        objects.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents %d 0 R%b>>" % (5 + 2 * n, resources))
        objects.append(b"<</Length %d>> stream\n%b\nendstream" % (len(content), content))
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj %b endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer <</Root 1 0 R/Size %d>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n%b" % (len(objects) + 1, table) + end


PDF = pdf("Kiln three is blue inside.", "The dock holds nine boats.")


@pytest.fixture
def loaded(write):
    """Documents, skipped and notes of one file with the given content."""

    def loaded(name, content, max_bytes=1 << 20):
        path = write({name: content}) / name
        items = list(load(Found(name, str(path), path.stat().st_size), max_bytes))
        kinds = (Document, Skipped, Note)
        return tuple([item for item in items if isinstance(item, kind)] for kind in kinds)

    return loaded


def headings(document):
    return [section.heading_path for section in document.sections]


def test_markdown_sections_follow_headings_of_all_kinds_but_not_fences(loaded):
    text = "Intro.\n\n# A\n\none\n\n```\n# not a heading\n```\n\nB\n---\ntwo\n\n### C ###\n\n> # quoted\n"
    (document,), _, _ = loaded("a.md", text)
    assert headings(document) == [(), ("A",), ("A", "B"), ("A", "B", "C")]


def test_sections_cover_the_text(loaded):
    text = "Intro.\n# A\none\n## B\ntwo\n# C\n"
    (document,), _, _ = loaded("a.md", text)
    assert "".join(text[section.start : section.end] for section in document.sections) == text


def test_front_matter_is_metadata_and_not_text(loaded):
    (document,), _, notes = loaded("a.md", "\ufeff---\ntitle: Kiln log\nwhen: 2024-05-01\n---\n\nKiln 3 is hot.\n")
    assert (document.title, document.metadata) == ("Kiln log", {"title": "Kiln log", "when": "2024-05-01"})
    assert document.text[document.sections[0].start :].strip() == "Kiln 3 is hot."
    assert notes == []


@pytest.mark.parametrize(
    "block", ["a: [", "a: 2024-99-99", "a: &x [1]\nb: *x", "!!python/object/apply:os.system ['id']"]
)
def test_front_matter_that_is_not_plain_yaml_stays_in_the_text_with_a_note(loaded, block):
    (document,), _, (note,) = loaded("a.md", f"---\n{block}\n---\nBody.\n")
    assert "front matter is not valid YAML" in note.text
    assert block in document.text[document.sections[0].start :]


def test_rst_sections_are_found_and_the_source_is_kept(loaded):
    text = "=====\nYard\n=====\n\nGates.\n\nNorth\n-----\n\n.. note:: closed at *six*\n\nSouth\n-----\n\nopen\n"
    (document,), _, _ = loaded("a.rst", text)
    assert headings(document) == [("Yard",), ("Yard", "North"), ("Yard", "South")]
    assert document.text == text


def test_rst_directives_read_no_files(loaded, tmp_path):
    (tmp_path / "secret.txt").write_text("marigold")
    text = f"A\n=\n\n.. include:: {tmp_path}/secret.txt\n\n.. csv-table::\n   :file: {tmp_path}/secret.txt\n"
    (document,), _, _ = loaded("a.rst", text)
    assert document.text == text


def test_html_gives_its_main_text_with_headings(loaded):
    page = (
        "<html><head><title>Ferry</title><script>var x = 'tracking'</script></head><body><h1>Ferry</h1>"
        "<p>The ferry pier has fourteen bollards, all of them painted green.</p><h2>Times</h2>"
        "<p>It leaves at six and returns at nine every day of the year.</p></body></html>"
    )
    (document,), _, _ = loaded("a.html", page)
    assert ("Ferry", "Times") in headings(document)
    assert "fourteen bollards" in document.text and "tracking" not in document.text


def test_html_is_read_in_the_encoding_it_declares(loaded):
    page = '<html><head><meta charset="iso-8859-2"></head><body><p>Řeka je žlutá a most je zavřený celý rok.</p></body>'
    (document,), _, _ = loaded("a.html", page.encode("iso-8859-2"))
    assert "Řeka je žlutá" in document.text


def test_pdf_gives_its_text_with_page_starts(loaded):
    (document,), _, _ = loaded("a.pdf", PDF)
    assert "Kiln three is blue inside." in document.text
    assert document.text[document.page_starts[1] :].strip() == "The dock holds nine boats."


@pytest.mark.parametrize("content", [b"%PDF-1.4\nnothing more", b"not a pdf", PDF[:400]])
def test_a_damaged_pdf_is_skipped(loaded, content):
    documents, (skipped,), _ = loaded("a.pdf", content)
    assert not documents and "PDF" in skipped.reason


@pytest.mark.parametrize(("name", "package"), [("a.pdf", "pypdf"), ("a.html", "trafilatura")])
def test_a_missing_extra_is_named(loaded, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    _, (skipped,), _ = loaded(name, "<p>text</p>")
    assert skipped.reason == f"needs {package}: pip install 'linearkv[docs]'"


def test_source_code_keeps_its_indentation_and_is_one_section(loaded):
    code = "def f():\n    return 1  # the answer\n"
    (document,), _, _ = loaded("a.py", code)
    assert document.text == code and headings(document) == [()]


def test_json_lines_give_a_document_a_record_with_its_metadata(loaded):
    lines = '\ufeff{"id": "r1", "text": "Drawer 1.", "title": "Drawers", "floor": 3}\n{"content": "Drawer 2."}\n'
    (first, second), _, _ = loaded("a.jsonl", lines)
    assert (first.path, first.title, first.metadata["floor"]) == ("a.jsonl#r1", "Drawers", 3)
    assert (second.path, second.record_line) == ("a.jsonl#line-2", 2)


def test_bad_records_are_listed_by_line_and_the_others_kept(loaded):
    lines = [
        '{"text": "one"}',
        '{"text": ',
        "[1]",
        '{"id": 4, "note": "x"}',
        '{"text": " "}',
        "[" * 100000,
        '{"body": "two"}',
    ]
    documents, skipped, _ = loaded("a.jsonl", "\n".join(lines))
    assert [document.text for document in documents] == ["one", "two"]
    assert [item.path.partition("#")[2] for item in skipped] == [f"line-{n}" for n in (2, 3, 4, 5, 6)]


@pytest.mark.parametrize("depth", [60, 900])
def test_a_record_with_deeply_nested_metadata_is_listed_and_the_others_kept(loaded, depth):
    deep = f'{{"text": "one", "meta": {"[" * depth}{"]" * depth}}}'
    documents, (skipped,), _ = loaded("a.jsonl", f'{deep}\n{{"text": "two", "meta": {"[" * 40}{"]" * 40}}}')
    assert [document.text for document in documents] == ["two"]
    assert skipped.path == "a.jsonl#line-1"
    assert skipped.reason == "line 1 has metadata that cannot be kept: nested more than 50 levels deep"


@pytest.mark.parametrize("name", ["a.jsonl", "a.md"])
def test_integers_beyond_any_float_are_kept_as_text(loaded, name):
    text = f'{{"text": "one", "n": {10**400}}}' if name == "a.jsonl" else f"---\nn: {10**400}\n---\none"
    (document,), _, _ = loaded(name, text)
    assert document.metadata["n"] == str(10**400)


def test_front_matter_with_an_integer_too_long_to_write_stays_in_the_text(loaded):
    (document,), _, (note,) = loaded("a.md", f"---\nn: 0x{'f' * 9000}\n---\none")
    assert document.metadata == {} and "front matter is not valid YAML" in note.text


@pytest.mark.parametrize("name", ["a.md", "a.jsonl"])
def test_what_a_parser_raises_unexpectedly_is_the_reason_why_its_file_is_skipped(loaded, monkeypatch, name):
    def fail(*_):
        raise KeyError("no such token")

    monkeypatch.setattr("linearkv.retrieval.loaders.decode", fail)
    documents, (skipped,), _ = loaded(name, '{"text": "one"}')
    assert not documents and skipped.reason == "cannot be read: KeyError: 'no such token'"


def test_lone_surrogates_in_records_are_replaced_and_pairs_kept(loaded):
    lines = '{"text": "holds \\ud83d jars"}\n{"text": "holds \\ud83e\\udded compasses"}\n'
    (first, second), _, (note,) = loaded("a.jsonl", lines)
    assert (first.text, second.text) == ("holds \ufffd jars", "holds \U0001f9ed compasses")
    assert note.path == "a.jsonl#line-1"


def test_a_repeated_record_id_stays_distinct(loaded):
    documents, _, (note,) = loaded("a.jsonl", '{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    assert [document.path for document in documents] == ["a.jsonl#1", "a.jsonl#1~2"]


def test_an_overlong_line_is_skipped_and_the_next_one_read(loaded):
    lines = json.dumps({"text": "x" * 5000}) + "\n" + json.dumps({"text": "short"})
    documents, (skipped,), _ = loaded("a.jsonl", lines, max_bytes=1000)
    assert [document.text for document in documents] == ["short"]
    assert "larger than the limit of 1,000 bytes" in skipped.reason


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.md", b"", "empty"),
        ("a.md", b"\n \n", "empty"),
        ("a.md", b"---\na: 1\n---\n", "empty behind its front matter"),
        ("a.txt", bytes(range(32)) * 10, "binary, not text"),
        ("a.png", b"\x89PNG", ".png files are not read"),
        ("a.txt", b"x" * 2000, "larger than the limit of 1,000 bytes"),
        ("a.jsonl", b"", "empty"),
    ],
)
def test_files_without_text_are_skipped_with_a_reason(loaded, name, content, reason):
    documents, (skipped,), _ = loaded(name, content, max_bytes=1000)
    assert not documents and skipped.reason == reason


def test_a_pipe_that_took_the_place_of_a_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.md")
    (skipped,) = load(Found("a.md", str(tmp_path / "a.md"), 10))
    assert skipped.reason == "not a regular file: not read"


@pytest.mark.parametrize(("name", "limit"), [("a.md", "_MAX_MARKDOWN"), ("a.rst", "_MAX_RST")])
def test_over_the_size_of_the_parsers_the_text_is_kept_and_the_missing_structure_noted(
    loaded, monkeypatch, name, limit
):
    monkeypatch.setattr(f"linearkv.retrieval.loaders.{limit}", 20)
    text = "A\n=\n\n" + "The lamp is lit. " * 5
    (document,), _, (note,) = loaded(name, text)
    assert document.text == text and headings(document) == [()]
    assert "its headings are not read" in note.text


@pytest.mark.parametrize(("name", "content"), [("a.md", ">" * 20000 + "x"), ("a.rst", "* " * 3000 + "x")])
def test_deeply_nested_markup_is_still_text(loaded, name, content):
    (document,), _, _ = loaded(name, content)
    assert document.text == content
