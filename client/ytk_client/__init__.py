"""The ``ytk`` command line, the thin synchronous client, and the frontend."""
