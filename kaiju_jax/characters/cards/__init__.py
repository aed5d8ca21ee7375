"""Character cards: versions 1 to 3, as JSON and in PNG pictures."""
