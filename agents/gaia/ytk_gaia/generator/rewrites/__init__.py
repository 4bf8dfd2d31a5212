"""Lowering rewrites: other loop forms of one operator, offered beside the general one."""
