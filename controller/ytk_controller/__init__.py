"""The controller: jobs, leases, scheduling, artifacts."""
