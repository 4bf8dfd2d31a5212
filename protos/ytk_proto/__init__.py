"""The wire contract; generated code is committed and checked."""
