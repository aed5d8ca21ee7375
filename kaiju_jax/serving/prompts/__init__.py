"""Characters and conversations as tokens that a cache finds again."""
