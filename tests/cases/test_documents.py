"""What stands in files is what is found, whatever they are called, wherever they move and however they are encoded."""

import json
import os
import shutil
import subprocess
import sys

import pytest

DISH = "Café Søren pours at {time}.\nThe soup is “crème d’ail” for €7.\n"
IN_C_LOCALE = """
import json, sys
from linearkv.cli import main
sys.argv = ["linearkv"]
for arguments in json.loads(sys.stdin.read()):
    try:
        main([bytes(argument, "utf-8").decode("ascii", "surrogateescape") for argument in arguments])
    except SystemExit as ended:
        print("status", ended.code, flush=True)
"""


def test_under_the_c_locale_files_and_questions_are_the_same_text(open_engine, write, tiny_checkpoint, tmp_path):
    """Every common encoding, and a question in the C locale: the same chunks and the same sources as anywhere."""
    docs = write(
        {
            "utf8.txt": DISH.format(time="07:10"),
            "western.txt": DISH.format(time="08:20").encode("cp1252"),
            "utf16.txt": b"\xff\xfe" + DISH.format(time="09:30").encode("utf-16-le"),
            "stray.txt": DISH.format(time="10:40").encode() + b"The safe is \x9d42.\nThe last hook is blue.\n",
            "ascii.txt": "The quay has 22 rings.\n",
        }
    )
    model = str(tiny_checkpoint("qwen3_5"))
    question = "When does Café Søren pour with “crème d’ail” at 09:30?"
    common = ["--store", str(tmp_path / "c"), "--model", model, "--json"]
    commands = [["index", str(docs), *common], ["query", question, "-k", "2", "--max-new-tokens", "1", *common]]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"} | locale
    done = subprocess.run(
        [sys.executable, "-c", IN_C_LOCALE], input=json.dumps(commands), env=environment, capture_output=True, text=True
    )
    report, answer = (json.loads(part) for part in done.stdout.split("status 0\n")[:2])
    engine = open_engine()
    here = engine.index(docs)
    assert (report["documents"], report["skipped"], report["notes"]) == (5, [], here.notes)
    assert [n for n in here.notes if n.startswith("western")] == ["western.txt: is not UTF-8: read as windows-1252"]
    assert any("stray.txt: 1 place(s) are not utf-8, the first in line 3 (bytes 9d)" in note for note in here.notes)
    expected = engine.query(question, k=2, max_new_tokens=1)
    assert answer["question"] == question
    assert [s["text"] for s in answer["sources"]] == [s.text for s in expected.sources]
    assert answer["sources"][0]["document"] == "utf16.txt"
    assert answer["sources"][0]["text"] == DISH.format(time="09:30").strip()


def test_a_byte_order_mark_changes_nothing(open_engine, write, ask):
    """The marked and the plain file are one chunk with one state; heading, front matter and first record are read."""
    plain = "# Hours\n\nThe forge opens at 05:50.\n\n## Closing\n\nIt shuts at 17:15.\n"
    docs = write(
        {
            "marked.md": b"\xef\xbb\xbf" + plain.encode(),
            "plain.md": plain,
            "front.md": b"\xef\xbb\xbf---\nowner: Ines Falk\n---\n\nFurnace 2 reached 1210 degrees.\n",
            "records.jsonl": b'\xef\xbb\xbf{"id": "a1", "text": "Tray 1 holds 17 tin rivets."}\n'
            b'{"id": "a2", "text": "Tray 2 holds 34 tin rivets."}\n',
        }
    )
    engine = open_engine()
    report = engine.index(docs)
    assert (report.documents, report.prefilled, report.skipped) == (5, 4, [])
    source = engine.query("When does the forge open?", k=1, max_new_tokens=1).sources[0]
    assert (source.heading, {source.document, *source.also_in}) == ("Hours", {"marked.md", "plain.md"})
    assert ask(engine, "furnace", where={"owner": "Ines Falk"}) == [("front.md", "Furnace 2 reached 1210 degrees.")]
    assert ask(engine, "Tray 1: how many rivets?") == [("records.jsonl#a1", "Tray 1 holds 17 tin rivets.")]
    assert all("\ufeff" not in chunk.rendered for chunk in engine._retriever.iter_chunks())


def test_text_that_cannot_be_stored_is_replaced_and_the_rest_is_found(open_engine, write, ask):
    docs = write(
        {
            "records.jsonl": '{"id": "b1", "text": "Rack A holds \\ud83d cracked prisms."}\n'
            '{"id": "b2", "text": "Rack B holds \\ud83e\\udded compasses."}\n',
            "zero.txt": b"Before the zero: crate 81.\0After the zero: crate 82 holds figs.\n",
            os.fsdecode(b"well_\xfe.txt"): "The well has six newts.\n",
        }
    )
    engine = open_engine()
    report = engine.index(docs)
    assert (report.documents, report.skipped, len(report.notes)) == (4, [], 2)
    assert all("1 character(s) that cannot be stored" in note for note in report.notes)
    assert ask(engine, "What does crate 82 hold?")[0][0] == "zero.txt"
    assert ask(engine, "How many newts?") == [("well_\\xfe.txt", "The well has six newts.")]
    assert ask(engine, "Which rack holds \ud83d cracked prisms?") == [
        ("records.jsonl#b1", "Rack A holds \ufffd cracked prisms.")
    ]
    json.dumps(report.to_dict()).encode()


def test_an_edit_leaves_the_states_of_a_namesake_untouched(open_engine, write, ask, pages):
    docs = write({"east/notes.md": "# Gate\n\nThe east gate code is 31.", "west/notes.md": "# Gate\n\nWest uses 64."})
    engine = open_engine()
    engine.index(docs)
    before = pages(engine)
    write({"east/notes.md": "# Gate\n\nThe east gate code is 77."})
    report = engine.index(docs)
    after = pages(engine)
    assert (report.updated, report.prefilled, report.reused) == (1, 1, 1)
    assert len(before.items() & after.items()) == 2, "west's state and the canary"
    assert ask(engine, "Which code has the east gate?") == [("east/notes.md", "The east gate code is 77.")]
    assert ask(engine, "What does west use?") == [("west/notes.md", "West uses 64.")]


def test_a_document_that_is_moved_and_copied_is_always_found_under_its_present_path(open_engine, write, ask):
    docs = write({"bell.md": "# Bell\n\nThe bell was cast by Runa Thorsen.", "gate.md": "# Gate\n\nThe smith has it."})
    engine = open_engine()
    assert engine.index(docs).prefilled == 2
    (docs / "sub").mkdir()

    def move():
        (docs / "bell.md").rename(docs / "sub/bell.md")

    def copy():
        shutil.copy(docs / "sub/bell.md", docs / "copy.md")

    for change, paths in (
        (move, {"sub/bell.md"}),
        (copy, {"sub/bell.md", "copy.md"}),
        ((docs / "sub/bell.md").unlink, {"copy.md"}),
    ):
        change()
        first, second = engine.index(docs), engine.index(docs)
        assert (first.prefilled, second.prefilled) == (0, 0)
        assert (second.added, second.updated, second.renamed, second.removed) == (0, 0, 0, 0)
        source = engine.query("Who cast the bell?", k=1, max_new_tokens=1).sources[0]
        assert {source.document, *source.also_in} == paths


PAIRS = [
    ("ends with a space ", "begins with a word"),
    ("code 56", "78 code"),
    ("can", "'t wait"),
    ("emoji \U0001f469", "\u200d\U0001f680 tail"),
    ("cafe", "\u0301 corner"),
    ("    indent", "    indent"),
    ("a\r", "\nb"),
    ("川の流", "れは速い"),
]


def test_composed_and_full_prompts_are_one_sequence_of_ids(open_engine, write):
    """Per-chunk ids joined, in whatever order chunks stand; no start token; a chunk's key knows no neighbours."""
    from linearkv.composition import compose

    docs = write(
        {f"{n}{side}.txt": text for n, pair in enumerate(PAIRS) for side, text in zip("lr", pair, strict=True)}
    )
    write({"blank.txt": "  \n"})
    engine = open_engine()
    report = engine.index(docs)
    assert [(item.path, item.reason) for item in report.skipped] == [("blank.txt", "empty")]
    chunks = [engine._chunk_tokens(chunk) for chunk in engine._retriever.iter_chunks()]
    alone = {engine.states.restore([chunk]).states[0].token_ids.numpy().tobytes() for chunk in chunks}
    for order in (chunks, chunks[::-1]):
        states = engine.states.restore(order).states
        joined = [token for chunk in order for token in chunk.token_ids]
        assert compose(engine.prefix, states).length == len(engine.prompt.prefix_ids) + len(joined)
        assert [token for state in states for token in state.token_ids.tolist()] == joined
        assert {state.token_ids.numpy().tobytes() for state in states} == alone
    assert min(joined) > 2, "no control token, so no start token either"


@pytest.mark.parametrize("target", [64, 512])
def test_every_chunk_of_unbreakable_text_is_within_the_target(open_engine, write, ask, target):
    blob = "".join(chr(33 + (n * 7919) % 90) for n in range(3000)).replace("<", "x")
    docs = write(
        {"blob.txt": f"Key {blob} end. The pilot is Ottilie Brandt.", "cjk.txt": "水道记录" * 300 + "守夜人叫林安。"}
    )
    engine = open_engine(settings={"chunk_tokens": target})
    report = engine.index(docs)
    assert report.documents == 2 and report.skipped == []
    assert max(len(engine._chunk_tokens(chunk).token_ids) for chunk in engine._retriever.iter_chunks()) <= target
    assert ask(engine, "Who is the pilot?")[0][0] == "blob.txt"
    assert "林安" in ask(engine, "守夜人叫什么？")[0][1]
