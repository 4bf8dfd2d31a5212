"""The agent runtime: dial out, lease, heartbeat, child processes."""
