"""The program that measures how fast pages come back holds what it measured against the limits it states."""

import json
import shutil

import pytest

from linearkv.cache import decode
from linearkv.eval import throughput


def test_every_way_is_measured_in_every_round(tmp_path, capsys):
    out = tmp_path / "throughput.json"
    argv = ["--pages", "2", "--page-mib", "0.1", "--rounds", "2", "--out", str(out)]
    code = throughput.main(argv)
    result = json.loads(out.read_text())
    assert set(result) == {"command", "machine", "bytes", "seconds", "ratios"}
    assert result["command"] == argv
    assert result["bytes"] > 2 * 100 * 1024
    both = [
        f"{way}, {store}" for way in ("disk, warm", "disk, cold", "memory") for store in ("LinearKV alone", "LMCache")
    ]
    others = [
        "plain reads, warm",
        "plain reads, warm, used memory",
        "plain reads, cold",
        "parse and check",
        "check",
        "parse",
    ]
    remote = ["remote"] if shutil.which("redis-server") else []
    assert set(result["seconds"]) == {*both, *others, *remote}
    assert {len(rounds) for rounds in result["seconds"].values()} == {2}
    # Which of the two it is on a busy machine and with pages this small is not asked.
    assert code == ("NOT KEPT" in capsys.readouterr().out)


def measured(check=0.1, memory=0.002):
    """Seconds of two rounds, the second on a machine twice as busy; a plain read takes one second."""
    ways = {
        "plain reads, warm": 1.0,
        "plain reads, warm, used memory": 0.25,
        "check": check,
        "memory, LinearKV alone": memory,
        "memory, LMCache": memory,
        "disk, cold, LMCache": 12.0,
        "plain reads, cold": 4.0,
    }
    return {"bytes": 1, "seconds": {way: [taken, 2 * taken] for way, taken in ways.items()}}


@pytest.mark.parametrize(
    ("result", "broken"),
    [
        (measured(), []),
        (measured(check=0.149), []),
        (measured(check=0.151), ["checking takes 15.1% of a plain warm read"]),
        (measured(memory=0.1), ["a hit in memory (LinearKV alone) takes 1.00", "a hit in memory (LMCache) takes 1.00"]),
    ],
    ids=["both kept", "just kept", "a check too dear", "memory that checks"],
)
def test_a_limit_that_is_not_kept_is_said_and_is_an_exit_code(result, broken, monkeypatch, capsys):
    monkeypatch.setattr(throughput, "measure", lambda pages, rounds, root: result)
    code = throughput.main(["--pages", "1", "--page-mib", "0.01"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NOT KEPT: ")]
    assert code == (1 if broken else 0)
    assert [line.removeprefix("NOT KEPT: ")[: len(words)] for line, words in zip(lines, broken, strict=True)] == broken


def test_ratios_are_to_plain_reads_of_the_same_warmth():
    ratios = throughput.summarised(measured())
    assert ratios["disk, cold, LMCache"] == 3
    assert ratios["check"] == ratios["check / plain read, warm"] == pytest.approx(0.1)
    assert ratios["check / plain read, warm, used memory"] == pytest.approx(0.4)
    assert ratios["memory / check, LMCache"] == pytest.approx(0.02)


def test_a_store_that_checks_what_it_has_in_memory_is_found_out(tmp_path, monkeypatch):
    real = throughput.open_pages

    class Checking:
        def __init__(self, *given, **options):
            self.store = real(*given, **options)

        def __getattr__(self, name):
            return getattr(self.store, name)

        def get(self, keys):
            results = self.store.get(keys)
            for key, result in results.items():
                if getattr(result, "tier", "") == "memory":
                    decode(result.page.buffer, key, throughput.SECRET)
            return results

    monkeypatch.setattr(throughput, "open_pages", Checking)
    result = throughput.measure(throughput.make_pages(4, 1 << 20), 3, str(tmp_path))
    broken = " ".join(throughput.broken_limits(throughput.summarised(result)))
    assert "a hit in memory (LinearKV alone)" in broken
    assert "a hit in memory (LMCache)" in broken
