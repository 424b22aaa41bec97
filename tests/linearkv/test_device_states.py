"""States that stay where the model computes: within a budget, gone with their text, and the same answers."""

from dataclasses import replace

import pytest
import torch

from linearkv import ChunkState, Engine, Settings
from linearkv.device_states import DeviceStates


def state(tokens=1):
    return ChunkState(
        transition=torch.zeros(1, 1, 4, 4),
        update=torch.zeros(1, 1, 4, 4),
        conv_tail=torch.zeros(1, 2, 3),
        key=torch.zeros(1, tokens, 1, 4),
        value=torch.zeros(1, tokens, 1, 4),
        token_ids=torch.zeros(tokens, dtype=torch.int64),
    )


def test_the_least_recently_used_goes_first_and_the_budget_holds():
    size = state().nbytes
    tier = DeviceStates(2 * size)
    tier.put("a", "t", state())
    tier.put("b", "t", state())
    assert set(tier.get(["a"])) == {"a"}
    tier.put("c", "t", state())
    assert tier.contains("abc") == {"a", "c"}
    stat = tier.stat()
    assert (stat.tier, stat.pages, stat.bytes, stat.evicted, stat.hits) == ("device", 2, 2 * size, 1, 1)
    tier.put("a", "t", state())
    assert tier.stat().bytes == 2 * size, "a state that is put again takes its own place"


def test_a_state_over_the_budget_is_not_kept_and_drops_no_other():
    tier = DeviceStates(state().nbytes)
    tier.put("a", "t", state())
    tier.put("b", "t", state(tokens=99))
    assert tier.contains("ab") == {"a"}
    assert tier.stat().not_kept == 1
    nothing = DeviceStates(0)
    nothing.put("a", "t", state())
    assert not nothing.contains("a")


def test_states_go_with_their_tags():
    tier = DeviceStates(1 << 20)
    tier.put("a", "kept", state())
    tier.put("b", "gone", state())
    tier.keep_only({"kept"})
    assert tier.contains("ab") == {"a"}
    tier.clear()
    assert tier.stat().bytes == tier.stat().pages == 0


def test_what_is_no_tensor_of_the_device_holds_nothing_of_the_page(tiny_checkpoint, corpus, tmp_path):
    """Else a state on a GPU would hold its page in host memory, outside of every budget."""
    with Engine.open(tmp_path / "store", tiny_checkpoint("qwen3_5"), device="cpu") as engine:
        engine.index(corpus)
        pages = engine.states.pages
        page = next(hit.page for hit in pages.get(pages.keys()).values() if "token_ids" in hit.page.tensors)
        state = engine.states._state(page)
        assert state.token_ids.untyped_storage().nbytes() == state.token_ids.nbytes


@pytest.mark.parametrize("edit", [False, True])
def test_an_engine_reuses_them_and_forgets_them_with_their_documents(tiny_checkpoint, corpus, tmp_path, edit):
    settings = Settings(chunk_tokens=256, memory_budget=0)
    with Engine.open(tmp_path / "store", tiny_checkpoint("qwen3_5"), device="cpu", settings=settings) as engine:
        engine.states._on_device = DeviceStates(1 << 30)  # an engine on a CPU keeps none: memory is as near
        engine.index(corpus)
        first, second = (engine.query("Who recast the bell?", k=4, max_new_tokens=4) for _ in range(2))
        assert (first.cache.tiers, second.cache.tiers) == ({"disk": 4}, {"device": 4})
        assert second.cache.bytes_loaded == 0
        assert replace(first, cache=second.cache, timings=second.timings) == second
        assert engine.stats()["tiers"][0]["pages"] == 4
        if edit:
            for file in corpus.iterdir():
                if file.is_file():
                    file.unlink()
            engine.index(corpus)
            assert engine.stats()["tiers"][0]["pages"] == 0
