"""Online rounds: draws, a user's choices, training (`experiments.align`)."""
