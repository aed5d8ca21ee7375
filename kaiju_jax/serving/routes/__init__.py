"""Routes: one module per group of addresses, and what they share."""
