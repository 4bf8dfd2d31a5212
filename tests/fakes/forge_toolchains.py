"""Forge's GPU toolchains as tests use them: with TensorRT interfaces that are declared by hand, since no SDK is in a test."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ytk_forge.toolchain import SHIPPED_DIR, TensorRTAbi, Toolchain, load_toolchain

FAKES = Path(__file__).parent
SHIPPED = {path.stem: load_toolchain(path) for path in sorted(SHIPPED_DIR.glob("*-trt*.toml"))}


def with_trt(toolchain: Toolchain, **changes: object) -> Toolchain:
    """Give a toolchain with another [tensorrt] section."""
    return msgspec.structs.replace(toolchain, tensorrt=msgspec.structs.replace(toolchain.tensorrt, **changes))


# No package has headers of this version, so that what they give does not depend on what is installed.
TRT10 = with_trt(SHIPPED["amd64-sm90-linux-cu130-trt1014"], abi=TensorRTAbi.DECLARED, version="10.13")
THOR = with_trt(SHIPPED["arm64-sm110-linux-cu130-trt1014"], abi=TensorRTAbi.DECLARED, version="10.13")
ORIN = with_trt(SHIPPED["arm64-sm87-dos6010-cu114-trt86"], include_dir=str(FAKES / "trt86"))
# This machine with 8.6: no such board exists, but what is rendered is the same as for one.
TRT86 = with_trt(
    msgspec.structs.replace(TRT10, name="here-86", match=msgspec.structs.replace(TRT10.match, engine=["trt86"])),
    version="8.6",
    include_dir=str(FAKES / "trt86"),
)
