"""Whether a worker would load the plugins of a build: said before anything of the model is sent."""

from __future__ import annotations

from collections.abc import Sequence

from ytk_client.plugins import CustomPlugin
from ytk_core.archspec import ArchSpec
from ytk_core.errors import UserError
from ytk_core.workers import WorkerState, WorkerView

_ANY, _TRUSTED = "plugins==any", "trusted_key=="
_HINT = (
    "Build it with the Forge of this controller (`ytk embedded build-plugin`), have its owner sign it (`ytk-forge sign`), or add its signer's "
    "key to the workers' trusted keys; docs/guides/plugin-keys.md."
)


def signer_requirements(
    plugins: Sequence[CustomPlugin], workers: Sequence[WorkerView], arch: ArchSpec
) -> tuple[str, ...]:
    """Give what a worker has to advertise so that it loads all these plugins.

    Nothing where every worker of the arch spec would, or where none is connected: then the controller and the worker have the word.

    Raises:
        UserError: ``untrusted_plugin``: workers of this arch spec are connected, and none of them would load a plugin.
    """
    serving = [
        set(worker.description.capabilities)
        for worker in workers
        if worker.state is not WorkerState.LOST and str(arch) in worker.description.arch_specs
    ]
    able = [offered for offered in serving if all(_loads(offered, plugin) for plugin in plugins)]
    if len(able) == len(serving):
        return ()
    if not able:
        plugin = next(each for each in plugins if not all(_loads(offered, each) for offered in serving))
        trusted = sorted(
            {word.removeprefix(_TRUSTED) for offered in serving for word in offered if word.startswith(_TRUSTED)}
        )
        key_id = _key_id(plugin)
        who = f"is signed with key {key_id}" if key_id else "is not signed"
        msg = f"{plugin.path} {who}, and no connected worker of {arch} loads it; keys that they trust: {', '.join(trusted) or 'none'}"
        raise UserError(msg, code="untrusted_plugin", hint=_HINT)
    keys = {f"{_TRUSTED}{key_id}" for plugin in plugins if (key_id := _key_id(plugin))}
    if all(keys <= offered for offered in able) and all(_key_id(plugin) for plugin in plugins):
        return tuple(sorted(keys))
    return (_ANY,)


def _key_id(plugin: CustomPlugin) -> str | None:
    return getattr(plugin.manifest.signature, "key_id", None)


def _loads(offered: set[str], plugin: CustomPlugin) -> bool:
    """Whether a worker of these capabilities would load a plugin; one that does not say is asked by sending it the job."""
    if _ANY in offered or not any(word.startswith("plugins==") for word in offered):
        return True
    key_id = _key_id(plugin)
    return key_id is not None and f"{_TRUSTED}{key_id}" in offered
