"""Plain data on disk: read strictly, and written whole or not at all."""
