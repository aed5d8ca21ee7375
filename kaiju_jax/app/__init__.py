"""The server, assembled: engine, replicas, folder, candidates of drift."""
