"""Who may come in, and how: sockets, requests, tokens, limits, errors."""
