"""The files of the product, each with a schema version."""
