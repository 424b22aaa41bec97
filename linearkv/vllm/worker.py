"""The plugin beside vLLM's model: writes contexts into vLLM's blocks, and keeps what chunk states are made of.

Where things lie in vLLM. A GDN layer's `kv_cache` is (convolution inputs, recurrent states), one row per block of the
layer's group: inputs `[blocks, TAIL, C]`, or `[blocks, C, TAIL]` where vLLM says so; states `[blocks, H, V, K]` on a
GPU, and the same bytes read as `[blocks, H, K, V]` by the CPU backend. Attention pages have a layout of their own per
backend, so they are written by the backend's own operation, `do_kv_cache_update`.

Which row is a request's: the metadata of a step names the row of every sequence in the batch, and the scheduler the
blocks of every request; the row that is in both is the one the layer will go on from. In some cache modes it is not the
block the state would be found in by its position.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from linearkv.errors import LinearKVError, UnsupportedModelError
from linearkv.kernels.chunk_delta import chunk_delta
from linearkv.models.capture import L2_NORM_EPS
from linearkv.states import Context, PrefixState
from linearkv.vllm.composed import Composed
from linearkv.vllm.jobs import Captured, Job, Wanted

_log = logging.getLogger(__name__)

Blocks = tuple[list[int], ...]
"""Block ids of one request, per cache group."""


class Load(NamedTuple):
    """A context to write before a step."""

    blocks: Blocks
    composed: Composed


class Step(NamedTuple):
    """Tokens of one request that a step computes and something is kept of."""

    job: Job
    blocks: Blocks
    start: int
    """Position of the first token that is computed."""
    tokens: int
    prompt: int
    """Tokens of the whole prompt."""


class StepTimer:
    """What the forward pass of a step takes, on the device that computes it.

    Attributes:
        tokens: that it computes.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.tokens = tokens
        self._on_gpu = device.type != "cpu"
        self._began = self._now()
        self._ended: Any = None

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def stop(self) -> None:
        self._ended = self._now()

    def seconds(self) -> float | None:
        """None as long as it is computed."""
        if self._ended is None:
            return None
        if not self._on_gpu:
            return float(self._ended - self._began)
        return float(self._began.elapsed_time(self._ended)) / 1e3 if self._ended.query() else None


class Layer(NamedTuple):
    """One token mixer."""

    name: str
    module: Any
    """Of a GDN layer, the layer; of an attention layer, the block with its projections."""
    cache: Any
    """What holds `kv_cache`."""
    group: int
    block_size: int


@dataclass
class _Kept:
    """What was kept of one request so far, layer by layer."""

    wanted: Wanted
    transitions: dict[str, torch.Tensor] = field(default_factory=dict)
    updates: dict[str, torch.Tensor] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    keys: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    values: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    hidden: list[torch.Tensor] = field(default_factory=list)
    next: int = -1
    """Position of the next token, if the prompt goes on where it was."""


class Worker:
    """Reads and writes the states of one loaded model.

    Args:
        model: vLLM's model.
        layers: vLLM's `static_forward_context`, the layers with a cache by name.
        kv_cache_config: of the engine.
        vocab_size: of the model; its head may be wider.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, Any], kv_cache_config: Any, vocab_size: int) -> None:
        self.model: Any = model
        self._vocab_size = vocab_size
        self._on_cpu = next(model.parameters()).device.type == "cpu"
        groups = {
            name: (number, group.kv_cache_spec.block_size)
            for number, group in enumerate(kv_cache_config.kv_cache_groups)
            for name in group.layer_names
        }
        found = [_layer(name, layers[name], model, *groups[name]) for name in groups]
        found.sort(key=lambda layer: _number(layer.name))
        self.gdn = [layer for layer in found if layer.module is layer.cache]
        self.attention = [layer for layer in found if layer.module is not layer.cache]
        self._conv_first = _conv_inputs_first()
        self._kept: dict[int, _Kept] = {}
        self._hooks: ExitStack | None = None
        self._steps: list[Step] = []
        self._rows: dict[int, tuple[int, int]] | None = None
        self._layer: Layer | None = None
        self._pending: dict[str, list[tuple[torch.cuda.Event, Callable[[], None]]]] = {}
        self._waiting: ExitStack | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.attention[0].cache.kv_cache.dtype

    @property
    def device(self) -> torch.device:
        return self.attention[0].cache.kv_cache.device

    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's own rotary embedding at `positions [T]`: cos and sin `[T, R]` in its dtype."""
        table = self.attention[0].module.rotary_emb.cos_sin_cache
        cos, sin = table[positions.to(table.device)].to(self.dtype).chunk(2, dim=-1)
        return torch.cat([cos, cos], dim=-1), torch.cat([sin, sin], dim=-1)

    def states(self, layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a GDN layer's cache: inputs `[blocks, C, TAIL]` and recurrent states `[blocks, H, K, V]`."""
        conv, recurrent = layer.cache.kv_cache
        blocks, heads, value_dim, key_dim = recurrent.shape
        if not self._conv_first:
            conv = conv.transpose(1, 2)
        if self._on_cpu:
            return conv, recurrent.view(blocks, heads, key_dim, value_dim)
        return conv, recurrent.transpose(2, 3)

    def empty_prefix(self) -> PrefixState:
        """The prefix of no tokens."""
        conv, recurrent = self.states(self.gdn[0])
        first = self.attention[0].module
        heads = first.kv_size // first.head_dim
        keys = torch.zeros(len(self.attention), 0, heads, first.head_dim, dtype=self.dtype, device=self.device)
        return PrefixState(
            recurrent=torch.zeros(len(self.gdn), *recurrent.shape[1:], device=self.device),
            conv_tail=torch.zeros(len(self.gdn), *conv.shape[1:], dtype=conv.dtype, device=self.device),
            key=keys,
            value=keys.clone(),
            token_ids=torch.zeros(0, dtype=torch.int64),
            rotary=self.rotary,
        )

    # Loading

    def load(self, loads: Sequence[Load], metadata: Mapping[str, Any]) -> None:
        """Writes contexts where the coming step will look for them; on a GPU each layer's when the step comes to it.

        Args:
            metadata: of the coming step, by layer.
        """
        # A step in which every request computes one token may be a CUDA graph, which does not come by here.
        by_layer = metadata[self.gdn[0].name].num_prefills > 0
        for load in loads:
            composed = load.composed
            slots: dict[int, torch.Tensor] = {}
            for part in composed.parts:
                for place, layer in enumerate(self.gdn[part.gdn]):
                    row = self._row(layer, load.blocks, metadata)
                    write = partial(self._write_state, layer, row, part.context, place)
                    self._write(layer.name, part.ready, write, by_layer)
                for place, layer in enumerate(self.attention[part.attention]):
                    if layer.group not in slots:
                        blocks = load.blocks[layer.group]
                        slots[layer.group] = _slots(blocks, layer.block_size, composed.length).to(self.device)
                    write = partial(self._write_keys, layer, slots[layer.group], part.context, place)
                    self._write(layer.name, part.ready, write, by_layer)
        if self._pending:
            self._waiting = ExitStack()
            for layer in self.gdn:
                if layer.name in self._pending:
                    self._waiting.enter_context(_wrapped_core(layer.module, self._arrive(layer.name)))

    def arrive(self, name: str) -> None:
        """Before a layer is computed: writes what is waited for of it."""
        for ready, write in self._pending.pop(name, ()):
            ready.wait()
            write()

    def _arrive(self, name: str) -> Callable[..., None]:
        return lambda *given: self.arrive(name)

    def _write(self, name: str, ready: "torch.cuda.Event | None", write: Callable[[], None], by_layer: bool) -> None:
        if ready is not None and by_layer:
            self._pending.setdefault(name, []).append((ready, write))
            return
        if ready is not None:
            ready.wait()
        write()

    def _write_state(self, layer: Layer, row: int, context: Context, place: int) -> None:
        conv, recurrent = self.states(layer)
        conv[row].copy_(context.conv_tail[place])
        recurrent[row].copy_(context.recurrent[place])

    def _write_keys(self, layer: Layer, slots: torch.Tensor, context: Context, place: int) -> None:
        layer.cache.impl.do_kv_cache_update(
            layer.cache, context.key[place], context.value[place], layer.cache.kv_cache, slots
        )

    def _row(self, layer: Layer, blocks: Blocks, metadata: Mapping[str, Any]) -> int:
        """The row of a GDN layer's cache that holds the running state of the request with these blocks."""
        own = [block for block in blocks[layer.group] if block]  # 0 is vLLM's block for nothing
        if len(own) == 1:
            return own[0]
        rows = set(metadata[layer.name].non_spec_state_indices_tensor.tolist())
        # The last: earlier ones may have been given away, and be another request's by now.
        running = [block for block in own if block in rows]
        if not running:
            raise LinearKVError(f"a step runs none of the blocks {own} in {layer.name}")
        return running[-1]

    # Keeping

    def begin(self, steps: Sequence[Step]) -> None:
        """Before the forward pass of a step: listen to what concerns these requests."""
        self._steps, self._rows = [], None
        for step in steps:
            kept = self._kept.get(id(step.job))
            if kept is None or kept.next != step.start:  # new, or begun again after a preemption
                wanted = step.job.wanted
                assert wanted is not None
                if step.start > wanted.start:
                    step.job.problem = f"the prompt was computed from token {step.start} on, wanted from {wanted.start}"
                    continue
                self._kept[id(step.job)] = kept = _Kept(wanted)
            kept.next = step.start + step.tokens
            self._steps.append(step)
        if self._steps:
            self._metadata: Mapping[str, Any] = {}
            self._hooks = ExitStack()
            self._listen(self._hooks)

    def end(self) -> None:
        """After the forward pass: finish what is complete, and stop listening."""
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None
            if missed := list(self._pending):
                self._pending.clear()
                raise LinearKVError(f"a step did not come to {missed[0]}, for which a context had arrived")
        if self._hooks is None:
            return
        self._hooks.close()
        self._hooks = None
        for step in self._steps:
            if step.start + step.tokens < step.prompt:
                continue
            kept = self._kept.pop(id(step.job), None)
            if kept is None or step.job.problem:
                continue
            try:
                step.job.captured = self._captured(kept, step)
            except Exception as error:  # whatever it is, a chunk is not kept, and the engine goes on
                _fail(step.job, error)
        self._steps = []

    def forget(self, job: Job) -> None:
        """Drops what was kept of a request that ended early."""
        self._kept.pop(id(job), None)

    def _captured(self, kept: _Kept, step: Step) -> Captured:
        expected = step.prompt - kept.wanted.start
        if kept.wanted.logits:
            hidden = torch.cat(kept.hidden)
            _require(len(hidden) == expected, f"logits of {len(hidden)} of {expected} tokens were seen")
            return Captured(logits=self.model.compute_logits(hidden)[:, : self._vocab_size].float())
        for layer in self.attention:
            tokens = sum(len(piece) for piece in kept.keys.get(layer.name, ()))
            _require(tokens == expected, f"keys of {tokens} of {expected} tokens were seen in {layer.name}")
        transition = update = None
        if kept.wanted.maps:
            for layer in self.gdn:
                tokens = kept.seen.get(layer.name, 0)
                _require(tokens == expected, f"gates of {tokens} of {expected} tokens were seen in {layer.name}")
            transition = torch.stack([kept.transitions[layer.name] for layer in self.gdn])
            update = torch.stack([kept.updates[layer.name] for layer in self.gdn])
        tails, states = [], []
        for layer in self.gdn:
            conv, recurrent = self.states(layer)
            row = self._row(layer, step.blocks, self._metadata)
            tails.append(conv[row].clone())
            states.append(recurrent[row].float().clone())
        after = torch.stack(states)
        if transition is not None:
            # vLLM's kernels round more than ours. Taken from where they end, the map leads from the state they began
            # with to the very state they came to.
            composed = step.job.composed
            before = composed.recurrent if composed is not None else torch.zeros_like(after)
            update = after - transition @ before
        return Captured(
            transition=transition,
            update=update,
            recurrent=after,
            conv_tail=torch.stack(tails),
            key=torch.stack([torch.cat(kept.keys[layer.name]) for layer in self.attention]),
            value=torch.stack([torch.cat(kept.values[layer.name]) for layer in self.attention]),
        )

    def _guarded(self, keep: Callable[..., None]) -> Callable[..., None]:
        """A hook that fails keeps nothing, and lets the model go on."""

        def hook(*given: Any, **named: Any) -> None:
            try:
                keep(*given, **named)
            except Exception as error:
                for step in self._steps:
                    _fail(step.job, error)

        return hook

    def _listen(self, hooks: ExitStack) -> None:
        if any(step.job.wanted and step.job.wanted.logits for step in self._steps):
            hooks.callback(self.model.register_forward_hook(self._guarded(self._keep_hidden)).remove)
        if all(step.job.wanted and step.job.wanted.logits for step in self._steps):
            return
        for layer in self.attention:
            hooks.callback(layer.module.qkv_proj.register_forward_hook(self._guarded(self._keep_keys(layer))).remove)
        if not any(step.job.wanted and step.job.wanted.maps for step in self._steps):
            return
        if self._on_cpu:
            for layer in self.gdn:
                hooks.callback(layer.module.register_forward_pre_hook(self._enter(layer)).remove)
            hooks.enter_context(_wrapped_cpu_operations(self._guarded(self._keep_rows)))
        else:
            for layer in self.gdn:
                rule = layer.module.chunk_gated_delta_rule
                hook = rule.register_forward_pre_hook(self._guarded(self._keep_prefilled(layer)), with_kwargs=True)
                hooks.callback(hook.remove)
                hooks.enter_context(_wrapped_core(layer.module, self._guarded(self._keep_single(layer))))

    def _enter(self, layer: Layer) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self._layer = layer

        return hook

    def _tokens_of(self) -> Iterator[tuple[Step, slice]]:
        """Which tokens of the batch are to be kept, by request."""
        if self._rows is None:
            layer = self.gdn[0]
            metadata = self._metadata = _metadata()
            rows = metadata[layer.name].non_spec_state_indices_tensor.tolist()
            starts = metadata[layer.name].non_spec_query_start_loc.tolist()
            self._rows = {}
            for step in self._steps:
                place = rows.index(self._row(layer, step.blocks, metadata))
                self._rows[id(step.job)] = (starts[place], starts[place + 1])
        for step in self._steps:
            begin, end = self._rows[id(step.job)]
            yield step, slice(min(begin + _skipped(step), end), end)

    def _keep_hidden(self, module: nn.Module, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        for step, tokens in self._tokens_of():
            if step.job.wanted is not None and step.job.wanted.logits:
                self._kept[id(step.job)].hidden.append(hidden[tokens].clone())

    def _keep_keys(self, layer: Layer) -> Callable[..., None]:
        module = layer.module

        def hook(projection: nn.Module, args: Any, output: Any) -> None:
            key, value = output[0][..., -2 * module.kv_size :].split(module.kv_size, dim=-1)
            for step, tokens in self._tokens_of():
                if step.job.wanted is None or step.job.wanted.logits:
                    continue
                kept = self._kept[id(step.job)]
                heads = key[tokens].unflatten(-1, (-1, module.head_dim))
                kept.keys.setdefault(layer.name, []).append(module.k_norm(heads))
                kept.values.setdefault(layer.name, []).append(
                    value[tokens].unflatten(-1, (-1, module.head_dim)).clone()
                )

        return hook

    def _keep_prefilled(self, layer: Layer) -> Callable[..., None]:
        def hook(rule: nn.Module, args: Any, given: dict[str, Any]) -> None:
            metadata = _metadata()[layer.name]
            rows, starts = metadata.prefill_state_indices.tolist(), metadata.prefill_query_start_loc.tolist()
            k, v, g, beta = (given[name][0] for name in ("k", "v", "g", "beta"))
            self._keep_rule(layer, rows, starts, k, v, g, beta)

        return hook

    def _keep_single(self, layer: Layer) -> Callable[..., None]:
        """Of requests of which a step computes one token, which vLLM takes another way."""

        def before(mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor) -> None:
            metadata = _metadata()[layer.name]
            decodes = metadata.num_decodes
            if not decodes:
                return
            rows = metadata.non_spec_state_indices_tensor[:decodes]
            conv, _ = self.states(layer)
            module = layer.module
            inputs = torch.cat([conv[rows], mixed_qkv[:decodes, :, None]], dim=-1).float()
            weight = module.conv1d.weight.view(module.conv1d.weight.shape[0], -1).float()
            bias = 0.0 if module.conv1d.bias is None else module.conv1d.bias.float()
            mixed = functional.silu((inputs * weight).sum(-1) + bias).to(mixed_qkv.dtype)
            _, k, v = module.rearrange_mixed_qkv(mixed)
            g, beta = _gates(module.A_log, module.dt_bias, a[:decodes], b[:decodes])
            self._keep_rule(layer, rows.tolist(), list(range(decodes + 1)), _normalised(k[0]), v[0], g, beta)

        return before

    def _keep_rows(self, rows: list[int], starts: list[int], k: Any, v: Any, g: Any, beta: Any) -> None:
        assert self._layer is not None
        self._keep_rule(self._layer, rows, starts, k, v, g, beta)

    def _keep_rule(
        self,
        layer: Layer,
        rows: list[int],
        starts: list[int],
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
    ) -> None:
        """Takes what a layer's rule is about to read: k `[T, Hk, K]`, v `[T, Hv, V]`, g and beta `[T, Hv]`, in which
        the request of row `rows[i]` has the tokens from `starts[i]` on."""
        metadata = _metadata()
        for step in self._steps:
            wanted = step.job.wanted
            row = self._row(layer, step.blocks, metadata)
            if wanted is None or not wanted.maps or wanted.logits or row not in rows:
                continue
            place = rows.index(row)
            tokens = slice(starts[place] + _skipped(step), starts[place + 1])
            if tokens.start >= tokens.stop:
                continue
            part = [x[None, tokens] for x in (k, v, g, beta)]
            transition, update = (x[0] for x in chunk_delta(*part))
            kept = self._kept[id(step.job)]
            if layer.name in kept.transitions:
                transition, update = (
                    transition @ kept.transitions[layer.name],
                    transition @ kept.updates[layer.name] + update,
                )
            kept.transitions[layer.name], kept.updates[layer.name] = transition, update
            kept.seen[layer.name] = kept.seen.get(layer.name, 0) + tokens.stop - tokens.start


def _fail(job: Job, error: Exception) -> None:
    """Notes why nothing is kept of a request."""
    if not isinstance(error, LinearKVError):
        _log.exception("A chunk is not kept", exc_info=error)
    job.problem = job.problem or (
        str(error) if isinstance(error, LinearKVError) else f"{type(error).__name__}: {error}"
    )


def _skipped(step: Step) -> int:
    """How many of a step's tokens come before the first that is kept."""
    wanted = step.job.wanted
    return 0 if wanted is None else max(0, wanted.start - step.start)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise LinearKVError(
            f"{otherwise}: indexing needs an engine without compilation and CUDA graphs (enforce_eager=True)"
        )


def _layer(name: str, cache: Any, model: nn.Module, group: int, block_size: int) -> Layer:
    if type(cache).__name__ == "QwenGatedDeltaNetAttention":
        return Layer(name, cache, cache, group, block_size)
    for module in model.modules():
        if getattr(module, "attn", None) is cache and hasattr(module, "qkv_proj") and hasattr(module, "k_norm"):
            return Layer(name, module, cache, group, block_size)
    raise UnsupportedModelError(
        f"layer {name} of {type(model).__name__} is a {type(cache).__name__}; LinearKV serves Qwen3-Next and Qwen3.5, "
        f"whose layers are Gated DeltaNet and attention"
    )


def _number(name: str) -> int:
    """Of a layer, by its name."""
    return next(int(part) for part in name.split(".") if part.isdigit())


def _slots(blocks: list[int], block_size: int, tokens: int) -> torch.Tensor:
    """The places of a request's first `tokens` tokens in attention pages, `[tokens]` int64."""
    needed = -(-tokens // block_size)
    places = torch.tensor(blocks[:needed])[:, None] * block_size + torch.arange(block_size)
    return places.flatten()[:tokens]


def _metadata() -> Mapping[str, Any]:
    """Attention metadata of the step that runs, by layer."""
    from vllm.forward_context import get_forward_context

    return get_forward_context().attn_metadata


def _conv_inputs_first() -> bool:
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    return bool(is_conv_state_dim_first())


def _normalised(k: torch.Tensor) -> torch.Tensor:
    k = k.float()
    return k * torch.rsqrt((k * k).sum(-1, keepdim=True) + L2_NORM_EPS)


def _gates(
    A_log: torch.Tensor, dt_bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay and write strength `[T, H]` of a and b, as the model's fused kernels compute them."""
    return -A_log.float().exp() * functional.softplus(a.float() + dt_bias.float()), b.float().sigmoid()


@contextmanager
def _wrapped_cpu_operations(keep: Callable[..., None]) -> Iterator[None]:
    """Shows `keep` what the CPU backend's two operations of the rule are given, before they run."""
    from vllm import _custom_ops as operations

    many, single = operations.chunk_gated_delta_rule_cpu, operations.fused_sigmoid_gating_delta_rule_update_cpu

    def of_many(**given: Any) -> Any:
        k, v, g, beta = (given[name][0] for name in ("key", "value", "g", "beta"))
        rows, starts = given["initial_state_indices"].tolist(), given["cu_seqlens"].tolist()
        keep(rows, starts, _normalised(k), v, g, beta)
        return many(**given)

    def of_single(**given: Any) -> Any:
        g, beta = _gates(given["A_log"], given["dt_bias"], given["a"], given["b"])
        rows, starts = given["initial_state_indices"].tolist(), given["cu_seqlens"].tolist()
        k, v = given["k"], given["v"]
        keep(rows, starts, _normalised(k[0]), v[0], g, beta)
        return single(**given)

    operations.chunk_gated_delta_rule_cpu = of_many
    operations.fused_sigmoid_gating_delta_rule_update_cpu = of_single
    try:
        yield
    finally:
        operations.chunk_gated_delta_rule_cpu = many
        operations.fused_sigmoid_gating_delta_rule_update_cpu = single


@contextmanager
def _wrapped_core(module: Any, before: Callable[..., None]) -> Iterator[None]:
    """Shows `before` what a GDN layer's core is given, before it runs."""
    core = module._forward_core

    def wrapped(mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, *rest: Any, **named: Any) -> Any:
        before(mixed_qkv, b, a)
        return core(mixed_qkv, b, a, *rest, **named)

    before_this = vars(module).get("_forward_core")
    module._forward_core = wrapped
    try:
        yield
    finally:
        if before_this is None:
            del module._forward_core
        else:
            module._forward_core = before_this
