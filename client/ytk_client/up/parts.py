"""The parts of the stack: what each needs installed, and its command line."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, NamedTuple

from ytk_core.errors import NotAvailableError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ytk_client.up.layout import Layout


class Part(NamedTuple):
    """One process of the stack.

    ``arguments`` follow ``python -m``; ``needs`` are modules that the pip extra ``extra`` installs.
    """

    name: str
    arguments: tuple[str, ...]
    extra: str
    needs: tuple[str, ...]
    does: str


CONTROLLER = Part(
    "controller",
    ("ytk_controller.main", "serve"),
    "controller",
    ("sqlalchemy", "alembic", "obstore", "grpc_health", "grpc_reflection"),
    "jobs, workers, artifacts",
)
AGENTS: tuple[Part, ...] = (
    Part("kronos", ("ytk_kronos.main",), "kronos", ("openvino", "cryptography"), "builds and runs engines (OpenVINO)"),
    Part(
        "gaia-generator",
        ("ytk_gaia.main", "--mode", "generator"),
        "gaia-generator",
        ("torch",),
        "generates kernels",
    ),
    Part("gaia-evaluator", ("ytk_gaia.main", "--mode", "evaluator"), "gaia", (), "scores kernels on this CPU"),
    Part("forge", ("ytk_forge.main",), "forge", ("elftools", "jinja2", "cryptography"), "compiles plugins"),
)


def chosen(without: Iterable[str]) -> tuple[Part, ...]:
    """Give the agents to start.

    Raises:
        UserError: ``without`` names an agent that does not exist.
    """
    left_out = set(without)
    unknown = left_out - {part.name for part in AGENTS}
    if unknown:
        raise UserError(
            f"no agent is called {sorted(unknown)[0]!r}",
            code="unknown_part",
            hint=f"Agents: {', '.join(part.name for part in AGENTS)}.",
        )
    return tuple(part for part in AGENTS if part.name not in left_out)


def check_installed(parts: Iterable[Part]) -> None:
    """Check that everything the parts import is installed.

    Raises:
        NotAvailableError: Names the modules and the pip command that installs them.
    """
    missing = {part: [module for module in part.needs if importlib.util.find_spec(module) is None] for part in parts}
    missing = {part: modules for part, modules in missing.items() if modules}
    if not missing:
        return
    what = "; ".join(f"{part.name} needs {', '.join(modules)}" for part, modules in missing.items())
    extras = ",".join(part.extra for part in missing)
    agents = [part.name for part in missing if part != CONTROLLER]
    skip = f" Or leave them out: ytk up {' '.join(f'--without {name}' for name in agents)}" if agents else ""
    raise NotAvailableError(
        f"not installed: {what}",
        code="missing_dependency",
        hint=f"{sys.executable} -m pip install 'yasp-toolkit[{extras}]'.{skip}",
    )


def controller_command(layout: Layout, listen: str) -> list[str]:
    """Give the controller's command line after ``python -m``."""
    return [
        *CONTROLLER.arguments,
        *("--state-dir", str(layout.state("controller"))),
        *("--listen", listen),
        *("--bootstrap-token", f"client:local:{layout.client_token}"),
        *("--bootstrap-token", f"agent:local-agents:{layout.agent_token}"),
    ]


def agent_command(part: Part, layout: Layout, address: str, sandbox: str) -> Sequence[str]:
    """Give an agent's command line after ``python -m``."""
    return [
        *part.arguments,
        *("--controller", address),
        *("--token-file", str(layout.agent_token)),
        *("--state-dir", str(layout.state(part.name))),
        *("--worker-id", part.name),
        *("--sandbox", sandbox),
        *_signature_options(part, layout),
    ]


def _signature_options(part: Part, layout: Layout) -> Sequence[str]:
    """Forge signs what it builds, and Kronos loads that and what those signed whom the user named."""
    if part.name == "forge":
        return ("--signing-key", str(layout.signing_key))
    if part.name == "kronos":
        files = [layout.forge_keys, *([layout.more_keys] if layout.more_keys.exists() else [])]
        return [word for path in files for word in ("--trusted-keys", str(path))]
    return ()
