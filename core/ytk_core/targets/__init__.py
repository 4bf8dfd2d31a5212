"""What each engine version accepts, as data."""
