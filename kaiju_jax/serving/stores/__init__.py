"""Characters, their versions and conversations, kept: sqlite or Redis."""
