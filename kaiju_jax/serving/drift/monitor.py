"""Windows of traffic, the guard's state, and static checkpoints of limits.

    monitor = Monitor(limits)
    monitor.add(samples, now)       # every few seconds; closes windows
    data = monitor.to_bytes(now)    # a static checkpoint
    Monitor.from_bytes(data)        # continues from it

The first BASELINE windows are what later ones are compared with, and the next
`guard.LEAST` what is usual. From then on the guard judges each window, and
quiet ones, filtered by character, are what `propose` fits limits to. While the
guard is frozen they stay as they are.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import json
import math
from typing import Any
from typing import NamedTuple
from typing import Self

import numpy as np
import safetensors
import safetensors.numpy

from kaiju_jax.serving.drift import calibration
from kaiju_jax.serving.drift import guard as guard_lib
from kaiju_jax.serving.drift import histograms

FORMAT = 'kaiju_jax drift 1'
# A window has so many seconds and pages: fewer visitors make it longer, and no
# number of them makes it shorter.
SECONDS, PAGES = 180.0, 128
# Windows of the baseline, 4 h; and those over which the codes' weight falls to
# 1/e, as long.
BASELINE = RECENT = 80


class Window(NamedTuple):
  """A window that has ended."""

  # From the baseline; None while that is made.
  divergence: histograms.Divergence | None
  is_quiet: bool  # Whether it is counted.


class Monitor:
  """What one engine's traffic looks like.

  `limits` are those of its codes, float32 [layers, 2, K].
  """

  def __init__(self, limits: np.ndarray):
    layers, _, channels = limits.shape
    self.limits = limits
    self.guard: guard_lib.Guard = guard_lib.Guard()  # Judges windows.
    self.shares: guard_lib.Shares = guard_lib.Shares()  # Of the characters.
    # The counts that windows are compared with.
    self.baseline: histograms.Counts = histograms.Counts.zeros(layers, channels)
    # The counts that limits are fitted to.
    self.recent: histograms.Counts = histograms.Counts.zeros(layers, channels)
    self.windows: int = 0  # How many have ended.
    self._began: float | None = None
    self._samples: list[histograms.Sample] = []

  def count_wanted(self, now: float) -> int:
    """Returns how many pages to sample at a second, spread over the window."""
    if self._began is None:
      self._began = now
    part = min((now - self._began) / SECONDS, 1.0)
    return max(0, math.ceil(PAGES * part) - len(self._samples))

  def add(
    self, samples: Sequence[histograms.Sample], now: float
  ) -> Window | None:
    """Takes samples; returns the window that ends with them, if one does."""
    if self._began is None:
      self._began = now
    self._samples += samples
    is_over = now - self._began >= SECONDS and len(self._samples) >= PAGES
    if not is_over:
      return None
    samples, self._samples, self._began = self._samples, [], now
    return self.close(samples, now)

  def close(self, samples: Sequence[histograms.Sample], now: float) -> Window:
    """Takes the samples of a whole window."""
    tokens: dict[bytes, float] = {}
    for one in samples:
      size = len(one.tokens_S)
      tokens[one.character] = tokens.get(one.character, 0.0) + size
    weights = self.shares.weigh(tokens, now)
    self.shares.add({x: n * weights[x] for x, n in tokens.items()}, now)
    self.windows += 1
    found = histograms.count(samples)
    if self.windows <= BASELINE:
      self.baseline.add(found)
      return Window(None, False)
    divergence = histograms.diverge(found, self.baseline)
    is_quiet = self.guard.judge(divergence)
    if not is_quiet or self.guard.is_frozen:
      return Window(divergence, is_quiet)
    if any(x < 1 for x in weights.values()):
      each = [weights[one.character] for one in samples]
      found = histograms.count(samples, each)
    self.recent.add(found, kept=1 - 1 / RECENT)
    return Window(divergence, is_quiet)

  def propose(self) -> np.ndarray:
    """Returns limits for what has been counted; see `calibration.propose`."""
    return calibration.propose(self.limits, self.recent)

  def to_bytes(self, about: Mapping[str, Any]) -> bytes:
    """Returns a checkpoint, with the limits that are proposed now.

    Args:
      about: plain data beside it, such as the model's digest.
    """
    characters = sorted({x for day in self.shares.days.values() for x in day})
    days = sorted(self.shares.days)
    tensors = {
      'limits': self.limits,
      'proposed': self.propose(),
      'tokens_history': np.array(self.guard.tokens.history),
      'codes_history': np.array(self.guard.codes.history),
      'shares': np.array(
        [[self.shares.days[d].get(x, 0.0) for d in days] for x in characters]
      ).reshape(len(characters), len(days)),
    }
    for name in 'baseline', 'recent':
      counts = getattr(self, name)
      tensors[f'{name}_codes'] = counts.codes.astype(np.float32)
      tensors[f'{name}_tokens'] = counts.tokens
    fields = {
      'format': FORMAT,
      'about': dict(about),
      'windows': self.windows,
      'frozen': self.guard.is_frozen,
      'first': {
        name: getattr(self.guard, name).first for name in ('tokens', 'codes')
      },
      'characters': [x.hex() for x in characters],
      'days': days,
      'began': self.shares.began,
    }
    data = json.dumps(fields).encode()
    tensors['fields'] = np.frombuffer(data, np.uint8)
    return safetensors.numpy.save(tensors)

  @classmethod
  def from_bytes(cls, data: bytes | memoryview) -> Self:
    """Returns the monitor of a checkpoint, whose window begins anew.

    Raises:
      ValueError: it is none.
    """
    tensors, fields = parse(data)
    made = cls(tensors['limits'])
    for name in 'baseline', 'recent':
      counts = getattr(made, name)
      counts.add(
        histograms.Counts(tensors[f'{name}_codes'], tensors[f'{name}_tokens'])
      )
    made.guard.tokens, made.guard.codes = (
      guard_lib.Series(tensors[f'{name}_history'].tolist(), first)
      for name, first in fields['first'].items()
    )
    made.guard.is_frozen = fields['frozen']
    characters = [bytes.fromhex(x) for x in fields['characters']]
    made.shares = guard_lib.Shares(
      fields['began'],
      {
        day: {x: float(n) for x, n in zip(characters, column) if n}
        for day, column in zip(fields['days'], tensors['shares'].T)
      },
    )
    made.windows = fields['windows']
    return made


def parse(
  data: bytes | memoryview,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Returns a checkpoint's tensors and fields; ValueError if it is none."""
  try:
    tensors = safetensors.numpy.load(bytes(data))
    fields = json.loads(tensors.pop('fields').tobytes())
  except (safetensors.SafetensorError, KeyError, ValueError) as error:
    raise ValueError(f'it is no checkpoint of limits: {error}') from None
  if fields.get('format') != FORMAT:
    raise ValueError(f'its format is not {FORMAT!r}')
  return tensors, fields
