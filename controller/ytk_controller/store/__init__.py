"""Durable state behind one interface: in memory, SQLite (one writer, group commit), PostgreSQL."""
