import base64
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linearkv.retrieval import Document, chunk_document
from linearkv.retrieval.documents import whole
from linearkv.retrieval.loaders import _markdown


def words(text):
    """A measure like a tokenizer's: a token for every four characters, at least one a word."""
    return sum(1 + (len(word) - 1) // 4 for word in text.split()) + text.count("\n\n")


def markdown(text):
    return _markdown("a.md", text, [])


def plain(text):
    return Document("a.txt", text, whole(text))


def assert_covers(document, chunks):
    """Chunks, in order, hold all of the text but white space between them and headings that are in ``heading``."""
    at = document.sections[0].start if document.sections else 0
    for chunk in chunks:
        line = sum(len(line) + 1 for line in document.text.split("\n")[: chunk.line_start - 1])
        found = document.text.index(chunk.text, max(at, line))
        for line in document.text[at:found].split("\n"):
            title = " ".join(line.strip().strip("#=-~ \t").split())
            assert not title or title in chunk.heading
        at = found + len(chunk.text)
    assert not document.text[at:].strip()


def test_small_sections_are_merged_under_their_shared_heading():
    document = markdown("# Hours\n\nOpen at six.\n\n## Closing\n\nShut at seven.\n\n## Break\n\nNoon.\n")
    (chunk,) = chunk_document(document, words, 64)
    assert chunk.rendered == "# Hours\nOpen at six.\n\n## Closing\n\nShut at seven.\n\n## Break\n\nNoon.\n\n"


def test_sections_that_do_not_fit_together_stay_apart_with_their_paths():
    body = "word " * 40
    document = markdown(f"# Yard\n\n## North\n\n{body}\n\n## South\n\n{body}\n")
    chunks = chunk_document(document, words, 64)
    assert [chunk.heading for chunk in chunks] == ["Yard > North", "Yard > South"]


def test_small_siblings_are_merged_beside_a_large_one():
    body = "word " * 50
    document = markdown(f"# Yard\n\n## A\n\none\n\n## B\n\ntwo\n\n## C\n\n{body}\n")
    first, second = chunk_document(document, words, 64)
    assert (first.heading, first.text) == ("Yard", "## A\n\none\n\n## B\n\ntwo")
    assert second.heading == "Yard > C"


def test_a_heading_with_nothing_under_it_is_kept():
    (chunk,) = chunk_document(markdown("# Only a title\n"), words, 64)
    assert "Only a title" in chunk.rendered


def test_a_heading_longer_than_a_chunk_is_cut_like_text():
    document = markdown("# " + "very long title " * 60 + "\n\nBody at the end.\n")
    chunks = chunk_document(document, words, 64)
    assert max(words(chunk.rendered) for chunk in chunks) <= 64
    assert "Body at the end." in chunks[-1].text


def test_a_heading_that_nothing_below_repeats_is_kept():
    document = markdown("# Yard\n" + ("## " + "long title " * 20 + "\n") * 2)
    assert "Yard" in chunk_document(document, words, 64)[0].rendered


def test_lines_are_those_of_the_file():
    document = markdown("---\na: 1\n---\n# A\n\none\n\n# B\n\n" + "two two\n" * 30)
    chunks = chunk_document(document, words, 32)
    assert (chunks[0].line_start, chunks[0].line_end) == (6, 6)
    assert chunks[1].line_start == 10 and chunks[-1].line_end == 39


def test_pages_of_a_paged_document_are_known():
    text = "first page. " * 30 + "\n\n" + "second page. " * 30
    document = Document("a.pdf", text, whole(text), page_starts=(0, 362))
    assert [chunk.metadata["page"] for chunk in chunk_document(document, words, 64)][::-1][0] == 2


def test_the_hash_is_of_what_the_model_sees_and_not_of_the_file():
    one = chunk_document(markdown("# A\n\ntext\n"), words, 64)
    other = chunk_document(
        Document("elsewhere.md", "# A\n\ntext\n\n\n", markdown("# A\n\ntext\n\n\n").sections), words, 64
    )
    assert one[0].content_hash == other[0].content_hash


@pytest.mark.parametrize("target", [0, 31])
def test_a_target_too_small_for_any_character_is_refused(target):
    with pytest.raises(ValueError, match=f"target_tokens is {target}; use at least 32"):
        chunk_document(plain("text"), words, target)


def test_indentation_at_the_start_of_a_piece_is_kept_and_counted():
    text = "\n \n    " + "x" * 190 + "\n" + "y" * 50
    chunks = chunk_document(plain(text), len, 200)
    assert chunks[0].text.startswith("    x")
    assert max(len(chunk.rendered) for chunk in chunks) <= 200


UNBREAKABLE = {
    "base64": "Key " + base64.b64encode(random.Random(1).randbytes(9000)).decode() + "\nThe last sentence is here.",
    "cjk": "山道记录" * 3600 + "守门人叫欧阳竹。",
    "json": '{"rows":[' + ",".join(f'{{"k":"x{n:04}","v":{n * 7919}}}' for n in range(500)) + '],"last":"heron"}',
    "spaces": "start" + " " * 50000 + "end",
    "emoji": "👩‍👩‍👧‍👦" * 800,
}


@pytest.mark.parametrize("name", UNBREAKABLE)
@pytest.mark.timeout(20)
def test_unbreakable_text_ends_in_chunks_within_the_target_that_cover_it(name, measure):
    document = plain(UNBREAKABLE[name])
    chunks = chunk_document(document, measure, 64)
    assert_covers(document, chunks)
    assert max(measure(chunk.rendered) for chunk in chunks) <= 64


def test_time_grows_with_the_text_and_not_its_square(measure):
    def seconds(repeats):
        document = plain("The keeper of the lamp wrote down every ship that passed the rock. " * repeats)
        start = time.process_time()
        chunk_document(document, measure, 128)
        return time.process_time() - start

    seconds(100)
    small, large = seconds(1000), seconds(8000)
    assert large < 8 * small * 2.5


PIECES = st.sampled_from(
    [
        "# A\n",
        "## B\n",
        "### " + "long title " * 9 + "\n",
        "\n\n",
        " ",
        "word ",
        "longer words here. ",
        "x" * 90,
        "- item\n",
    ]
    + ["```\n", "漢字かな", "👩‍👧", "é", "\t", "1. ", "| a | b |\n", "Title\n=====\n", "    code\n", "> quote\n"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=60), st.sampled_from([32, 64, 200]), st.booleans())
def test_any_document_is_covered_by_nonempty_chunks_within_the_target(pieces, target, as_markdown):
    text = "".join(pieces)
    document = markdown(text) if as_markdown else plain(text)
    chunks = chunk_document(document, len, target)
    assert all(chunk.text.strip() for chunk in chunks)
    assert all(len(chunk.rendered) <= target for chunk in chunks)
    assert_covers(document, chunks)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
