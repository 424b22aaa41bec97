"""Model adapters: load a Gated DeltaNet hybrid, prefill prefixes and chunks, answer from a context."""

from linearkv.models.adapter import TransformersModel
from linearkv.models.base import GDNModel
from linearkv.models.capture import Capture
from linearkv.models.generation import Sampling
from linearkv.models.loading import REFERENCE, load_model
from linearkv.models.widening import widen_heads

__all__ = ["REFERENCE", "Capture", "GDNModel", "Sampling", "TransformersModel", "load_model", "widen_heads"]
