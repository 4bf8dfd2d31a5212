"""Which workers would load a build's plugins, from what they advertise."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec
import pytest

from ytk_client.plugins import CustomPlugin
from ytk_client.signers import signer_requirements
from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError
from ytk_core.formats.plugin_manifest import SUFFIX, ManifestSignature, read_plugin_manifest
from ytk_core.workers import WorkerDescription, WorkerState, WorkerView

from fakes import client_files as files

ARCH = ArchSpec.parse(files.ARCH)
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OURS, THEIRS = "0011223344556677", "8899aabbccddeeff"


def worker(*capabilities: str, arch: str = files.ARCH, state: WorkerState = WorkerState.IDLE) -> WorkerView:
    about = WorkerDescription(worker_id="w", role="kronos", arch_specs=(arch,), capabilities=capabilities)
    return WorkerView(description=about, state=state, last_seen_at=NOW)


TRUSTS_OURS = worker("plugins==signed", f"trusted_key=={OURS}")
TRUSTS_BOTH = worker("plugins==signed", f"trusted_key=={OURS}", f"trusted_key=={THEIRS}")
TRUSTS_NOBODY = worker("plugins==signed")
LOADS_ANY = worker("plugins==any", f"trusted_key=={OURS}")
OLD = worker("engine==openvino")


@pytest.fixture
def plugin(tmp_path: Path):
    path = files.plugin(tmp_path)
    bare = read_plugin_manifest(path.with_name(path.name + SUFFIX))

    def make(key_id: str | None) -> CustomPlugin:
        signature = ManifestSignature(algorithm="ed25519", key_id=key_id, value="x") if key_id else msgspec.UNSET
        return CustomPlugin(path=path, manifest=msgspec.structs.replace(bare, signature=signature))

    return make


@pytest.mark.parametrize(
    ("key_id", "workers", "wanted"),
    [
        (OURS, [TRUSTS_OURS, TRUSTS_BOTH, LOADS_ANY, OLD], ()),
        (THEIRS, [TRUSTS_OURS, TRUSTS_BOTH], (f"trusted_key=={THEIRS}",)),
        (THEIRS, [TRUSTS_OURS, LOADS_ANY], ("plugins==any",)),
        (None, [TRUSTS_OURS, LOADS_ANY], ("plugins==any",)),
        (None, [LOADS_ANY, OLD], ()),
        (None, [], ()),
        # Others do not count: another arch spec, and a worker that is gone.
        (None, [worker("plugins==signed", arch="amd64-cpuv2-linux-glibc236-ov20264")], ()),
        (None, [worker("plugins==signed", state=WorkerState.LOST)], ()),
    ],
)
def test_what_a_worker_has_to_advertise(plugin, key_id, workers, wanted):
    assert signer_requirements([plugin(key_id)], workers, ARCH) == wanted


@pytest.mark.parametrize(
    ("key_id", "workers", "says"),
    [
        (
            None,
            [TRUSTS_OURS],
            f"is not signed, and no connected worker of {files.ARCH} loads it; keys that they trust: {OURS}",
        ),
        (THEIRS, [TRUSTS_OURS, TRUSTS_NOBODY], f"is signed with key {THEIRS}, and no connected worker"),
        (OURS, [TRUSTS_NOBODY], "keys that they trust: none"),
    ],
)
def test_refused_where_nobody_would_load_it(plugin, key_id, workers, says):
    with pytest.raises(UserError, match=says) as caught:
        signer_requirements([plugin(key_id)], workers, ARCH)
    assert caught.value.code == "untrusted_plugin"
    assert "ytk-forge sign" in caught.value.hint


def test_one_worker_has_to_load_them_all(plugin):
    """Two workers that trust one key each are no worker for a build with plugins of both."""
    only_theirs = worker("plugins==signed", f"trusted_key=={THEIRS}")
    with pytest.raises(UserError, match="no connected worker"):
        signer_requirements([plugin(OURS), plugin(THEIRS)], [TRUSTS_OURS, only_theirs], ARCH)
    assert signer_requirements([plugin(OURS), plugin(THEIRS)], [TRUSTS_OURS, TRUSTS_BOTH], ARCH) == (
        f"trusted_key=={OURS}",
        f"trusted_key=={THEIRS}",
    )
