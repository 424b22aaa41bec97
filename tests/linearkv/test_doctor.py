"""The doctor's promises: it looks at everything, changes nothing, and a broken part is a finding, never a crash."""

import json
import shutil
import sys

import pytest

from linearkv.cli import main
from linearkv.doctor import diagnose
from linearkv.engine import Engine
from linearkv.retrieval import DocumentStore
from linearkv.settings import Settings
from linearkv.tenants import tenant_folder


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return tiny_checkpoint("qwen3_5")


@pytest.fixture(scope="module")
def made_store(model, tmp_path_factory):
    work = tmp_path_factory.mktemp("doctor")
    (work / "bell.md").write_text("# The bell\n\nThe bell was recast in 1911.\n")
    with Engine.open(work / "store", model) as engine:
        engine.index(work / "bell.md")
    return work / "store"


@pytest.fixture
def store(made_store, tmp_path):
    """A store with one document and its state, of this test alone."""
    return shutil.copytree(made_store, tmp_path / "store")


def by_name(findings):
    found = {finding.name: finding for finding in findings}
    assert len(found) == len(findings)
    assert all(finding.advice for finding in findings if finding.level != "ok"), "what is wrong comes with advice"
    return found


def test_all_is_well_with_a_good_store(store, model):
    before = sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*.safetensors"))
    found = by_name(diagnose(store, model))
    assert {finding.level for finding in found.values()} <= {"ok", "warn"}
    for name in ("python", "torch", "transformers", "kernels", "embedder", "model self-test", "prompt", "free disk"):
        assert found[name].level == "ok", found[name]
    assert "Qwen3_5ForCausalLM" in found["model"].value and "3 GDN and 1 attention layers" in found["model"].value
    assert "1 documents, 1 chunks, embedded with all-MiniLM-L6-v2" in found["catalogue"].value
    assert found["writer"].value == "nobody is indexing"
    assert "stored states" in found["pages"].value
    assert sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*.safetensors")) == before


def test_the_bytes_of_a_state_are_those_that_are_stored(store, model):
    """A state of 512 tokens, by the doctor, is the state of this chunk and the tokens it lacks."""
    with Engine.open(store, model, settings=Settings(storage="fp32")) as engine:
        state = engine.model.prefill_chunks(engine.model.empty_prefix(), [[5] * 512])[0]
    found = by_name(diagnose(None, model, settings=Settings(storage="fp32")))
    assert found["chunk states"].value.startswith(f"{state.nbytes / 1000:.1f} kB for a chunk of 512 tokens in fp32")


def test_a_package_that_breaks_at_import_is_a_finding(model, monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "faiss.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(broken))
    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    found = by_name(diagnose(None, model))["faiss"]
    assert (found.level, found.value) == ("error", "OSError: libgomp.so.1: cannot open shared object file")
    assert "pip install" in found.advice


def test_a_missing_or_damaged_model_is_a_finding(model, tmp_path):
    missing = by_name(diagnose(None, tmp_path / "none"))
    assert missing["model"].level == "error" and "no checkpoint in" in missing["model"].value
    assert "model self-test" not in missing
    cut = shutil.copytree(model, tmp_path / "cut")
    weights = next(cut.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    assert by_name(diagnose(None, cut))["model"].level == "error"


def test_a_model_with_a_broken_tokenizer_is_a_finding(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "tokenizer.json").write_text("{")
    found = by_name(diagnose(None, folder))
    assert found["model"].level == "ok" and found["prompt"].level == "error"


def test_a_wrong_setting_is_a_finding(model, monkeypatch):
    monkeypatch.setenv("LINEARKV_STORAGE", "fp8")
    found = by_name(diagnose(None, model))["settings"]
    assert found.level == "error" and "fp8" in found.value and "LINEARKV_" in found.advice


@pytest.mark.parametrize("url", ["redis://:hunter2@127.0.0.1:1/0", "redis://127.0.0.1:1?password=hunter2"])
def test_a_password_is_never_shown(model, monkeypatch, url):
    monkeypatch.setenv("LINEARKV_REMOTE", url)
    words = repr(diagnose(None, model))
    assert "127.0.0.1:1" in words and "hunter2" not in words


def test_what_is_wrong_with_a_store_is_found(store, model, tmp_path):
    assert by_name(diagnose(tmp_path / "none", model))["store"].level == "warn"
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    assert by_name(diagnose(tmp_path / "file", model))["store"].level == "error"
    other = by_name(diagnose(store, model, tenant="acme"))["tenant"]
    assert other.level == "error" and "'acme'" in other.value
    database = tenant_folder(store, "default") / "index" / "documents.sqlite"
    database.write_bytes(b"this is no database" * 100)
    found = by_name(diagnose(store, model))
    assert found["catalogue"].level == "error"
    assert found["pages"].level == "ok", "one broken part does not hide the others"


def test_who_is_indexing_is_named(store, model):
    with DocumentStore(tenant_folder(store, "default") / "index").writing():
        found = by_name(diagnose(store, model))["writer"]
    assert found.level == "warn" and "process " in found.value and "is indexing" in found.value


@pytest.mark.parametrize(("source", "status"), [("good", 0), ("missing", 1)])
def test_the_command_fails_where_something_is_wrong(model, store, capsys, source, status):
    given = str(model) if source == "good" else "/no/such/folder"
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--store", str(store), "--model", given, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code == status and report["ok"] == (status == 0)
    assert set(report["findings"][0]) == {"name", "value", "level", "advice"}
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--store", str(store), "--model", given])
    out = capsys.readouterr().out
    assert ended.value.code == status
    assert ("everything needed works" if status == 0 else "1 thing to repair") in out
