"""Fits a scaling law to final losses, by variable projection.

    L(N, D) = E + A / N^α + B / D^β

N parameters, D training tokens (Hoffmann et al. 2022). Given α and β, the law
is linear in E, A and B, which nonnegative least squares finds exactly; the
search runs over α and β (variable projection, as in arXiv 2603.22339). Errors
are relative, so that a small model's large loss does not dominate.

A fit is not trusted if an exponent stands at its bound or a term at zero, if
its bootstrap is wide, or if its residuals follow a curve in ln N and ln D that
the law has no term for.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kaiju_jax.reporting import statistics

BOUNDS = 0.02, 2.0  # The range of α and β.
_GRID = 24  # Exponents per axis of the grid where the search begins.
_DRAWS = 100
_WIDE = 3.0  # The largest trusted ratio of an exponent's interval's ends.
_BENT = 0.01  # The residual test's level.


class Law(NamedTuple):
  """The law's five numbers; `e` is 0 for a law without E."""

  e: float
  a: float
  b: float
  alpha: float
  beta: float

  def predict(self, parameters, tokens):
    """Returns the loss that the law predicts; arrays broadcast."""
    n, d = np.asarray(parameters, float), np.asarray(tokens, float)
    return self.e + self.a * n**-self.alpha + self.b * d**-self.beta


class Fit(NamedTuple):
  """A law, and how certain it is."""

  law: Law
  residuals: np.ndarray  # float[R], loss / predicted − 1 of each run.
  draws: tuple[Law, ...]  # Laws that were fitted to resampled residuals.
  # Reasons not to trust it, in words; empty if none are known.
  doubts: tuple[str, ...]

  def interval(self, name: str) -> tuple[float, float]:
    """Returns the 95 % interval of one of the law's numbers."""
    return statistics.percentiles([getattr(one, name) for one in self.draws])

  def predict_interval(self, parameters, tokens) -> tuple[float, float]:
    """Returns the 95 % interval of a prediction, without a run's own noise."""
    return statistics.percentiles(
      [float(one.predict(parameters, tokens)) for one in self.draws]
    )


def fit(
  parameters: Sequence[float],
  tokens: Sequence[float],
  losses: Sequence[float],
  with_e: bool = True,
  draws: int = _DRAWS,
  seed: int = 0,
) -> Fit:
  """Fits the law to R runs.

  Args:
    parameters: float[R], N of each run.
    tokens: float[R], D of each run.
    losses: float[R], its final loss.
    with_e: whether the law has E; the law without E is for comparison.
    draws: how often the residuals are resampled.

  Raises:
    ValueError: fewer than six runs, fewer than three different N or D, or a
      loss that is not finite and positive.
  """
  n, d, y = (np.asarray(x, float) for x in (parameters, tokens, losses))
  if len(y) < 6 or len(set(n)) < 3 or len(set(d)) < 3:
    raise ValueError(
      f'{len(y)} runs of {len(set(n))} sizes and {len(set(d))} token counts:'
      ' the law has five numbers and needs six runs or more, of at least three'
      ' sizes and three token counts.'
    )
  if not (np.isfinite(y) & (y > 0)).all():
    raise ValueError('losses must be finite and positive.')
  law = _best(n, d, y, with_e)
  expected = law.predict(n, d)
  residuals = y / expected - 1
  rng = np.random.default_rng(seed)
  # A fit absorbs some of the noise: scale the residuals by its degrees of
  # freedom.
  stretched = residuals * np.sqrt(len(y) / max(1, len(y) - 4 - with_e))
  drawn = tuple(
    _best(n, d, expected * (1 + rng.choice(stretched, len(y))), with_e, law)
    for _ in range(draws)
  )
  doubts = _doubts(law, drawn, with_e) + _bends(n, d, residuals)
  return Fit(law, residuals, drawn, doubts)


def _best(n, d, y, with_e: bool, near: Law | None = None) -> Law:
  """Returns the law of least relative squares; `near` replaces the grid."""
  # Here, because scipy takes longer to import than everything above.
  from scipy import optimize

  # In units of the geometric means, all three columns are about 1.
  scale = np.exp([np.log(n).mean(), np.log(d).mean()])

  def projected(exponents):
    alpha, beta = np.clip(exponents, *BOUNDS)
    columns = [(n / scale[0]) ** -alpha, (d / scale[1]) ** -beta]
    if with_e:
      columns.insert(0, np.ones_like(y))
    return optimize.nnls(np.stack(columns, 1) / y[:, None], np.ones_like(y))

  def error(exponents):
    return projected(exponents)[1]

  if near is None:
    axis = np.geomspace(*BOUNDS, _GRID)
    start = min(((a, b) for a in axis for b in axis), key=error)
  else:
    start = near.alpha, near.beta
  found = optimize.minimize(
    error,
    start,
    method='Nelder-Mead',
    bounds=[BOUNDS, BOUNDS],
    options={'xatol': 1e-4, 'fatol': 1e-9, 'maxfev': 400},
  )
  alpha, beta = (float(x) for x in np.clip(found.x, *BOUNDS))
  *e, a, b = projected(found.x)[0]
  return Law(
    float(e[0]) if e else 0.0,
    float(a * scale[0] ** alpha),
    float(b * scale[1] ** beta),
    alpha,
    beta,
  )


def _doubts(law: Law, draws: Sequence[Law], with_e: bool) -> tuple[str, ...]:
  doubts = []
  for name in ('alpha', 'beta'):
    value = getattr(law, name)
    if not BOUNDS[0] * 1.01 < value < BOUNDS[1] * 0.99:
      doubts.append(f'{name} {value:.2f} stands at its bound')
    low, high = statistics.percentiles([getattr(one, name) for one in draws])
    if high > _WIDE * low:
      doubts.append(
        f'{name} is hardly determined: 95 % of draws lie in'
        f' {low:.2f}…{high:.2f}'
      )
  for name in ('e', 'a', 'b') if with_e else ('a', 'b'):
    if getattr(law, name) <= 0:
      doubts.append(f'{name.upper()} is 0: the data show no such term')
  return tuple(doubts)


def _bends(n, d, residuals) -> tuple[str, ...]:
  """Returns a doubt if an F test finds a curve of ln N, ln D in residuals."""
  from scipy import stats

  x, z = np.log(n) - np.log(n).mean(), np.log(d) - np.log(d).mean()
  plain = np.stack([np.ones_like(x), x, z], 1)
  bent = np.concatenate([plain, np.stack([x**2, x * z, z**2], 1)], 1)
  freedom = len(x) - bent.shape[1]
  if freedom < 2 or not residuals.any():
    return ()

  def squares(columns):
    found = np.linalg.lstsq(columns, residuals, rcond=None)[0]
    return np.sum((residuals - columns @ found) ** 2)

  left = squares(bent)
  if left <= 0:
    return ()
  ratio = (squares(plain) - left) / 3 / (left / freedom)
  chance = float(stats.f.sf(ratio, 3, freedom))
  if chance >= _BENT:
    return ()
  return (f'the residuals follow a curve (p = {chance:.1g})',)
