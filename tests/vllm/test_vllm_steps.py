"""Chunks longer than a step of the engine."""

import random

import torch

from linearkv import compose
from linearkv.vllm.model import VLLMModel

from .conftest import MACHINE

PREFIX = 37
LENGTHS = (1, 2, 3, 4, 63, 64, 65, 97, 200, 640, 129, 193)


def ids(number, seed):
    chance = random.Random(seed)
    return [chance.randrange(3, 8000) for _ in range(number)]


def test_chunks_longer_than_a_step_are_put_together():
    """Steps of 64 tokens: chunks of 1 to 640 come in up to ten pieces, some of one token, between those of others."""
    model = VLLMModel("reference", max_num_seqs=8, max_model_len=4096, max_num_batched_tokens=64, **MACHINE)
    try:
        prefix = model.prefill_prefix(ids(PREFIX, 0))
        chunks = [ids(length, length) for length in LENGTHS]
        together = model.prefill_chunks(prefix, chunks)
        for chunk, state in zip(chunks, together, strict=True):
            (alone,) = model.prefill_chunks(prefix, [chunk])
            composed = compose(prefix, [alone], "sequential")
            prefilled = model.prefill(chunk, after=compose(prefix, []))
            assert (composed.recurrent - prefilled.recurrent).norm() <= 1e-6 * prefilled.recurrent.norm()
            assert torch.equal(composed.key, prefilled.key)
            # Cut at other places, since others were in the same steps: the same to bfloat16's rounding.
            for name in ("transition", "update", "key", "value", "conv_tail"):
                one, other = getattr(state, name).float(), getattr(alone, name).float()
                assert (one - other).norm() <= 0.03 * other.norm(), (len(chunk), name)
    finally:
        model.close()
