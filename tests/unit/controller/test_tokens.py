"""Bootstrap tokens."""

from __future__ import annotations

import pytest

from ytk_controller.tokens import read_token_files
from ytk_core.errors import UserError


def test_two_tokens_of_one_name_are_refused_whatever_their_scopes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("long enough to be a secret " + name)
    both = [f"client:alice:{tmp_path / 'a'}", f"agent:alice:{tmp_path / 'b'}"]
    with pytest.raises(UserError, match="two bootstrap tokens have the name 'alice'"):
        read_token_files(both)
    assert len(read_token_files([both[0], both[1].replace("alice", "board")])) == 2
