"""How many warps of a kernel a multiprocessor can hold, from what the kernel uses: no GPU is asked."""

from __future__ import annotations

import msgspec

from ytk_core.cuda.cubin import KernelUse


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one multiprocessor has. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    shared_bytes_per_block: int


_KIB = 1024
LIMITS = {
    80: Limits(warps=64, blocks=32, registers=65536, shared_bytes=164 * _KIB, shared_bytes_per_block=163 * _KIB),
    86: Limits(warps=48, blocks=16, registers=65536, shared_bytes=100 * _KIB, shared_bytes_per_block=99 * _KIB),
    87: Limits(warps=48, blocks=16, registers=65536, shared_bytes=164 * _KIB, shared_bytes_per_block=163 * _KIB),
    89: Limits(warps=48, blocks=24, registers=65536, shared_bytes=100 * _KIB, shared_bytes_per_block=99 * _KIB),
    90: Limits(warps=64, blocks=32, registers=65536, shared_bytes=228 * _KIB, shared_bytes_per_block=227 * _KIB),
}
_WARP = 32
# Registers are handed out per warp in units of 256; CUDA takes 1 KiB of shared memory per block for itself.
_REGISTER_UNIT, _RESERVED_SHARED = 256, 1024


def occupancy(sm: int, use: KernelUse, threads: int) -> float | None:
    """Give the share of a multiprocessor's warps that blocks of ``threads`` can fill (0 to 1); None for an unknown GPU."""
    limits = LIMITS.get(sm)
    if limits is None:
        return None
    warps = -(-threads // _WARP)
    per_warp = -(-max(use.registers, 1) * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    blocks = min(
        limits.warps // warps,
        limits.blocks,
        limits.registers // per_warp // warps,
        limits.shared_bytes // (use.shared_bytes + _RESERVED_SHARED),
    )
    return blocks * warps / limits.warps
