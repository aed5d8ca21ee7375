"""Reading a compiled program: loops, collectives and matmuls of its HLO."""
