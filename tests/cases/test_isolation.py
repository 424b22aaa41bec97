"""A state is served to the tenant, model and prompt it was made for, and to no other, whoever moves files around."""

import shutil

import pytest

from linearkv.errors import StoreMismatchError
from linearkv.tenants import tenant_folder

QUESTION = "Who keeps the lamp?"
DOCS = {"lamp.md": "# Lamp\n\nThe lamp is kept by Ilse Brandt.", "rope.md": "# Rope\n\nThe rope is forty metres long."}


def keys(engine):
    chunks = engine._retriever.iter_chunks()
    return [engine.states.key(engine._chunk_tokens(chunk).token_ids) for chunk in chunks]


def state_file(engine, key):
    return tenant_folder(engine.store, engine.tenant) / "pages" / key[:2] / f"{key}.safetensors"


def answered(engine):
    answer = engine.query(QUESTION, k=2, max_new_tokens=6)
    return answer.text, answer.cache


def test_states_copied_to_another_tenant_are_never_used(open_engine, write, tmp_path):
    """All of one tenant's states, laid into another's folder under their own names."""
    docs = write(DOCS)
    donor, other = open_engine(tenant="donor"), open_engine(tenant="other")
    donor.index(docs)
    other.index(docs)
    expected, _ = answered(other)
    other.close()
    folder = tenant_folder(tmp_path / "store", "other")
    shutil.rmtree(folder / "pages")
    shutil.copytree(tenant_folder(tmp_path / "store", "donor") / "pages", folder / "pages")
    text, cache = answered(open_engine(tenant="other"))
    assert (text, cache.hits, cache.tiers) == (expected, 0, {"prefilled": 2})


OTHERS = {
    "tenant": {"tenant": "donor"},
    "model of the same shapes": {"model": "other"},
    "system prompt": {"settings": {"system_prompt": "Be brief."}},
    "no conditioning": {"conditioning": "none"},
    "primer": {"conditioning": "primer"},
    "storage policy": {"settings": {"storage": "fp32"}},
}


@pytest.fixture(scope="session")
def other_model(tmp_path_factory):
    """A model of the very shapes of the tiny one, with other weights."""
    import json

    import torch
    import transformers

    from linearkv.models import load_model

    def make(checkpoint):
        folder = shutil.copytree(checkpoint, tmp_path_factory.mktemp("models") / "other")
        torch.manual_seed(99)
        config = transformers.Qwen3_5TextConfig(**json.loads((folder / "config.json").read_text()))
        transformers.Qwen3_5ForCausalLM(config).save_pretrained(folder)
        return load_model(folder, device="cpu")

    return make


@pytest.mark.parametrize("other", OTHERS)
def test_a_state_under_a_name_that_is_not_its_own_is_damage(open_engine, write, other, other_model, tiny_checkpoint):
    """The state that another tenant, model or prompt has of the same text, put in place of ours."""
    docs = write(DOCS)
    ours = open_engine(settings={"memory_budget": 0})
    ours.index(docs)
    expected, _ = answered(ours)
    options = dict(OTHERS[other])
    if "model" in options:
        options["model"] = other_model(tiny_checkpoint("qwen3_5"))
    donor = open_engine(**options)
    donor.index(docs)
    assert not set(keys(ours)) & set(keys(donor))
    for mine, theirs in zip(keys(ours), keys(donor), strict=True):
        shutil.copy(state_file(donor, theirs), state_file(ours, mine))
    text, cache = answered(ours)
    assert (text, cache.hits, len(cache.damaged)) == (expected, 0, 2)
    assert answered(ours)[1].hits == 2, "healed"


def test_the_catalogue_of_another_tenant_is_refused(open_engine, write, tmp_path):
    docs = write(DOCS)
    for name in ("donor", "other"):
        engine = open_engine(tenant=name)
        engine.index(docs)
        engine.close()
    donor, other = (tenant_folder(tmp_path / "store", name) / "index" for name in ("donor", "other"))
    shutil.rmtree(other)
    shutil.copytree(donor, other)
    with pytest.raises(StoreMismatchError, match="was made for another tenant .* tenant 'other'"):
        open_engine(tenant="other")
    assert open_engine(tenant="donor").query(QUESTION, k=1, max_new_tokens=1).cache.hits == 1
