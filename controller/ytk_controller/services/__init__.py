"""gRPC servicers: convert, call the desk, convert."""
