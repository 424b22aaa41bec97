"""Identity: whatever shapes a state changes its key, and nothing else does."""

import os
import struct
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linearkv import identity
from linearkv.identity import (
    WEIGHT_FILES,
    ModelIdentity,
    canonical,
    chunk_key,
    digest_folder,
    digest_parameters,
    digest_value,
    tokenizer_digest,
)

SECRET = bytes(range(32))
MODEL = ModelIdentity(
    weights="w",
    config="c",
    parameters="p",
    compute_dtype="bfloat16",
    attention_backend="sdpa",
    gdn_backend="triton",
    versions={"torch": "2.13.0", "transformers": "5.16.0"},
    producer="linearkv 0.1.0",
)
ARGUMENTS = {"prefix_token_ids": [1, 2], "chunk_token_ids": [3, 4], "storage_policy": "fp16"}


def key(secret: bytes = SECRET, model: ModelIdentity = MODEL, **changes) -> str:
    return chunk_key(secret, model, **{**ARGUMENTS, **changes})


# ---- canonical encoding ---------------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.binary(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


def typed(value):
    """A value that is equal exactly where the originals are the same value of the same type."""
    match value:
        case dict():
            return "map", frozenset((typed(k), typed(v)) for k, v in value.items())
        case list() | tuple():
            return "list", tuple(map(typed, value))
        case float():
            return "float", "nan" if value != value else struct.pack(">d", value)
        case _:
            return type(value).__name__, value


@settings(max_examples=200, deadline=None)
@given(values, values)
def test_encodings_are_equal_exactly_where_the_values_are(one, two):
    assert (canonical(one) == canonical(two)) == (typed(one) == typed(two))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["a", ["b"]], ["a", "b"]),
        ([[], []], [[[]]]),
        ({"a": "b"}, [["a", "b"]]),
        ({"1": 0}, {1: 0}),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", b"1"),
        (None, ""),
        ([None], []),
    ],
    ids=repr,
)
def test_values_that_look_alike_have_different_encodings(one, two):
    assert canonical(one) != canonical(two)


def test_order_of_a_mapping_and_kind_of_a_sequence_do_not_matter():
    assert canonical({"a": 1, "b": (2, 3)}) == canonical({"b": [2, 3], "a": 1})


def test_what_has_no_encoding_is_refused_with_its_place():
    with pytest.raises(TypeError, match=r"dtype at \['rope'\]\[1\]"):
        digest_value({"rope": [1, torch.float16]})


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_a_key_is_64_hex_digits_and_stays_the_same():
    """The value is written down: keys must not depend on the process, and changing them loses every store."""
    assert key() == chunk_key(SECRET, replace(MODEL, versions=dict(reversed(MODEL.versions.items()))), **ARGUMENTS)
    assert key() == "ae5ecf2cc3485c39142be9234b438d1247f8bf337bcfe05c559c68187d0d8839"


CHANGES = {
    **{
        name: {"model": replace(MODEL, **{name: "changed"})}
        for name in ("weights", "config", "parameters", "compute_dtype", "attention_backend", "gdn_backend", "producer")
    },
    "versions": {"model": replace(MODEL, versions={**MODEL.versions, "torch": "2.14.0"})},
    "fewer versions": {"model": replace(MODEL, versions={"torch": "2.13.0"})},
    "another prefix": {"prefix_token_ids": [1]},
    "an empty prefix": {"prefix_token_ids": []},
    "no prefix": {"prefix_token_ids": None},
    "a token moved to the prefix": {"prefix_token_ids": [1, 2, 3], "chunk_token_ids": [4]},
    "another chunk": {"chunk_token_ids": [4, 3]},
    "a longer chunk": {"chunk_token_ids": [3, 4, 0]},
    "storage policy": {"storage_policy": "fp32"},
    "format version": {"format_version": 1},
    "kind": {"kind": "prefix"},
    "tenant": {"secret": bytes(32)},
}


def test_every_change_gives_another_key():
    keys = {name: key(**changes) for name, changes in CHANGES.items()} | {"unchanged": key()}
    assert len(set(keys.values())) == len(keys)


@settings(max_examples=200, deadline=None)
@given(*[st.tuples(st.none() | st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), max_size=4))] * 2)
def test_token_sequences_never_run_into_one_another(one, two):
    keys = [key(prefix_token_ids=prefix, chunk_token_ids=chunk) for prefix, chunk in (one, two)]
    assert (keys[0] == keys[1]) == (one == two)


def test_lists_tuples_and_tensors_of_tokens_are_the_same():
    for chunk in ((3, 4), torch.tensor([3, 4]), torch.tensor([3, 4], dtype=torch.int32)):
        assert key(chunk_token_ids=chunk) == key()


@pytest.mark.parametrize("tokens", [torch.tensor([[3, 4]]), torch.tensor([3.0, 4.0])], ids=["two rows", "floats"])
def test_what_is_no_row_of_tokens_is_refused(tokens):
    with pytest.raises(ValueError, match="Token ids are integers"):
        key(chunk_token_ids=tokens)


def test_keys_of_two_tenants_are_unrelated():
    """Half of the bits differ, for equal text and for secrets that differ in one bit."""
    other = bytes([SECRET[0] ^ 1]) + SECRET[1:]
    distances = [
        (int(key(chunk_token_ids=[n]), 16) ^ int(key(other, chunk_token_ids=[n]), 16)).bit_count() for n in range(50)
    ]
    assert all(80 < distance < 176 for distance in distances)


# ---- parameters -----------------------------------------------------------------------------------------------------


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(4, 3, generator=generator),
        "b": torch.randn(5, generator=generator).bfloat16(),
        "c": torch.arange(3),
        "empty": torch.empty(0),
        "scalar": torch.tensor(2.0),
    }


def test_parameters_digest_by_content_not_by_order_or_layout(monkeypatch):
    expected = digest_parameters(parameters())
    assert digest_parameters(reversed(parameters().items())) == expected
    assert digest_parameters({**parameters(), "a": parameters()["a"].T.contiguous().T}) == expected
    assert digest_parameters({**parameters(), "a": torch.nn.Parameter(parameters()["a"])}) == expected
    monkeypatch.setattr(identity, "_PIECE_BYTES", 8)
    assert digest_parameters(parameters()) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["a"].view(-1)[5:6].add_(1e-6),
        lambda p: p["b"].neg_(),
        lambda p: p.update(a=p["a"].view(3, 4)),
        lambda p: p.update(b=p["b"].half()),
        lambda p: p.update(c=p["c"].int()),
        lambda p: p.update(d=p.pop("c")),
        lambda p: p.pop("empty"),
        lambda p: p.update(scalar=p["scalar"].view(1)),
    ],
    ids=["one value", "sign", "shape", "float type", "integer type", "name", "missing", "dimension"],
)
def test_every_change_of_parameters_is_seen(change):
    changed = parameters()
    change(changed)
    assert digest_parameters(changed) != digest_parameters(parameters())


def test_parameters_that_are_not_loaded_are_refused():
    with pytest.raises(ValueError, match=r"'layer.weight' has no data"):
        digest_parameters({"layer.weight": torch.empty(2, device="meta")})


class Quantised(torch.Tensor):
    """A tensor made of codes and scales, as quantisation libraries build them."""

    @staticmethod
    def __new__(cls, codes, scales):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scales):
        self.codes, self.scales = codes, scales

    def __tensor_flatten__(self):
        return ["codes", "scales"], {"bits": 8}

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if function is torch.ops.aten.detach.default:
            return arguments[0]
        raise NotImplementedError(function)


def test_tensors_made_of_tensors_digest_by_their_parts():
    codes, scales = torch.ones(4, dtype=torch.int8), torch.ones(1)
    first = digest_parameters({"w": Quantised(codes, scales)})
    assert digest_parameters({"w": Quantised(codes.clone(), scales.clone())}) == first
    assert digest_parameters({"w": Quantised(codes, scales * 2)}) != first
    assert digest_parameters({"w": Quantised(codes * 2, scales)}) != first


# ---- folders --------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    (folder / "sub").mkdir(parents=True)
    for name in ("model-1.safetensors", "model-2.safetensors", "sub/more.safetensors", "notes.txt", "tokenizer.json"):
        (folder / name).write_text(name)
    age(folder)
    return folder


def age(folder) -> None:
    """Make files old enough for their times to be trusted."""
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "_SETTLED_NS", -1)  # the change time of a file cannot be set back, also not by a test
    return tmp_path / "cache" / "digests.json"


def test_a_folder_digests_by_names_and_contents_wherever_it_lies(checkpoint, tmp_path, cache):
    before = digest_folder(checkpoint, WEIGHT_FILES, cache=cache)
    (checkpoint / "notes.txt").write_text("changed")
    assert digest_folder(checkpoint, WEIGHT_FILES, cache=cache) == before
    moved = checkpoint.rename(tmp_path / "moved")
    assert digest_folder(moved, WEIGHT_FILES, cache=cache) == before
    first = moved / "model-1.safetensors"
    blob = first.rename(tmp_path / "blob")
    first.symlink_to(blob)
    assert digest_folder(moved, WEIGHT_FILES, cache=cache) == before, "hubs keep files behind links"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "model-1.safetensors").write_text("model-X.safetensors"),
        lambda folder: (folder / "model-1.safetensors").rename(folder / "model-0.safetensors"),
        lambda folder: (folder / "sub" / "more.safetensors").unlink(),
        lambda folder: (folder / "extra.safetensors").write_text(""),
    ],
    ids=["content of equal length", "name", "missing", "more"],
)
def test_every_change_of_a_folder_is_seen_also_with_times_set_back(checkpoint, cache, change):
    before = digest_folder(checkpoint, WEIGHT_FILES, cache=cache)
    assert digest_folder(checkpoint, WEIGHT_FILES, cache=cache) == before
    change(checkpoint)
    age(checkpoint)
    assert digest_folder(checkpoint, WEIGHT_FILES, cache=cache) != before


def test_unchanged_files_are_not_read_again(checkpoint, cache):
    read = []
    digest_folder(checkpoint, WEIGHT_FILES, cache=cache, progress=lambda done, total: read.append((done, total)))
    assert read[-1] == (58, 58)
    read.clear()
    digest_folder(checkpoint, WEIGHT_FILES, cache=cache, progress=lambda done, total: read.append((done, total)))
    assert not read


def test_a_file_that_changes_while_it_is_read_is_not_remembered(checkpoint, cache):
    first = checkpoint / "model-1.safetensors"

    def change(done, total):
        if first.read_text() == first.name:
            first.write_text("model-X.safetensors")

    during = digest_folder(checkpoint, WEIGHT_FILES, cache=cache, progress=change)
    assert digest_folder(checkpoint, WEIGHT_FILES, cache=cache) != during


def test_a_file_changed_a_moment_ago_is_not_trusted_to_its_times(checkpoint, tmp_path):
    cache = tmp_path / "digests.json"
    digest_folder(checkpoint, cache=cache)
    assert time.time_ns() - (checkpoint / "notes.txt").stat().st_ctime_ns < identity._SETTLED_NS, (
        "the test was too slow"
    )
    assert not cache.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"x": 7}', b"\xff", b"null"], ids=ascii)
def test_a_damaged_cache_is_done_without(checkpoint, cache, content):
    expected = digest_folder(checkpoint, cache=cache)
    cache.write_bytes(content)
    assert digest_folder(checkpoint, cache=cache) == expected


def test_a_cache_that_cannot_be_written_is_done_without(checkpoint, tmp_path, cache):
    (tmp_path / "file").write_text("not a folder")
    assert digest_folder(checkpoint, cache=tmp_path / "file" / "digests.json") == digest_folder(checkpoint, cache=cache)


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(identity.Path, "home", no_home)
    assert identity._default_cache() is None


def test_a_folder_without_such_files_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"\*\.safetensors"):
        digest_folder(tmp_path, WEIGHT_FILES)


def test_the_tokenizer_digests_apart_from_the_weights(checkpoint, cache):
    before = tokenizer_digest(checkpoint, cache=cache)
    (checkpoint / "model-1.safetensors").write_text("changed")
    assert tokenizer_digest(checkpoint, cache=cache) == before
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_digest(checkpoint, cache=cache) != before
