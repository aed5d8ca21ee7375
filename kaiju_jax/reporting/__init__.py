"""Tables, figures, intervals and decisions: what commands print and write."""
