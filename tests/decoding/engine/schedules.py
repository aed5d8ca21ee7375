"""Sequences that wait, as a plan sees them."""

from kaiju_jax.decoding.engine import schedule

SHAPES = [(1, 16), (1, 64), (1, 256), (4, 64), (8, 32)]


def waiting(number, pages=1, **fields):
  needs = None if pages is None else {'global': pages}
  return schedule.Waiting(
    number, **{'came': 0.0, 'tag': 0.0, 'needs': needs, 'left': 8, **fields}
  )
