"""Alembic's entry point; the connection comes from :func:`ytk_controller.store.migrate.upgrade`."""

from alembic import context

from ytk_controller.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
