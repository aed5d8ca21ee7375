"""Plain data on disk: read strictly, written whole or not at all."""
