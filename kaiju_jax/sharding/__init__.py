"""The mesh, its axes per dimension, collectives, and several processes."""
