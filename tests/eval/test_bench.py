"""The benchmark's promises: a complete report whose numbers agree, and no speed without a right result."""

import dataclasses
import json
import statistics

import pytest

from linearkv.cli import main
from linearkv.errors import LinearKVError
from linearkv.eval import end_to_end
from linearkv.eval.bench import TIERS, BenchOptions, run_bench, run_benches

ON_A_CPU = tuple(tier for tier in TIERS if tier != "device")
SMALL = BenchOptions(
    chunks=3, chunk_tokens=20, question_tokens=4, orders=("sequential", "cyclic"), tiers=ON_A_CPU, repeats=2
)


@pytest.fixture(scope="module")
def report(tiny_model):
    return json.loads(json.dumps(run_bench(tiny_model("qwen3_5"), SMALL).to_dict(), allow_nan=False))


def test_every_arm_that_was_asked_for_is_there(report):
    assert [(arm["tier"], arm["order"]) for arm in report["composed"]] == [
        (tier, order) for tier in ON_A_CPU for order in ("sequential", "cyclic")
    ]
    for arm in (report["full"], report["transformers"], report["question_alone"], *report["composed"]):
        assert len(arm["seconds"]) == SMALL.repeats, "the first round does not count"
        assert 0 < arm["min_s"] <= arm["median_s"] <= arm["max_s"]


def test_the_report_says_what_was_measured_and_where(report):
    tokens = report["tokens"]
    assert tokens["prompt"] == tokens["prefix"] + tokens["chunks"] + tokens["question"]
    assert (tokens["chunks"], tokens["question"]) == (60, 4) and tokens["prefix"] > 0
    assert report["options"]["chunk_tokens"] == 20
    assert report["model"]["class"] == "Qwen3_5ForCausalLM" and report["model"]["dtype"] == "float32"
    for name in ("device", "cores", "threads", "load", "torch", "transformers", "linearkv", "python", "system"):
        assert report["machine"][name] is not None


def test_ratios_are_medians_over_rounds_of_the_times_reported(report):
    full = report["full"]["seconds"]
    for arm in (report["transformers"], report["question_alone"], *report["composed"]):
        ratios = [slow / fast for slow, fast in zip(full, arm["seconds"], strict=True)]
        assert arm["ratio"] == pytest.approx(statistics.median(ratios))
        assert arm["ratio_min"] <= arm["ratio"] <= arm["ratio_max"]
    assert report["ceiling"] == report["question_alone"]["ratio"]


def test_the_parts_of_a_composed_answer_add_up(tiny_model):
    arms = run_bench(tiny_model("qwen3_5"), dataclasses.replace(SMALL, tiers=("memory",))).arms.values()
    for arm in arms:
        for parts in zip(arm.seconds, arm.restore, arm.compose, arm.prefill, strict=arm.order is not None):
            assert sum(parts[1:]) == pytest.approx(parts[0])


def test_bytes_of_a_chunk_follow_the_storage_policy(report, tiny_model):
    exact = run_bench(
        tiny_model("qwen3_5"), dataclasses.replace(SMALL, storage="fp32", tiers=("memory",), repeats=1)
    ).to_dict()
    assert exact["bytes_per_chunk"] > report["bytes_per_chunk"] > 1000
    assert exact["check_error"] < 1e-5


def test_nothing_is_timed_where_composition_is_wrong(tiny_model, monkeypatch):
    """A wrong context, made by turning the keys of every composed one around."""
    from linearkv.eval import bench

    real = bench.compose

    def wrong(prefix, states, order="bidirectional"):
        context = real(prefix, states, order)
        return dataclasses.replace(context, key=-context.key) if states else context

    monkeypatch.setattr(bench, "compose", wrong)
    with pytest.raises(LinearKVError, match=r"one composed chunk is off by .* nothing was timed"):
        run_bench(tiny_model("qwen3_5"), SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": 0}, "chunks is 0"),
        ({"orders": ("best",)}, "unknown orders best"),
        ({"tiers": ()}, r"unknown tiers \(none\)"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BenchOptions(**options)


def test_a_prompt_that_does_not_fit_is_refused(tiny_model):
    with pytest.raises(LinearKVError, match="does not fit the model's 4096 positions"):
        run_bench(tiny_model("qwen3_5"), dataclasses.replace(SMALL, chunk_tokens=2000))


def test_the_command_prints_a_table_and_writes_json(tiny_checkpoint, tmp_path, capsys):
    arguments = ["bench", "--model", tiny_checkpoint("qwen3_5"), "--chunks", 2, "--chunk-tokens", 20, "--repeats", 1]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--out", str(tmp_path / "bench.json")])
    out = capsys.readouterr().out
    written = json.loads((tmp_path / "bench.json").read_text())
    assert ended.value.code == 0
    assert "composed, memory, bidirectional" in out and "torch" in out
    assert f"{written['composed'][0]['ratio']:.1f}x" in out


def test_states_cannot_be_kept_on_a_device_that_is_not_there(tiny_model):
    with pytest.raises(LinearKVError, match="leave out the device tier"):
        run_bench(tiny_model("qwen3_5"), dataclasses.replace(SMALL, tiers=("device",), repeats=1))


def test_indexing_is_measured_beside_plain_prefill(report):
    assert set(report["indexing"]) == {"prefill", "states", "index"}
    assert all(rate > 0 for rate in report["indexing"].values())


def test_several_shapes_are_measured_in_one_store(tiny_model):
    several = [dataclasses.replace(SMALL, chunks=n, tiers=("memory", "disk"), repeats=1, seed=n) for n in (1, 2)]
    reports = list(run_benches(tiny_model("qwen3_5"), several))
    assert [report.tokens["chunks"] for report in reports] == [20, 40]
    assert reports[0].bytes_per_chunk == pytest.approx(reports[1].bytes_per_chunk, rel=0.1)
    with pytest.raises(LinearKVError, match="a seed of its own"):
        list(run_benches(tiny_model("qwen3_5"), several[:1] * 2))
    with pytest.raises(ValueError, match="several storage policies"):
        next(run_benches(tiny_model("qwen3_5"), [SMALL, dataclasses.replace(SMALL, storage="fp32")]))


def test_the_program_for_published_shapes_measures_and_writes(tmp_path, capsys):
    out = tmp_path / "tiny.json"
    end_to_end.main(
        ["--shape", "tiny", "--device", "cpu", "--contexts", "1x16", "2x8", "--tiers", "memory", "cold"]
        + ["--repeats", "1", "--question-tokens", "4", "--out", str(out)]
    )
    printed = capsys.readouterr().out
    reports = json.loads(out.read_text())["reports"]
    assert [report["tokens"]["chunks"] for report in reports] == [16, 16]
    assert "1 chunks x 16 tokens" in printed and printed.count("full prefill") == 2
    with pytest.raises(SystemExit):
        end_to_end.main(["--contexts", "5"])
