"""The controller: jobs, leases, scheduling, artifacts, workers and tokens behind grpc.aio."""
