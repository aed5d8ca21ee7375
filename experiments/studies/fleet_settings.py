"""The settings of the commands `fleet` and `replay`."""

import dataclasses
from typing import Annotated
from typing import Literal

from kaiju_jax.runs import flags

_BelowOne = Annotated[tuple[float, ...], flags.Numbers(below=1.0)]
DRILLS = 'none', 'lost', 'drained', 'cold', 'warm', 'table'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  # Replicas of the fleet.
  replicas: flags.Positive = 12
  # Rows of a replica.
  rows: flags.Positive = 64
  # Sessions that begin per second, on average.
  rate: Annotated[float, flags.Bounds(0.0)] = 58.0
  # How many sessions begin.
  sessions: flags.Positive = 250_000
  # Rate at the day's peak over the mean; 1 for a constant rate.
  peak: Annotated[float, flags.Bounds(1.0, 2.0)] = 1.0
  # Mean requests of a session.
  messages: Annotated[float, flags.Bounds(1.0)] = 8.0
  # Number of characters.
  characters: flags.Positive = 100_000
  # The model whose pages and ceilings are counted.
  preset: str = '13b'
  # By how much an engine is slower than its chip's ceilings.
  slower: Annotated[float, flags.Bounds(0.1)] = 2.0
  # What happens to a replica, or to the table of sessions, half-way.
  drill: Literal[*DRILLS] = 'none'
  # Seconds before times to the first token count.
  warm_up: Annotated[float, flags.Bounds(0.0)] = 1_200.0
  # Seconds to the first token after which a request counts as late.
  slo: Annotated[float, flags.Bounds(0.0)] = 2.5
  # Seconds for which the gates read a message before an engine has it.
  gate: float = 0.0

  def __post_init__(self) -> None:
    """Refuses a plan that cannot be simulated.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    for name in ('rate', 'messages', 'characters', 'sessions'):
      if not getattr(self, name) >= 1e-9:
        raise ValueError(f'{name}={getattr(self, name)}: must be above 0.')
    if not 1 <= self.peak <= 2:
      raise ValueError(f'peak={self.peak}: must be 1 to 2 times the mean.')
    if not 0 <= self.gate < self.slo:
      raise ValueError(
        f'gate={self.gate:g}: must be 0 or more, and below the SLO,'
        f' {self.slo:g}.'
      )
    if self.drill not in DRILLS:
      raise ValueError(
        f'drill={self.drill!r}: must be one of {", ".join(DRILLS)}.'
      )
    if self.drill != 'none' and self.replicas < 2:
      raise ValueError(f'replicas=1: the drill {self.drill!r} needs 2 or more.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetSettings:
  plan: Plan = Plan()
  # Which policies; all by default.
  policies: tuple[str, ...] | None = None
  # Exponents of the characters' popularity.
  zipf: tuple[float, ...] = (0.8, 1.0, 1.2)
  # Seeds of the sessions.
  seeds: flags.Seeds = (0,)
  # SLOs, in seconds, whose replicas to find instead.
  price_of_slo: tuple[float, ...] | None = None
  # Drills whose part of a month to find instead.
  error_budget: tuple[str, ...] | None = None
  # A calibration, engine.json.
  engine: str | None = None
  # Compare with closed forms instead.
  closed_forms: bool = False
  # Measure rounds of --model and fit their law instead.
  calibrate: bool = False
  # Serve --model on the wall clock and compare instead.
  wall_clock: bool = False
  # A workdir, an export or a Hugging Face folder.
  model: str | None = None
  # Requests of a measurement.
  count: Annotated[int, flags.Bounds(10)] = 200
  # Loads of --wall_clock.
  loads: _BelowOne = (0.3, 0.6, 0.8)
  # Of --calibrate and --wall_clock: processor counts the seconds of this
  # process alone, where others share the cores; pin it to one core.
  clock: Literal['wall', 'processor'] = 'wall'
  # Where a calibration goes.
  out: str = 'engine.json'
  # Print tables in Markdown.
  markdown: bool = False
  # Where the figures go as JSON.
  json: str | None = None


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
