"""Words shared by every part: contracts, formats, agent runtime."""
