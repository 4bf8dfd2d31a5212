"""``ytk up``: the whole stack as child processes of one supervisor on one machine."""
