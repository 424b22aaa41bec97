"""The page format: what is written comes back exactly, and nothing else ever comes back."""

import json
import os
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from linearkv.cache import pages
from linearkv.cache.pages import HEAD_BYTES, Page, PageDamaged, check_head, decode, encode

SECRET = bytes(range(32))
OTHER_SECRET = bytes(range(1, 33))
KEY = "ab" * 32
OTHER_KEY = "ac" * 32
DTYPES = list(pages._DTYPES.values())


def tensor_of(dtype: torch.dtype, shape: list[int], seed: int = 0) -> torch.Tensor:
    """A tensor of any dtype with random bits."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape).numel()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size * dtype.itemsize,), generator=generator)
    return raw.to(torch.uint8).view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def small_page() -> Page:
    tensors = {"layers.0.update": tensor_of(torch.float32, [2, 3]), "layers.0.key": tensor_of(torch.float16, [5])}
    return encode(KEY, tensors, secret=SECRET, metadata={"chunk": "7"})


def raw(page: Page) -> bytes:
    return bytes(page.buffer.numpy())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)) if a.numel() else True


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda name: not name.startswith("__pad__") and name != "__metadata__"
)
arrays = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 99))


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(names, arrays, max_size=8),
    st.dictionaries(
        names.filter(lambda name: name not in pages._RESERVED), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_tensors_and_metadata_come_back_in_order_and_bit_equal(described, metadata, kind):
    tensors = {name: tensor_of(*array) for name, array in described.items()}
    page = encode(KEY, tensors, secret=SECRET, metadata=metadata, kind=kind)
    for found in (page, decode(raw(page), KEY, SECRET)):
        assert list(found.tensors) == list(tensors)
        assert all(same_bits(found.tensors[name], tensor) for name, tensor in tensors.items())
        assert (found.metadata, found.kind, found.key) == (metadata, kind, KEY)


def test_safetensors_itself_reads_a_page(tmp_path):
    tensors = {f"layers.{i}.{dtype}": tensor_of(dtype, [3, i], i) for i, dtype in enumerate(DTYPES)}
    path = tmp_path / "page.safetensors"
    path.write_bytes(raw(encode(KEY, tensors, secret=SECRET, kind="chunk", metadata={"note": "été"})))
    loaded = load_file(path)
    assert all(same_bits(loaded[name], tensor) for name, tensor in tensors.items())
    with safe_open(path, "pt") as file:
        assert file.metadata()["note"] == "été"
        assert file.metadata()["key"] == KEY
        assert same_bits(file.get_tensor("layers.2.torch.float16"), tensors["layers.2.torch.float16"])


def test_tensors_lie_in_the_order_given_and_aligned_to_their_elements():
    tensors = {"z": tensor_of(torch.uint8, [3]), "a": tensor_of(torch.int64, [2]), "m": tensor_of(torch.float16, [1])}
    page = encode(KEY, tensors, secret=SECRET)
    addresses = [tensor.data_ptr() for tensor in page.tensors.values()]
    assert addresses == sorted(addresses)
    for tensor in page.tensors.values():
        assert (tensor.data_ptr() - page.buffer.data_ptr()) % tensor.itemsize == 0


def test_strides_gradients_and_inference_mode_do_not_matter():
    strided = torch.arange(12.0).view(3, 4).T
    parameter = torch.nn.Parameter(torch.ones(2))
    with torch.inference_mode():
        page = encode(KEY, {"strided": strided, "parameter": parameter, "one": torch.ones(2) + 0}, secret=SECRET)
    assert torch.equal(page.tensors["strided"], strided)
    assert not page.tensors["parameter"].requires_grad
    assert not page.buffer.is_inference()


def test_a_page_shares_no_memory_with_what_it_was_made_from():
    tensor = torch.ones(4)
    page = encode(KEY, {"x": tensor}, secret=SECRET)
    tensor.zero_()
    assert torch.equal(page.tensors["x"], torch.ones(4))


def test_decoding_copies_nothing_and_warns_of_nothing():
    data = bytearray(raw(small_page()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = decode(data, KEY, SECRET)
        decode(bytes(data), KEY, SECRET)
    start = torch.frombuffer(data, dtype=torch.uint8).data_ptr()
    assert all(start < tensor.data_ptr() < start + len(data) for tensor in page.tensors.values())


def test_every_single_bit_flip_is_refused():
    good = raw(small_page())
    for position in range(len(good)):
        for bit in range(8):
            data = bytearray(good)
            data[position] ^= 1 << bit
            with pytest.raises(PageDamaged):
                decode(data, KEY, SECRET)


def test_every_other_length_is_refused():
    good = raw(small_page())
    for length in range(len(good)):
        with pytest.raises(PageDamaged):
            decode(good[:length], KEY, SECRET)
    for more in (b"\0", b" " * 8, good):
        with pytest.raises(PageDamaged, match="but the page was written with"):
            decode(good + more, KEY, SECRET)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=600))
def test_arbitrary_bytes_are_refused(data):
    for candidate in (data, raw(small_page())[: len(data) // 2] + data, pickle.dumps(data)):
        with pytest.raises(PageDamaged):
            decode(candidate, KEY, SECRET)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (bytes(5000), "zeros"),
        (b"x" * 5000, "does not begin like"),
        (b"x", "too few"),
    ],
    ids=["empty", "zeros", "text", "one byte"],
)
def test_the_reason_says_what_was_found(data, reason):
    with pytest.raises(PageDamaged, match=reason):
        decode(data, KEY, SECRET)


def test_a_page_of_another_key_is_refused():
    with pytest.raises(PageDamaged, match="another key"):
        decode(raw(small_page()), OTHER_KEY, SECRET)


def test_a_page_cannot_be_relabelled_with_another_key():
    data = raw(small_page()).replace(KEY.encode(), OTHER_KEY.encode())
    with pytest.raises(PageDamaged, match="MAC"):
        decode(data, OTHER_KEY, SECRET)


def test_a_page_of_another_secret_is_refused():
    with pytest.raises(PageDamaged, match="another secret"):
        decode(raw(small_page()), KEY, OTHER_SECRET)


def test_a_page_of_another_format_version_is_refused():
    data = raw(small_page()).replace(b'"linearkv_page":"0002"', b'"linearkv_page":"0003"')
    with pytest.raises(PageDamaged, match="page format 3"):
        decode(data, KEY, SECRET)


@pytest.mark.parametrize("length", [0, 7, 8, 1 << 20, 1 << 40, (1 << 64) - 8], ids=str)
def test_a_forged_header_length_is_refused_from_the_first_bytes(length):
    data = bytearray(raw(small_page()))
    data[:8] = length.to_bytes(8, "little")
    with pytest.raises(PageDamaged):
        check_head(data[:HEAD_BYTES], len(data), KEY)


def sealed(header_rest: bytes, tensors: bytes) -> bytes:
    """A page with a correct MAC and whatever else: what a fault in a writer with our secret could leave."""
    head = b'{"__metadata__":{"linearkv_page":"0002","mac":"' + b"0" * 64
    length = len(head) + len('","bytes":"') + 16 + len('","key":"') + 64 + len('","tag":"') + 64 + 1 + len(header_rest)
    padding = -length % 8
    size = 8 + length + padding + len(tensors)
    fixed = b'","bytes":"%016d","key":"%s","tag":"%s"' % (size, KEY.encode(), b"0" * 64)
    header = head + fixed + header_rest + b" " * padding
    data = bytearray((length + padding).to_bytes(8, "little") + header + tensors)
    at = 8 + len('{"__metadata__":{"linearkv_page":"0002","mac":"')
    data[at : at + 64] = pages._mac(memoryview(data), pages._mac_key(SECRET), bytes(16))
    return bytes(data)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)) -> bytes:
    described = {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}
    return b',"kind":"chunk"},"x":' + json.dumps(described).encode() + b"}"


def test_a_tag_comes_back_and_can_be_read_from_the_first_bytes():
    page = encode(KEY, {"x": torch.ones(3)}, secret=SECRET, tag="5e" * 32)
    data = bytes(pages.raw_bytes(page.buffer))
    assert decode(data, KEY, SECRET).tag == "5e" * 32 == pages.read_tag(data[:HEAD_BYTES])


def test_a_changed_tag_is_refused():
    data = bytes(pages.raw_bytes(encode(KEY, {"x": torch.ones(3)}, secret=SECRET, tag="5e" * 32).buffer))
    with pytest.raises(PageDamaged, match="MAC"):
        decode(data.replace(b"5e" * 32, b"cd" * 32), KEY, SECRET)


def test_no_tag_is_read_from_what_is_not_a_page():
    assert pages.read_tag(b"x" * 500) is None


def test_the_helper_that_seals_headers_seals_a_good_one():
    assert decode(sealed(entry(), bytes(8)), KEY, SECRET).tensors["x"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "rest",
    [
        entry(dtype="F99"),
        entry(dtype=7),
        entry(shape=(3,)),
        entry(shape=(-2,)),
        entry(shape=(2.0,)),
        entry(shape=(True, 2)),
        entry(shape=(1 << 62, 1 << 62)),
        entry(offsets=(8, 16)),
        entry(offsets=(0, 1 << 60), shape=(1 << 58,)),
        entry(offsets=(0, 4), shape=(1,)),
        entry(offsets=(0,)),
        entry()[:-1] + entry()[len(b',"kind":"chunk"}') :].replace(b'"x"', b'"y"'),
        b',"kind":"chunk"}}',
        b"}}",
        b',"kind":3},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b',"kind":"chunk"},"x":7}',
        b',"kind":"chunk"},"x":{}}',
        b',"kind":"chunk"},"x":' + b"[" * 100_000,
        b"\xff\xfe}}",
        b"",
    ],
    ids=lambda rest: ascii(rest[:60].decode("latin-1")),
)
def test_a_header_that_cannot_be_right_is_refused_even_with_a_correct_mac(rest):
    with pytest.raises(PageDamaged, match="cannot be used"):
        decode(sealed(rest, bytes(8)), KEY, SECRET)


def test_the_secret_does_not_occur_in_a_page():
    secret = os.urandom(32)
    data = raw(encode(KEY, {"x": torch.ones(3)}, secret=secret))
    assert secret not in data
    assert secret.hex().encode() not in data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "../../etc/passwd"}, "64 lowercase hex"),
        ({"key": KEY.upper()}, "64 lowercase hex"),
        ({"secret": b"short"}, "32 bytes, got 5"),
        ({"metadata": {"mac": "x"}}, "'mac'"),
        ({"metadata": {"note": "\ud800"}}, "surrogate"),
        ({"tensors": {"__metadata__": torch.ones(1)}}, "__metadata__"),
        ({"tensors": {"__pad__0": torch.ones(1)}}, "__pad__0"),
        ({"tensors": {"c": torch.ones(1, dtype=torch.complex64)}}, "complex64"),
        ({"tensors": {"m": torch.ones(1, device="meta")}}, "meta"),
        ({"tensors": {"s": torch.ones(1).to_sparse()}}, "sparse"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_cannot_be_stored_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        encode(**{"key": KEY, "tensors": {"x": torch.ones(1)}, "secret": SECRET, **arguments})
