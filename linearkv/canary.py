"""The canary: a fixed prompt's logits, kept in the store, must be what the model computes today.

The identity covers everything known to shape a state; the canary covers the rest: a broken library, memory or disk.
"""

import torch

from linearkv.cache import Hit, PageStore, encode
from linearkv.errors import StoreMismatchError
from linearkv.identity import ModelIdentity, chunk_key
from linearkv.models import GDNModel

_TOKENS = 24
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


def check_canary(model: GDNModel, identity: ModelIdentity, pages: PageStore, secret: bytes) -> None:
    """Compares the canary's logits with those in the store, or keeps them where it has none yet.

    Raises:
        StoreMismatchError: they differ by more than rounding on another processor could explain.
    """
    ids = [token * 7 % model.vocab_size for token in range(_TOKENS)]
    key = chunk_key(secret, identity, prefix_token_ids=None, chunk_token_ids=ids, storage_policy="fp32", kind="canary")
    logits = model.logits(model.empty_context(), ids)[-1].cpu()
    found = pages.get([key])[key]
    if not isinstance(found, Hit):
        pages.put([encode(key, {"logits": logits}, secret=secret, kind="canary")])
        return
    kept = found.page.tensors["logits"]
    error = float((logits - kept).norm() / kept.norm())
    if not error <= _TOLERANCE.get(model.dtype, 5e-2):
        raise StoreMismatchError(
            f"the model answers differently from when this store was made, though its files, configuration and "
            f"versions are the same: the canary prompt's logits are off by {error:.2g}. States made then do not fit. "
            f"Check the machine and its libraries (linearkv doctor), or index into a new store"
        )
