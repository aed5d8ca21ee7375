"""HTTP: sockets, framing, access, limits, errors and metrics."""
