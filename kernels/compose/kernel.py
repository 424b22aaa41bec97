"""Composition in Triton: every layer, head and request in one launch, the maps read where they lie, once a chain.

A program keeps one head's state in registers, transposed (`[V, K]`), and walks along its request's maps:

    S <- T S + U        as        S^T <- S^T T^T + U^T

so that the state is the operand that a tensor core takes from registers, and the transition goes to it from memory
through shared memory without a change of layout. The next maps are on their way while one is multiplied.

Precision. A float16 transition is multiplied exactly: the state is split into two float16 parts (22 bits), scaled by a
power of two for each of its columns so that nothing overflows, and products are summed in float32. Float32 and bfloat16
transitions are multiplied as three tf32 products.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from linearkv.kernels.halves import distances, halves, on, on_device, padded, readable


@triton.jit
def _times(x, y):
    """x [M, K] fp32 times y [K, N] -> [M, N] fp32, as precise as the module says."""
    if y.dtype == tl.float16:
        high, low, scale = halves(x)
        product = tl.dot(high, y, tl.dot(low, y))
        product = product * scale[:, None]
    else:
        product = tl.dot(x, y.to(tl.float32), input_precision="tf32x3")
    return product


@triton.jit
def _parts(x):
    """1024 x as two float16 parts, for a product x of transitions: contractions, so that no element is beyond 1.

    Scaled alike, and not row by row, since the rows are the inner dimension of one of the products they go into.
    """
    x = 1024.0 * x
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def _times_parts(x, high, low):
    """x y for y in parts and x as it is stored, as precise as the module says."""
    if x.dtype == tl.float16:
        product = tl.dot(x, high, tl.dot(x, low))
    else:
        product = tl.dot(x.to(tl.float32), high.to(tl.float32) + low.to(tl.float32), input_precision="tf32x3")
    return product * (1 / 1024)


@triton.jit
def _parts_times(high, low, y):
    """x y for x in parts and y as it is stored, as precise as the module says."""
    if y.dtype == tl.float16:
        product = tl.dot(high, y, tl.dot(low, y))
    else:
        product = tl.dot(high.to(tl.float32) + low.to(tl.float32), y.to(tl.float32), input_precision="tf32x3")
    return product * (1 / 1024)


@triton.jit
def _moved(state_high, state_low, scale, high, low):
    """A transposed state in `halves` times a transposed product of transitions in `_parts`."""
    product = tl.dot(state_high, high, tl.dot(state_low, high, tl.dot(state_high, low)))
    return product * (scale / 1024)[:, None]


@triton.jit
def _flat(x, BV: tl.constexpr, BK: tl.constexpr):
    """x [BV, BK] in the order in which a tensor core's result lies in threads, 16 bytes of each after another."""
    x = tl.reshape(x, (BV // 16, 2, 8, BK // 8, 4, 2))
    return tl.reshape(tl.permute(x, (3, 0, 2, 4, 1, 5)), (BV * BK,))


@triton.jit
def _unflat(x, BV: tl.constexpr, BK: tl.constexpr):
    """What `_flat` made flat."""
    x = tl.reshape(x, (BK // 8, BV // 16, 8, 4, 2, 2))
    return tl.reshape(tl.permute(x, (1, 4, 2, 0, 3, 5)), (BV, BK))


@triton.jit
def _place(base, distances, at):
    """Where the tensor is that lies distances[at] elements from `base`.

    Distances, since an address made a pointer loses what is known of its alignment, and is read element by element.
    """
    aligned: tl.constexpr = 128 // base.dtype.element_ty.primitive_bitwidth  # elements of 16 bytes
    return base + tl.multiple_of(tl.load(distances + at), aligned)


@triton.jit
def _visited(first, count, step, reverse: tl.constexpr):
    """The map of a step; beyond the last step, the last step's. Where there are no maps, a place in the table still."""
    step = tl.minimum(step, count - 1)
    return first + tl.maximum(count - 1 - step if reverse else step, 0)


@triton.jit
def _tile(base, distances, at, offsets, mask, WHOLE: tl.constexpr):
    """Elements `offsets` of the tensor that lies distances[at] elements from `base`. `WHOLE`: nothing is masked."""
    tensor = _place(base, distances, at)
    return tl.load(tensor + offsets) if WHOLE else tl.load(tensor + offsets, mask=mask, other=0.0)


@triton.jit
def _transition(base, distances, rows, at, head, k, k_in, K: tl.constexpr, BK: tl.constexpr, PACKED: tl.constexpr):
    """The transition [BK, BK] of `head` in map `at`; zeros, without a read, where a packed one does not hold it."""
    if PACKED:
        address = tl.load(rows + at)
        row = tl.load(address.to(tl.pointer_type(tl.int32)) + head, mask=address != 0, other=head)
        within = (k < tl.where(row >= 0, K, 0))[:, None] & (k_in < K)[None, :]
        offsets = tl.maximum(row, 0).to(tl.int64) * K * K + k[:, None] * K + k_in[None, :]
        tile = _tile(base, distances, at, offsets, within, False)
    else:
        within = (k < K)[:, None] & (k_in < K)[None, :]
        tile = _tile(base, distances, at, head * K * K + k[:, None] * K + k_in[None, :], within, BK == K)
    return tile


@triton.jit
def _chains(
    t_base, u_base, transitions, updates, rows, bounds, initial, out, entries,
    initial_r, initial_n, initial_k, initial_v,
    out_r, out_n, out_k, out_v,
    heads,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    PACKED: tl.constexpr,
    CHAINS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """One or both chains of a head and tile of values of a request.

    Of every request's maps, one request after another, [m] int64: transitions and updates, where the tensors [N, K, K]
    and [N, K, V] lie, in elements from the bases; rows, the address of [N] int32, which of a packed transition's rows
    is a head's and -1 if none is, or 0 where the transition is not packed. bounds: [R + 1] int64, where each request's
    maps begin. initial and out: [R, N, K, V] of the strides given. entries: [m, N, K, V] fp32, the state before each.
    """
    tiles: tl.constexpr = (V + BV - 1) // BV
    head = (tl.program_id(0) // tiles).to(tl.int64)
    request = tl.program_id(1).to(tl.int64)
    first = tl.load(bounds + request)
    count = (tl.load(bounds + request + 1) - first).to(tl.int32)

    k, k_in = tl.arange(0, BK), tl.arange(0, BK)
    v = (tl.program_id(0) % tiles) * BV + tl.arange(0, BV)
    in_state = (v < V)[:, None] & (k < K)[None, :]
    in_update = (k < K)[:, None] & (v < V)[None, :]
    in_first = (k < tl.where(count > 0, K, 0))[:, None] & (v < V)[None, :]
    whole_u: tl.constexpr = BK == K and BV * tiles == V
    of_update = head * K * V + k[:, None] * V + v[None, :]
    initial += request * initial_r + head * initial_n + v[:, None] * initial_v + k[None, :] * initial_k
    out += request * out_r + head * out_n + v[:, None] * out_v + k[None, :] * out_k

    for reverse in tl.static_range(CHAINS):
        state = tl.load(initial, mask=in_state, other=0.0).to(tl.float32)
        # Updates come through registers, since they are read transposed: the next one, and where the one after it lies.
        place = _place(u_base, updates, _visited(first, count, 0, reverse))
        next_u = tl.load(place + of_update, mask=in_first, other=0.0)
        place = _place(u_base, updates, _visited(first, count, 1, reverse))
        for step in range(count):
            at = _visited(first, count, step, reverse)
            if ENTRIES:
                tl.store(entries + at * heads * K * V + of_update, tl.trans(state), mask=in_update)
            t = _transition(t_base, transitions, rows, at, head, k, k_in, K, BK, PACKED)
            u = next_u
            next_u = tl.load(place + of_update) if whole_u else tl.load(place + of_update, mask=in_update, other=0.0)
            place = _place(u_base, updates, _visited(first, count, step + 2, reverse))
            state = _times(state, tl.trans(t)) + tl.trans(u).to(tl.float32)
        if CHAINS == 2:
            state *= 0.5
        if reverse:
            # Half of the first chain waits in the output and not in registers.
            tl.debug_barrier()
            state += tl.load(out, mask=in_state, other=0.0)
        tl.store(out, state, mask=in_state)


@triton.jit(do_not_specialize=["items", "most"])
def _rotations(
    t_base, u_base, transitions, updates, rows, bounds, initial, out, scratch,
    initial_r, initial_n, initial_k, initial_v,
    out_r, out_n, out_k, out_v,
    heads, items, most,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """The mean over all rotations, for every (request, head) that this program comes to.

    Rotation r runs the maps r .. n-1 and then 0 .. r-1. A walk from the back keeps the product of the maps so far and
    leaves in `scratch` ([programs, most, BV * BK] fp32) the state that each suffix leads to; a walk from the front
    keeps the product of the maps before r and applies it to that state. The other arguments as for `_chains`.

    All is transposed, so that a product of maps is an operand that lies in shared memory, and a step begins with what
    the product is for: it is put there once, and registers hold a sum and one result.
    """
    k, k_in, v = tl.arange(0, BK), tl.arange(0, BK), tl.arange(0, BV)
    in_state = (v < V)[:, None] & (k < K)[None, :]
    in_update = (k < K)[:, None] & (v < V)[None, :]
    whole_u: tl.constexpr = BK == K and BV == V
    identity = tl.where(k[:, None] == k_in[None, :], 1.0, 0.0)
    held = tl.arange(0, BV * BK)
    scratch += tl.program_id(0).to(tl.int64) * most * BV * BK
    of_update = k[:, None] * V + v[None, :]

    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        head, request = (item % heads).to(tl.int64), (item // heads).to(tl.int64)
        first = tl.load(bounds + request)
        count = (tl.load(bounds + request + 1) - first).to(tl.int32)
        start_at = initial + request * initial_r + head * initial_n
        start_at += k[None, :] * initial_k + v[:, None] * initial_v
        in_alone = (v < V)[:, None] & (k < tl.where(count == 0, K, 0))[None, :]
        start_high, start_low, start_scale = halves(tl.load(start_at, mask=in_state, other=0.0).to(tl.float32))

        # From the back: what the maps r .. n-1 make of the initial state.
        high, low = _parts(identity)
        update = tl.zeros((BV, BK), tl.float32)
        for step in range(count):
            reached = _moved(start_high, start_low, start_scale, high, low) + update
            tl.store(scratch + (count - step) % count * BV * BK + held, _flat(reached, BV, BK))
            at = first + count - 1 - step
            t = _transition(t_base, transitions, rows, at, head, k, k_in, K, BK, PACKED)
            u = _tile(u_base, updates, at, head * K * V + of_update, in_update, whole_u)
            update += _times_parts(tl.trans(u), high, low)
            high, low = _parts(_times_parts(tl.trans(t), high, low))
        reached = _moved(start_high, start_low, start_scale, high, low) + update
        tl.store(scratch + held, _flat(reached, BV, BK))
        tl.debug_barrier()

        # From the front: the sum of what the maps 0 .. r-1 make of zero, and then of each suffix's state.
        total = tl.load(start_at, mask=in_alone, other=0.0).to(tl.float32)
        state = tl.zeros((BV, BK), tl.float32)
        for step in range(count - 1):
            at = first + step
            t = _transition(t_base, transitions, rows, at, head, k, k_in, K, BK, PACKED)
            u = _tile(u_base, updates, at, head * K * V + of_update, in_update, whole_u)
            state = _times(state, tl.trans(t)) + tl.trans(u).to(tl.float32)
            total += state
        high, low = _parts(identity)
        next_reached = tl.load(scratch + held)
        for step in range(count):
            reached_high, reached_low, scale = halves(_unflat(next_reached, BV, BK))
            next_reached = tl.load(scratch + tl.minimum(step + 1, count - 1) * BV * BK + held)
            total += _moved(reached_high, reached_low, scale, high, low)
            t = _transition(t_base, transitions, rows, first + step, head, k, k_in, K, BK, PACKED)
            high, low = _parts(_parts_times(high, low, tl.trans(t)))
        total = total / tl.maximum(count, 1)
        out_at = out + request * out_r + head * out_n + v[:, None] * out_v + k[None, :] * out_k
        tl.store(out_at, total, mask=in_state)
        tl.debug_barrier()  # the next item writes the scratch that other threads may still be reading


class ChainConfig(NamedTuple):
    """How the chains are cut: values a program, its warps, and the maps that are on their way while one is applied."""

    values: int
    warps: int
    ahead: int


def chain_config(key_dim: int, value_dim: int, itemsize: int) -> ChainConfig:
    """For heads of `[key_dim, value_dim]`, powers of two, with elements of `itemsize` bytes in storage.

    Half of a head's values, so that two programs share a Hopper processor and one multiplies while the other rounds; as
    many transitions ahead as leave room for both, or for one where they are of float32.
    """
    values = min(64, value_dim)
    room = (113_000 if itemsize == 2 else 200_000) - key_dim * key_dim * (itemsize if itemsize == 4 else 0)
    ahead = next((n for n in (2, 1) if (n + 1) * key_dim * key_dim * itemsize <= room), 0)
    return ChainConfig(values, 4, ahead)


def rotation_warps(key_dim: int, value_dim: int) -> int:
    """Of a program for heads of `[key_dim, value_dim]`, powers of two: as many as have a part of a result of their own.

    A result is made in parts of 16 by 8. Where warps had to share one, Triton 3.6's compiled kernel gave NaN on an H200
    (16 by 16 with 4 warps, 32 by 16 with 8, in every storage type), and was right with fewer.
    """
    return min(8, key_dim * value_dim // 128)


def compose_states(
    transitions: Sequence[torch.Tensor],
    updates: Sequence[torch.Tensor],
    initial: torch.Tensor,
    order: str,
    requests: Sequence[Sequence[int]],
    rows: Sequence[torch.Tensor | None],
    out: torch.Tensor,
) -> None:
    """See `linearkv.kernels.compose.compose_states`; `initial` and `out` are `[R, ..., K, V]`, `out` float32."""
    if not out.numel():
        return
    table = _table(transitions, updates, rows, requests, initial.device)
    start, result = _by_head(initial), _by_head(out)
    if start.untyped_storage().data_ptr() == result.untyped_storage().data_ptr():
        start = start.clone()  # the second chain begins from it when the first has been written
    _launch(table, start, result, order)
    if result.data_ptr() != out.data_ptr():
        out.copy_(result.view(out.shape))


def compose_at(
    transitions: torch.Tensor,
    updates: torch.Tensor,
    dtypes: tuple[torch.dtype, torch.dtype],
    initial: torch.Tensor,
    order: str,
) -> torch.Tensor:
    """See `linearkv.kernels.compose.compose_at`."""
    count = transitions.shape[1]
    bases = [torch.empty(1, dtype=dtype, device=initial.device) for dtype in dtypes]
    to_t, to_u = (
        (addresses.flatten() - base.data_ptr()) // base.itemsize
        for addresses, base in zip((transitions, updates), bases, strict=True)
    )
    table = _Table(bases, to_t, to_u, torch.zeros_like(to_t), [count] * len(initial))
    out = torch.empty_like(initial, dtype=torch.float32)
    _launch(table, initial, out, order)
    return out


def entry_states(
    transitions: Sequence[torch.Tensor], updates: Sequence[torch.Tensor], initial: torch.Tensor
) -> torch.Tensor:
    """See `linearkv.kernels.compose.entry_states`."""
    count = len(transitions)
    entries = initial.new_empty(count, *initial.shape, dtype=torch.float32)
    if entries.numel():
        table = _table(transitions, updates, [None] * count, [range(count)], initial.device)
        start = _by_head(initial[None])
        with on(entries):
            _launch_chains(table, start, torch.empty_like(start, dtype=torch.float32), entries=entries)
    return entries


class _Table:
    """Where a launch finds the maps it reads, on the device in one copy, and what all maps have in common.

    Args:
        bases: a transition and an update, or anything of their types on the device.
        transitions, updates: int64 `[total]`, of every request's maps, one request after another: elements from the
            bases.
        rows: int64 `[total]`, the address of each map's rows, or 0.
        lengths: of each request.
        alive: what the numbers point to.
    """

    def __init__(
        self,
        bases: list[torch.Tensor],
        transitions: torch.Tensor,
        updates: torch.Tensor,
        rows: torch.Tensor,
        lengths: Sequence[int],
        alive: object = None,
    ) -> None:
        self.bases = bases
        self.itemsize = max(base.itemsize for base in bases)
        self.most = max(lengths, default=0)
        self.packed = bool(rows.any())
        self._alive = alive  # until the launch
        # Keeps the parts of the table on 16 bytes: one compiled kernel for any length. None is empty: each can be read.
        padding = torch.zeros(len(rows) % 2 if len(rows) else 2, dtype=torch.int64)
        bounds = torch.tensor([0, *itertools.accumulate(lengths)])
        table = on_device(torch.cat([transitions, padding, updates, padding, rows, padding, bounds]), bases[0].device)
        self.tensors = (*bases, *table.split([len(rows) + len(padding)] * 3 + [len(bounds)]))


def _table(
    transitions: Sequence[torch.Tensor],
    updates: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor | None],
    requests: Sequence[Sequence[int]],
    device: torch.device,
) -> _Table:
    """The table of maps that are tensors."""
    transitions, updates = _alike(transitions), _alike(updates)
    rows = [None if row is None else row.contiguous() for row in rows]
    order = torch.tensor([index for request in requests for index in request], dtype=torch.int64)
    bases = [(tensors or [torch.empty(1, device=device)])[0] for tensors in (transitions, updates)]
    to_t, to_u, to_rows = (
        torch.tensor(some, dtype=torch.int64)[order]
        for some in (
            distances(transitions),
            distances(updates),
            [0 if row is None else row.data_ptr() for row in rows],
        )
    )
    return _Table(bases, to_t, to_u, to_rows, [len(request) for request in requests], (transitions, updates, rows))


def _alike(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors readable and of one type: float32 where they differ (a layer that overflows float16 is rare)."""
    types = {tensor.dtype for tensor in tensors}
    common = types.pop() if len(types) == 1 else torch.float32
    return [readable(tensor.to(common)) for tensor in tensors]


def _by_head(states: torch.Tensor) -> torch.Tensor:
    """`[R, ..., K, V]` as `[R, N, K, V]`: the same memory, or a copy where it has no one stride by head."""
    return states.reshape(len(states), math.prod(states.shape[1:-2]), *states.shape[-2:])


def _launch(table: _Table, initial: torch.Tensor, out: torch.Tensor, order: str) -> None:
    with on(out):
        if order == "cyclic" and table.most > 1:
            _launch_rotations(table, initial, out)
        else:
            _launch_chains(table, initial, out, both=order == "bidirectional" and table.most > 1)


def _launch_chains(
    table: _Table, initial: torch.Tensor, out: torch.Tensor, both: bool = False, entries: torch.Tensor | None = None
) -> None:
    requests, heads, key_dim, value_dim = initial.shape
    wide_k, wide_v = padded(key_dim), padded(value_dim)
    config = chain_config(wide_k, wide_v, table.itemsize)
    _chains[triton.cdiv(value_dim, config.values) * heads, requests](
        *table.tensors,
        initial,
        out,
        out if entries is None else entries,
        *initial.stride(),
        *out.stride(),
        heads,
        K=key_dim,
        V=value_dim,
        BK=wide_k,
        BV=config.values,
        PACKED=table.packed,
        CHAINS=2 if both else 1,
        ENTRIES=entries is not None,
        num_stages=2 * config.ahead + 1,  # one more for each of two loads in a row: where a map is, then the map
        num_warps=config.warps,
    )


def _launch_rotations(table: _Table, initial: torch.Tensor, out: torch.Tensor) -> None:
    requests, heads, key_dim, value_dim = initial.shape
    wide_k, wide_v = padded(key_dim), padded(value_dim)
    half = all(base.dtype == torch.float16 for base in table.bases)
    items = requests * heads
    programs = min(items, _processors(initial.device))
    scratch = torch.empty(programs, table.most, wide_v * wide_k, dtype=torch.float32, device=initial.device)
    _rotations[programs,](
        *table.tensors,
        initial,
        out,
        scratch,
        *initial.stride(),
        *out.stride(),
        heads,
        items,
        table.most,
        K=key_dim,
        V=value_dim,
        BK=wide_k,
        BV=wide_v,
        PACKED=table.packed,
        num_stages=2 if half else 1,  # the next map is on its way, where two fit into shared memory
        num_warps=rotation_warps(wide_k, wide_v),
    )


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
