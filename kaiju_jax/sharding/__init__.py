"""How a step spreads over devices: mesh, letters to axes, collectives."""
