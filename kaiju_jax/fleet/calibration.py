"""Fits the seconds of a round to measured rounds, or to a chip's ceilings.

A round's features are those of `state.Law`: 1, rows that draw, the tokens of
their texts, the tokens of the chunk's shape, Σ tokens × tokens before them, and
1 if there is a chunk. The law is their sum with weights of 0 or more (NNLS),
fitted to errors relative to what the fit before it predicts, so that short
rounds count as much as long ones. Relative to the measured seconds it would be
too low in the mean, because that counts a slow round for less.
"""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from kaiju_jax.costs import accelerator
from kaiju_jax.fleet import ceilings
from kaiju_jax.fleet import state
from kaiju_jax.model import config as model_config
from kaiju_jax.storage import files

# Rounds further off than so many median deviations are left out of a fit: on a
# shared machine another process had the core.
_OUTLIER = 6.0
_CHUNK = 256  # Tokens of a chunk, for a law of ceilings.


class Residuals(NamedTuple):
  """How far a law is from the rounds that it was fitted to."""

  rounds: int  # How many there were.
  left_out: int  # How many of them the fit left out.
  # median, p90: of |predicted − measured| / measured, of all rounds.
  median: float
  p90: float
  # Sum of the predicted seconds over that of the measured ones, less 1.
  bias: float


@dataclasses.dataclass(frozen=True)
class Engine:
  """A measured engine, as a calibration writes it to engine.json."""

  model: str  # Digest of the model that was measured.
  origin: str  # A description of it.
  law: state.Law  # How many seconds a round takes.
  sizes: state.Sizes  # The engine's rows and pages.
  # (rows, tokens) of the calls that run its prompts.
  shapes: tuple[tuple[int, int], ...]
  residuals: Residuals  # How far measured rounds are from the law.

  def check_model(self, digest: str) -> None:
    """Refuses another model's calibration.

    Raises:
      ValueError: names both models.
    """
    if digest != self.model:
      raise ValueError(
        f'engine: calibrated on {self.origin} ({self.model[:12]}); this model'
        f' is {digest[:12]}. Calibrate it.'
      )


def fit(
  features: Sequence[Sequence[float]], seconds: Sequence[float]
) -> tuple[state.Law, Residuals]:
  """Fits a law to rounds.

  Args:
    features: float [n, 6].
    seconds: float [n], above 0.

  Raises:
    ValueError: fewer rounds than weights, or a round without time.
  """
  from scipy import optimize

  x, y = np.asarray(features, float), np.asarray(seconds, float)
  if len(x) < x.shape[1]:
    raise ValueError(f'rounds={len(x)}: a fit needs at least {x.shape[1]}.')
  if not (y > 0).all():
    raise ValueError('seconds: each round must take some.')
  scale = np.maximum(x.max(0), 1e-300)
  is_kept, expected = np.ones(len(y), bool), y
  for _ in range(6):
    rows = (x / scale / expected[:, None])[is_kept]
    weights = optimize.nnls(rows, (y / expected)[is_kept])[0] / scale
    expected = np.maximum(x @ weights, 1e-9)
    off = expected / y - 1
    spread = np.median(np.abs(off - np.median(off)))
    far = np.abs(off - np.median(off)) > _OUTLIER * max(spread, 1e-9)
    is_kept = ~far if (~far).sum() >= x.shape[1] else is_kept
  # A round takes time, however the others fit.
  weights[0] = max(weights[0], 1e-9)
  off = np.abs((x @ weights) / y - 1)
  return state.Law(*map(float, weights)), Residuals(
    len(y),
    int((~is_kept).sum()),
    float(np.median(off)),
    float(np.quantile(off, 0.9)),
    float((x @ weights).sum() / y.sum() - 1),
  )


def fit_chip(
  config: model_config.ModelConfig,
  chip: accelerator.Chip,
  slower: float = 1.0,
) -> tuple[state.Law, Residuals]:
  """Fits a law to a chip's ceilings, which no device has confirmed.

  Args:
    slower: by how much a real engine is slower: a guess.
  """
  features, seconds = [], []
  for rows in (1, 8, 32, 64):
    for length in (4_096, 8_192, 16_384):
      features.append((1, rows, rows * length, 0, 0, 0))
      seconds.append(rows / ceilings.decode_rate(config, chip, length, rows))
  for before in (4_096, 8_192, 16_384):
    spent = [
      length / ceilings.prefill_rate(config, chip, length)
      for length in (before, before + _CHUNK)
    ]
    # A chunk reads all weights, whatever it computes.
    least = ceilings.weight_bytes(config) / chip.hbm_bandwidth
    # Ceilings know no constant of a chunk.
    features.append((1, 0, 0, _CHUNK, _CHUNK * before, 0))
    seconds.append(max(spent[1] - spent[0], least))
  return fit(features, slower * np.array(seconds))


def write(path: str | os.PathLike[str], engine: Engine) -> None:
  """Writes engine.json."""
  fields: dict[str, Any] = dataclasses.asdict(engine)
  for name in ('law', 'sizes', 'residuals'):
    fields[name] = getattr(engine, name)._asdict()
  files.write_json(pathlib.Path(path), fields)


def read(path: str | os.PathLike[str]) -> Engine:
  """Reads engine.json.

  Raises:
    FileNotFoundError: there is none.
    ValueError: it is no calibration; names what is missing.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise FileNotFoundError(f'{path}: no such file; --calibrate writes it.')
  fields = files.read_json(path)
  try:
    return Engine(
      str(fields['model']),
      str(fields['origin']),
      state.Law(**fields['law']),
      state.Sizes(**fields['sizes']),
      tuple((int(rows), int(tokens)) for rows, tokens in fields['shapes']),
      Residuals(**fields['residuals']),
    )
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f'{path}: is no calibration: {error!r}.') from error
