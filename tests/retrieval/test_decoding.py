import pytest

from linearkv.retrieval.decoding import clean, decode, looks_binary

TEXT = "Café Zoë serves “smörgås” for €9.\n"


def decoded(data, declared=None):
    notes = []
    return decode(data, notes.append, declared), notes


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-be", "utf-32-le", "cp1252"])
def test_text_has_its_true_characters_in_every_common_encoding(encoding):
    mark = "\ufeff" if encoding.endswith("e") else ""
    assert decoded((mark + TEXT).encode(encoding))[0] == TEXT


def test_unicode_with_a_mark_needs_no_note():
    assert decoded(TEXT.encode("utf-16"))[1] == []


def test_an_assumed_encoding_is_noted():
    assert decoded(TEXT.encode("cp1252"))[1] == ["is not UTF-8: read as windows-1252"]


def test_utf16_without_a_mark_is_recognised():
    assert (
        decoded("The pier has 14 bollards, said Zoë.".encode("utf-16-be"))[0] == "The pier has 14 bollards, said Zoë."
    )


def test_one_stray_byte_is_shown_counted_and_located_and_the_rest_is_true():
    text, notes = decoded(f"{TEXT}Code Q".encode() + b"\x9d" + b"77.\nLast line: lantern 31.\n")
    assert text == f"{TEXT}Code Q\ufffd77.\nLast line: lantern 31.\n"
    assert len(notes) == 1
    assert "1 place(s)" in notes[0] and "line 2 (bytes 9d)" in notes[0]


def test_other_code_pages_are_guessed_rather_than_read_as_western():
    text = "Колодец находится за старой мельницей, ключ хранится у пекаря. " * 5
    assert decoded(text.encode("cp1251"))[0] == text


def test_the_encoding_that_a_file_declares_is_used():
    assert decoded("řeka žlutá".encode("cp1250"), declared="windows-1250")[0] == "řeka žlutá"


def test_nul_and_lone_surrogates_are_replaced_and_counted():
    notes = []
    assert clean("a\0b\ud83d c", notes.append) == "a\ufffdb\ufffd c"
    assert notes[0].startswith("2 character(s)")


def test_no_byte_order_mark_is_left_anywhere():
    assert "\ufeff" not in decoded("\ufeffone\n\ufefftwo".encode())[0]


def test_line_ends_are_unified():
    assert clean("a\r\nb\rc\n") == "a\nb\nc\n"


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(32)), bytes(100)])
def test_binary_is_recognised(data):
    assert looks_binary(data)


def test_a_text_with_one_nul_is_not_binary():
    assert not looks_binary(b"Before the zero byte: crate 71.\0After it: crate 72.")
