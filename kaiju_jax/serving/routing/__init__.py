"""Many engines as one: replicas, the router in front of them, and its table."""
