"""The settings of the command `replay`."""

import dataclasses
from typing import Annotated
from typing import Literal

from kaiju_jax.runs import flags

_BelowOne = Annotated[tuple[float, ...], flags.Numbers(below=1.0)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplaySettings:
  # Which traffic is drawn.
  traffic: Literal['people', 'fixed'] = 'people'
  # Tiers of characters.
  tiers: tuple[Literal['public', 'official', 'mature'], ...] = ('mature',)
  # Requests of a trace.
  requests: flags.Positive = 10_000
  # People, or conversations if fixed, alive at a time.
  live: tuple[int, ...] = (40, 80)
  # Parts of requests that are swipes.
  swipes: _BelowOne = (0.15, 0.45)
  # Characters of a tier.
  characters: flags.Positive = 300
  # Exponent of the characters' popularity.
  zipf: Annotated[float, flags.Bounds(0.0)] = 1.0
  # Seed of the trace.
  seed: flags.NonNegative = 0
  # Fractions of the oracle's bytes.
  fractions: tuple[str, ...] = ('1/20', '1/40', '1/80')
  # The part of the tree's bytes that local pages get; by default that at which
  # both kinds are used up at once (decoding/pages/recording.py).
  local: flags.Share | None = None
  # Which caches; all by default.
  caches: tuple[str, ...] | None = None
  # The model whose pages are counted.
  preset: str = '13b'
  # The fraction of tokens below which it refuses.
  least: flags.Share = 0.5
  # Which change comes half-way.
  change: Literal['build', 'clock'] | None = None
  # The shares of conversations that have the change.
  plan: tuple[float, ...] = (1.0,)
  # Seconds of each share.
  hold: Annotated[float, flags.Bounds(1.0)] = 60.0
  # Prefixes that are prefilled.
  warm: flags.NonNegative = 0
  # What open conversations do.
  open: Literal['move', 'stay'] = 'move'
  # The clock's smallest unit, in seconds.
  tick: Annotated[float, flags.Bounds(0.001)] = 1.0
  # Where the figures go as JSON.
  json: str | None = None
