"""What surrounds every call: request id and log line, authentication, deadline, error mapping."""
