"""Errors a person can act on: each message says what was wrong, with the value, and what to do."""


class LinearKVError(Exception):
    """Base class of every error LinearKV raises on purpose."""


class UnsupportedModelError(LinearKVError):
    """The checkpoint is not a supported Gated DeltaNet hybrid, or this installation cannot run it correctly."""


class MissingExtraError(LinearKVError, ImportError):
    """An optional dependency is needed; the message names the extra that brings it."""


class StoreLockedError(LinearKVError):
    """Another process is writing this store; the message names it."""


class StoreMismatchError(LinearKVError):
    """The store was made with another embedding model, tenant, format or settings than it is opened with."""


class StoreDamagedError(LinearKVError):
    """The catalogue is damaged. `linearkv repair` (in Python: `Engine.open(..., repair=True).repair()`) rebuilds it."""


class StoreReadOnlyError(LinearKVError):
    """The operation has to write, and the store's folder is not writable."""


class StoreFullError(LinearKVError):
    """The disk is full. What was acknowledged before is kept."""
