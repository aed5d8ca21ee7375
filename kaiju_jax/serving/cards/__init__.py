"""Characters as people write them: fields, cards in JSON and PNG."""
