"""The report's web page: all of it is there, none of it is markup from the data, and a real browser shows it."""

import copy
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from linearkv.eval.modes import MODES
from linearkv.eval.reference.generator import HeldOut
from linearkv.eval.report import EvalReport

QUALITY, POSITION = "Quality against reuse", "Accuracy by the gold chunk\u2019s position"
ORDER, ERRORS = "How much the order of the chunks decides", "Where the context differs from full prefill\u2019s"
NAMES = ["EM", "F1", "kept", "worst order", "flips", "excess flips", "KL", "top-1", "reuse", "bytes", "TTFT"]
FLIPS, AGAIN = "Questions that flip", "Scoring, notes and how to run it again"
ABOUT = {
    "options": {
        "modes": ["full", "cyclic"],
        "k": 4,
        "shuffles": 3,
        "seed": 5,
        "max_new_tokens": 32,
        "rule": "linearkv",
    },
    "source": {"limit": 40, "questions_from": "town hall.jsonl", "format": "lines"},
    "model": "some-model",
    "machine": {"device": "a processor", "cores": 2},
}
SHUFFLES = 3


def made(count=4, modes=("full", "sequential", "bidirectional", "prefix_only"), right=None, k=4, layers=2, heads=3):
    """Records as a run leaves them. `right(mode, question, order)` says which answers are right; by default all are."""
    records = []
    for number in range(count):
        orders = [{"label": "shuffle", "indices": [(i + shift) % k for i in range(k)]} for shift in range(SHUFFLES)]
        orders += [{"label": "gold first", "indices": list(range(k))}]
        record = {
            "id": f"q{number}",
            "question": f"Who keeps bell {number}?",
            "answers": [f"Odo Larch {number}"],
            "hops": 1,
            "kind": "file",
            "note": "",
            "chunks": [{"name": f"Bells > Keepers [{i}]", "tokens": 90} for i in range(k)],
            "gold": [0],
            "orders": orders,
            "modes": {},
        }
        for mode in modes:
            good = [right is None or bool(right(mode, number, order)) for order in range(len(orders))]
            record["modes"][mode] = entry = {
                "answers": [record["answers"][0] if one else "Ulla Brand" for one in good],
                "em": [float(one) for one in good],
                "f1": [float(one) for one in good],
                "unscored": "",
                "kl": [0.0 if mode == "full" else 0.01] * len(orders),
                "top1": [1.0] * len(orders),
                "computed": [400 if mode == "full" else 20] * len(orders),
                "prompt": [400] * len(orders),
                "bytes": [0 if mode == "full" else 3_000_000] * len(orders),
            }
            if mode not in ("prefix_only", "no_context"):
                size = 0.0 if mode == "full" else 0.1
                entry["state_error"] = [[size * (1 + layer + head) for head in range(heads)] for layer in range(layers)]
                entry["key_error"] = entry["value_error"] = [size, 2 * size]
        records.append(record)
    return records


def report(records, about=ABOUT, notes=()):
    return EvalReport.of(records, about, notes)


def unscored(records):
    for record in records:
        for entry in record["modes"].values():
            entry |= {"em": [None] * 4, "f1": [None] * 4, "unscored": "no gold answer"}
    return records


def without_gold(records):
    return [record | {"gold": []} for record in records]


def of_one_chunk(records):
    for record in records:
        record |= {"chunks": record["chunks"][:1], "orders": [{"label": "shuffle", "indices": [0]}]}
        for entry in record["modes"].values():
            per_order = ("em", "f1", "answers", "kl", "top1", "computed", "prompt", "bytes")
            entry |= {name: entry[name][:1] for name in per_order}
    return records


SCRIPT = "</style></title><script>alert(1)</script><img src='http://example.com/x.png' onerror=\"alert(2)\"> & &amp;"


def hostile(text=SCRIPT):
    records = made(right=lambda mode, number, order: mode == "full" or order)
    for record in records:
        record |= {"question": text, "answers": [text], "id": text + record["id"], "note": text}
        for chunk in record["chunks"]:
            chunk["name"] = text
        for entry in record["modes"].values():
            entry["answers"] = [text if em else text + " not" for em in entry["em"]]
    about = ABOUT | {"model": text, "source": {"questions_from": text, "format": text}, "machine": {"device": text}}
    return report(records, about, [text])


def failed():
    return report([{"id": "q", "question": "?", "answers": [], "hops": None, "error": "there are no chunks"}])


def flipping(mode, number, order):
    return mode == "full" or order != number % SHUFFLES


REPORTS = {
    "usual": lambda: report(made(right=flipping)),
    "all modes": lambda: report(made(modes=tuple(MODES), right=flipping)),
    "full alone": lambda: report(made(modes=("full",))),
    "one question": lambda: report(made(1)),
    "one chunk": lambda: report(of_one_chunk(made(k=1))),
    "unscored": lambda: report(unscored(made())),
    "nothing right": lambda: report(made(right=lambda *_: False)),
    "nothing known": lambda: report(unscored(without_gold(made())), about={}),
    "hostile": hostile,
    "very long": lambda: hostile("word " * 5_000 + "x" * 5_000),
    "right to left": lambda: hostile(
        "\u05de\u05d9 \u05e9\u05d5\u05de\u05e8 \u202e\u0645\u0646 \u4f60\u597d \U0001f514"
    ),
    "no question": failed,
}


@pytest.fixture(scope="module")
def pages():
    """`pages(name)` -> the page of one of `REPORTS`, made once."""
    kept = {}

    def get(name):
        if name not in kept:
            kept[name] = REPORTS[name]().to_html()
        return kept[name]

    return get


class Page(HTMLParser):
    """A page as its elements, and the text of each section under its heading."""

    VOID = ("meta", "link", "wbr", "br")

    def __init__(self, html):
        super().__init__()
        self.elements, self.stack, self.texts, self.drawings, self.rows = [], [], {}, {}, []
        self.section = ""
        self.feed(html)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.stack.append(tag)
        if tag == "h2":
            self.section = ""
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag == "svg" and "aria-label" in dict(attributes):
            self.drawings.setdefault(self.section, []).append(dict(attributes)["aria-label"])

    def handle_endtag(self, tag):
        assert self.stack and self.stack[-1] == tag, f"</{tag}> inside {self.stack}"
        self.stack.pop()

    def handle_data(self, data):
        if "h2" in self.stack:
            self.section += data
        elif "style" not in self.stack:
            self.texts[self.section] = self.texts.get(self.section, "") + data
        if self.stack and self.stack[-1] in ("th", "td"):
            self.rows[-1][-1] += data

    def text(self, section=""):
        return " ".join(self.texts[section].split())


# A real run, through the command


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder of a run of three questions: r.json and r.html."""
    folder = tmp_path_factory.mktemp("run")
    asked = HeldOut(5, held_out_names=False, held_out_wording=False).questions(3, chunks=3, chunk_tokens=60)
    lines = [
        {"question": q.question, "answers": q.answers, "contexts": [text for _, text in q.chunks], "gold": list(q.gold)}
        for q in asked
    ]
    (folder / "qa.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    options = "--k 3 --shuffles 2 --modes full,sequential,bidirectional,prefix_cache --out r.json --html r.html"
    done = command(folder, "qa.jsonl", *options.split())
    assert done.returncode == 0, done.stderr
    return folder


def command(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "linearkv.cli", "eval", *arguments], capture_output=True, text=True, cwd=folder
    )


@pytest.fixture(scope="module")
def real(run):
    """The same report as the command's, from its JSON."""
    given = json.loads((run / "r.json").read_text())
    found = ("verdict", "questions", "left_out", "modes", "notes", "maps", "records")
    about = {name: given[name] for name in given if name not in found}
    return EvalReport.of(given["records"], about, given["notes"])


def test_the_command_writes_the_page_that_the_json_gives_again_to_the_byte(run, real):
    assert (run / "r.html").read_bytes() == real.to_html().encode()


def test_a_folder_that_is_not_there_is_named_before_anything_is_run(tmp_path):
    done = command(tmp_path, "--html", "nowhere/r.html")
    assert done.returncode == 1 and "no such folder" in done.stderr and "nowhere" in done.stderr


def test_the_page_begins_with_the_verdict_and_says_what_was_run(real):
    text = Page(real.to_html()).text()
    assert real.verdict + "." in text
    assert text.index(real.verdict) == len("LinearKV evaluation: reference ")  # behind the window's title
    for said in ("3, from qa.jsonl", "2 random a question", "Seed 0", "Scoring rule linearkv", "torch"):
        assert said in text


def test_the_table_has_the_numbers_of_the_report(real):
    rows = {row[0]: row[1:] for row in Page(real.to_html()).rows}
    assert list(rows["mode"]) == NAMES
    for mode in real.modes:
        shown = dict(zip(rows["mode"], rows[mode.mode], strict=True))
        assert shown["EM"] == f"{mode.em.value:.3f}" and shown["F1"] == f"{mode.f1.value:.3f}"
        assert shown["kept"].startswith(f"{100 * mode.retention.value:.1f}%")
        assert shown["KL"] == f"{mode.kl.value:.4f}" and shown["reuse"] == f"{100 * mode.reuse:.1f}%"
        assert shown["TTFT"] == ("-" if mode.ttft_s is None else f"{1000 * mode.ttft_s:,.0f} ms")


@pytest.mark.parametrize("section", [QUALITY, POSITION, ORDER, ERRORS])
def test_every_drawing_of_a_real_run_is_there_and_says_in_words_what_it_shows(section, real):
    said = " ".join(Page(real.to_html()).drawings[section])
    assert "sequential" in said and "bidirectional" in said


# What the page says


def test_modes_stand_in_groups_and_every_column_is_explained(pages):
    page = Page(pages("all modes"))
    groups = [row[0] for row in page.rows if len(row) == 1]
    assert [group.partition(" ")[0] for group in groups] == ["Ceiling", "Composed", "Other", "Baselines"]
    kinds = {"full": "baseline", "cyclic_pivot1": "composed", "additive": "other", "prefix_cache": "baseline"}
    for mode, kind in kinds.items():
        html = pages("all modes")
        assert f'<tr class="of-{kind}"><th scope="row" class="{kind}">{mode}</th>' in html
    names = [row for row in page.rows if row[0] == "mode"][0][1:]
    explained = page.text("Modes").partition("The columns")[2]
    assert all(name in explained for name in names)


def test_a_researchers_own_mode_is_in_the_table_and_the_drawings():
    page = Page(report(made(modes=("full", "cyclic", "halves"))).to_html())
    assert "halves" in [row[0] for row in page.rows]
    for section in (QUALITY, POSITION, ORDER, ERRORS):
        assert any("halves" in said for said in page.drawings[section])


def test_whether_a_mode_keeps_enough_is_marked_and_only_where_it_can_be_used():
    rows = {
        row[0]: row[3]
        for row in Page(
            report(
                made(200, ("full", "cyclic", "sequential", "prefix_only"), lambda mode, *_: mode in ("full", "cyclic"))
            ).to_html()
        ).rows
        if len(row) > 3
    }
    assert rows["cyclic"] == "100.0% \u2713" and rows["sequential"] == "0.0% \u2717"
    assert rows["prefix_only"] == "0.0%" and rows["full"] == "100.0%"


@pytest.mark.parametrize(
    "name, section, reason",
    [
        ("full alone", QUALITY, "there is one mode only"),
        ("nothing right", QUALITY, "the baseline scores 0"),
        ("unscored", QUALITY, "nothing is scored"),
        ("nothing known", POSITION, "for none of these questions is it known which chunk holds the answer"),
        ("one chunk", POSITION, "has no position among others"),
        ("unscored", POSITION, "no scored answer has its gold chunk in a known place"),
        ("one chunk", ORDER, "no question has scored answers in two random orders"),
        ("unscored", ORDER, "no question has scored answers in two random orders"),
        ("full alone", ERRORS, "no mode but full prefill itself"),
    ],
)
def test_a_drawing_without_data_is_left_out_with_the_reason(name, section, reason, pages):
    page = Page(pages(name))
    assert page.text(section).startswith("Left out: ") and reason in page.text(section)
    assert section not in page.drawings


def test_modes_below_the_scale_are_named_with_their_value():
    def right(mode, number, order):
        return mode in ("full", "cyclic")

    text = Page(report(made(8, ("full", "cyclic", "additive"), right)).to_html()).text(QUALITY)
    assert "Below the scale: additive 0.0%." in text


def test_accuracy_by_position_is_that_of_the_orders_with_gold_there():
    # Gold stands first in orders 0 and 3, and at the places 3 and 2 of four in orders 1 and 2.
    page = Page(
        report(made(modes=("full", "cyclic"), right=lambda mode, _, order: mode == "full" or order > 0)).to_html()
    )
    (said,) = [text for text in page.drawings[POSITION] if "cyclic" in text]
    assert "first 50.0%" in said and "late 100.0%" in said and "last 100.0%" in said
    assert "at worst \u221250.0 points (\u221250.0 to \u221250.0), gold first" in page.text(POSITION)


def test_order_sensitivity_counts_questions_by_the_share_of_their_orders_that_are_right():
    def right(mode, number, order):  # of four questions: right in all, two, one and none of the three random orders
        return mode == "full" or order + number < SHUFFLES or order == SHUFFLES

    page = Page(report(made(modes=("full", "cyclic"), right=right)).to_html())
    (said,) = [text for text in page.drawings[ORDER] if text.startswith("cyclic")]
    shares = "all orders 25.0% of questions, in more than half 25.0%, in half or fewer 25.0%, in none 25.0%"
    assert said == f"cyclic: right in {shares}"
    assert "3 fewer, 0 more" in page.text(ORDER)


def test_the_largest_error_is_named_with_its_layer_and_head():
    page = Page(report(made(modes=("full", "cyclic"))).to_html())
    assert "largest 0.4 in layer 1, head 2" in page.text(ERRORS)
    assert any("largest 0.4 in layer 1, head 2" in said for said in page.drawings[ERRORS])


def test_an_error_that_is_not_finite_is_the_largest():
    records = made(1, ("full", "cyclic"))
    records[0]["modes"]["cyclic"]["state_error"][0][1] = None
    assert "largest \u221e in layer 0, head 1" in Page(report(records).to_html()).text(ERRORS)


def test_questions_that_flip_show_what_each_mode_gave_and_how_often():
    def right(mode, number, order):
        return mode == "full" or number != 1 or order == 0

    text = Page(report(made(modes=("full", "cyclic"), right=right)).to_html()).text(FLIPS)
    assert "Who keeps bell 1?" in text and "Who keeps bell 0?" not in text
    assert "Accepted: Odo Larch 1" in text and "Gold: Bells > Keepers [0], among 4 chunks. 1 hop." in text
    assert "full 3 of 3 right \u2713 Odo Larch 1 \u00d73" in text
    assert "cyclic 1 of 3 right \u2717 Ulla Brand \u00d72 \u2713 Odo Larch 1 \u00d71" in text
    assert "\u00d71 wrong with gold late 1\u00d7, last 1\u00d7" in text


def test_where_gold_stood_is_not_said_of_a_mode_that_is_wrong_wherever_it_stands():
    records = made(1, ("full", "cyclic"), lambda mode, *_: mode == "full")
    text = Page(report(records).to_html()).text(FLIPS)
    assert "cyclic 0 of 3 right" in text and "wrong with gold" not in text


def test_the_twenty_questions_that_disagree_most_come_first():
    def right(mode, number, order):  # 30 questions flip, number 7 most
        return mode == "full" or (order != 0 and number != 7)

    html = report(made(30, ("full", "cyclic"), right)).to_html()
    headings = html.split('<h3 dir="auto">')[1:]
    assert len(headings) == 20 and headings[0].startswith("Who keeps bell 7?")


def test_modes_that_answer_alike_share_a_block():
    html = report(made(1, ("full", "sequential", "cyclic"), lambda mode, *_: mode == "full")).to_html()
    assert '<div class="who">sequential, cyclic</div>' in html


def test_unscored_questions_are_shown_where_answers_differ():
    records = unscored(made(2, ("full", "cyclic"), lambda mode, number, order: mode == "full" or order))
    text = Page(report(records).to_html()).text(FLIPS)
    assert "unscored, 2 of 3 as full prefill" in text and "\u2713" not in text.partition("Who keeps")[2]


def test_that_nothing_flips_is_said(pages):
    assert "None: the composed modes gave full prefill\u2019s answer to every question" in Page(
        pages("one question")
    ).text(FLIPS)


def test_a_divergence_without_a_mean_is_a_dash_and_its_reason_stands_below():
    records = made(4, ("full", "cyclic"))
    records[0]["modes"]["cyclic"]["kl"][1] = None
    page = Page(report(records).to_html())
    (names,), (cells,) = ([row for row in page.rows if row[0] == name] for name in ("mode", "cyclic"))
    assert cells[names.index("KL")] == "-"
    assert "cyclic has no mean KL: 1 of 4 questions have an infinite value" in page.text(AGAIN)


def test_notes_options_and_unscored_answers_are_there():
    page = Page(report(unscored(made(2)), notes=["line 3: skipped, no answer"]).to_html())
    text = page.text(AGAIN)
    assert "line 3: skipped, no answer" in text and "8 answers of each mode are unscored: no gold answer." in text
    assert '"max_new_tokens": 32' in text and '"format": "lines"' in text


def test_the_command_that_runs_it_again_is_one_that_a_shell_understands():
    text = Page(report(made(1, ("full", "cyclic"))).to_html()).texts[AGAIN]
    (line,) = [line for line in text.splitlines() if line.startswith("linearkv eval")]
    words = shlex.split(line)
    assert words[2] == "town hall.jsonl"
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert given == {
        "--model": "some-model",
        "--k": "4",
        "--shuffles": "3",
        "--seed": "5",
        "--max-new-tokens": "32",
        "--rule": "linearkv",
        "--modes": "full,cyclic",
        "--limit": "40",
        "--html": "report.html",
    }


@pytest.mark.parametrize(
    "origin, line", [("corpus", "linearkv eval --store FOLDER"), ("caller", "evaluate(engine, questions, EvalOptions(")]
)
def test_a_run_without_a_file_says_how_too(origin, line):
    about = ABOUT | {"source": {"questions_from": origin}}
    assert line in Page(report(made(1), about).to_html()).texts[AGAIN]


def test_a_report_without_a_question_says_why():
    page = Page(failed().to_html())
    assert "Nothing can be said: no question could be asked." in page.text()
    assert "question q was left out: there are no chunks" in page.text(AGAIN)
    assert not page.drawings and not page.rows


# What holds for every page


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_is_well_formed_and_can_be_read_aloud(name, pages):
    html = pages(name)
    page = Page(html)  # fails where an element is not closed
    assert html.startswith("<!DOCTYPE html>\n") and ("html", {"lang": "en"}) in page.elements
    tags = [tag for tag, _ in page.elements]
    assert tags.count("h1") == tags.count("title") == tags.count("main") == 1
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in page.elements:
        for reference in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(reference, names[0]) in names
        if tag == "th":
            assert attributes["scope"] in ("col", "row", "rowgroup")
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"


@pytest.mark.parametrize("name", REPORTS)
def test_nothing_outside_the_page_is_referenced_and_nothing_runs(name, pages):
    page = Page(pages(name))
    assert not {"script", "img", "iframe", "object", "image", "use", "a", "base"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not any(key.startswith("on") or key in ("src", "srcset", "action", "style") for key in attributes)
        assert attributes.get("href", "data:,") == "data:,"
    style = pages(name).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style and "@font-face" not in style


def test_what_users_wrote_is_text_and_nothing_else(pages):
    page, harmless = Page(pages("hostile")), Page(hostile("harmless").to_html())
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in harmless.elements]
    assert SCRIPT in page.text() and SCRIPT in page.text(FLIPS) and SCRIPT in page.text(AGAIN)


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x85", "\u202e", "\ud800"])
def test_what_no_page_may_hold_is_replaced(character, tmp_path):
    records = made(1, ("full", "cyclic"), lambda mode, *_: mode == "full")
    records[0] |= {"question": f"Who{character}?"}
    path = tmp_path / "page.html"
    written = report(records, notes=[f"a{character}b"]).to_html(path)
    assert path.read_bytes().decode() == written and character not in written
    assert "Who\ufffd?" in written and "a\ufffdb" in written


def test_a_page_of_many_long_records_stays_small():
    few = report(made(2, tuple(MODES), flipping, layers=48, heads=48))
    many = made(500, tuple(MODES), flipping, layers=1, heads=1)
    for record in many:
        record |= {"question": "word " * 2_000, "answers": ["word " * 500] * 50}
    assert len(replace(few, records=many, notes=["note " * 500] * 1_000).to_html().encode()) < 2_000_000


def test_the_same_report_gives_the_same_bytes():
    records = made(6, tuple(MODES), flipping)
    assert report(copy.deepcopy(records)).to_html() == report(records).to_html()


# In a real browser


@pytest.fixture(scope="module")
def chromium():
    names = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("needs Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shown(chromium, pages, tmp_path_factory):
    """`shown(name, width, scheme)` -> the page in the browser, what its console said, and what it asked for."""
    folder = tmp_path_factory.mktemp("shown")
    contexts = []

    def show(name, width, scheme="light"):
        path = folder / f"{name}.html"
        path.write_text(pages(name), encoding="utf-8")
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab, said, asked = context.new_page(), [], []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri())
        return tab, said, [url for url in asked if url != path.as_uri()]

    yield show
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [1280, 400, 320])
@pytest.mark.parametrize("name", REPORTS)
def test_a_browser_shows_it_without_complaint_request_or_sideways_scrolling(name, width, shown):
    tab, said, asked = shown(name, width)
    assert said == [] and asked == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("h1").is_visible()


@pytest.mark.parametrize("width", [1280, 400])
def test_every_drawing_can_be_seen_once_and_within_the_window(width, shown):
    tab, *_ = shown("all modes", width)
    boxes = tab.evaluate(
        "[...document.querySelectorAll('svg')].filter(each => each.checkVisibility()).map(each => {"
        " const box = each.getBoundingClientRect(); const texts = [...each.querySelectorAll('text')];"
        " return [each.getAttribute('aria-label'), box.width, box.height,"
        " Math.max(box.right, ...texts.map(text => text.getBoundingClientRect().right))]})"
    )
    labels = [label for label, *_ in boxes if label]
    assert sum(label.startswith("Share of full prefill's F1 kept") for label in labels) == 1
    without = {"full", "full_canonical", "full_best_last", "prefix_cache", "prefix_only", "no_context"}
    assert sum(label.startswith("Relative errors of ") for label in labels) == len(MODES.keys() - without)
    assert all(wide > 0 and high > 0 and right <= width for _, wide, high, right in boxes)


@pytest.mark.parametrize("width", [1280, 400])
def test_light_and_dark_are_the_readers_choice_and_neither_is_blank(width, shown, tmp_path):
    def lightness(scheme):
        tab, *_ = shown("usual", width, scheme)
        pictures = tab.screenshot(full_page=True), tab.screenshot(full_page=True, style="main * { opacity: 0 }")
        assert len(pictures[0]) > 3 * len(pictures[1])  # compressed, so a page that shows nothing is small
        colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        return [sum(map(int, colour[4:-1].split(","))) for colour in tab.evaluate(colours)]

    (page, ink), (dark_page, dark_ink) = lightness("light"), lightness("dark")
    assert page - ink > 500 and dark_ink - dark_page > 500


def test_paper_is_white_also_for_a_reader_of_dark_pages(shown):
    tab, *_ = shown("usual", 800, "dark")
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.pdf().startswith(b"%PDF")
