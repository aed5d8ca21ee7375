"""Best maps of low rank, from second moments alone; float64 numpy.

With inputs x [E], targets y and means over tokens E[·], both fits need only

    square   E[x xᵀ]
    cross    E[x yᵀ]

and both whiten the inputs: with square = R Rᵀ, the error of y ≈ x·B is a
constant plus ‖R⁺ cross − Rᵀ B‖², whose best B of a rank is a truncated singular
value decomposition (reduced-rank regression, Izenman 1975). Directions of the
inputs that no token has get no weight.
"""

from typing import NamedTuple

import numpy as np

# Eigenvalues below this share of the largest are directions without tokens.
_LEAST = 1e-12
# A direction in which less than this is left of the mean's square is constant.
_LEAST_KEPT = 1e-6
_ROUNDS = 20  # Of the fit of phases; each lowers the error.


class Inputs(NamedTuple):
  """Whitened inputs."""

  square_EE: np.ndarray  # E[x xᵀ].
  # The matrix W with Wᵀ square W = 1, over directions that exist.
  inverse_ER: np.ndarray


def whiten(square_EE: np.ndarray) -> Inputs:
  """Returns the inputs whose second moments are `square_EE`."""
  values_R, vectors_ER = np.linalg.eigh(square_EE)
  kept = values_R > _LEAST * max(values_R[-1], np.finfo(float).tiny)
  return Inputs(square_EE, vectors_ER[:, kept] / np.sqrt(values_R[kept]))


def center(inputs: Inputs, mean_E: np.ndarray, share: float) -> Inputs:
  """Returns the inputs with second moments E[x xᵀ] − share · E[x] E[x]ᵀ.

  Args:
    inputs: whitened inputs.
    mean_E: E[x].
    share: how much of the mean goes, 0…1.
  """
  mean_R = inputs.inverse_ER.T @ mean_E
  size = mean_R @ mean_R
  if share * size == 0:
    return inputs
  # Whitened, only the direction of the mean is not as long as the others.
  kept = 1 - share * size
  longer = 1 / np.sqrt(kept) if kept > _LEAST_KEPT else 0.0
  along_E = inputs.inverse_ER @ (mean_R / size)
  return Inputs(
    inputs.square_EE - share * np.outer(mean_E, mean_E),
    inputs.inverse_ER + (longer - 1) * np.outer(along_E, mean_R),
  )


def regress(inputs: Inputs, cross: np.ndarray) -> np.ndarray:
  """Returns the least-squares map [E, …] from x to y, of full rank."""
  whitened = np.tensordot(inputs.inverse_ER.T, cross, axes=1)
  return np.tensordot(inputs.inverse_ER, whitened, axes=1)


def reduce_rank(
  inputs: Inputs, cross_EY: np.ndarray, rank: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns w [E, rank] and a [rank, Y] with the least E‖y − x·w·a‖².

  The rows of `a` are orthonormal. Where the inputs have fewer directions than
  `rank`, the rest of `w` is 0.
  """
  whitened_RY = inputs.inverse_ER.T @ cross_EY
  left_RS, values_S, right_SY = np.linalg.svd(whitened_RY, full_matrices=False)
  missing = max(rank - len(values_S), 0)
  w_ES = inputs.inverse_ER @ (left_RS * values_S)[:, :rank]
  a_SY = right_SY[:rank]
  return (
    np.pad(w_ES, ((0, 0), (0, missing))),
    np.pad(a_SY, ((0, missing), (0, 0))),
  )


def fit_common(
  inputs: Inputs, cross_EN: np.ndarray, weights_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns complex w [E] and a [N] with the least Σ weight · E|y − a·x·w|².

  Args:
    inputs: real inputs.
    cross_EN: E[x yᵀ] of N complex targets.
    weights_N: what an error of each target costs, not negative.

  `a` has the root mean square 1 under the weights, and their weighted sum is
  real and positive: both are free, because w·c and a/c are the same map.
  """
  weights_N = np.maximum(weights_N, 1e-9 * weights_N.max(initial=0.0))
  if not weights_N.any():
    weights_N = np.ones_like(weights_N)
  root_N = np.sqrt(weights_N)
  whitened_RN = (inputs.inverse_ER.T @ cross_EN) * root_N
  left_RS, values_S, right_SN = np.linalg.svd(whitened_RN, full_matrices=False)
  a_N = right_SN[0] / root_N
  size = 1 / np.sqrt(weights_N.sum())
  total = np.sum(weights_N * a_N)
  turn = total / np.abs(total) if np.abs(total) > 0 else 1.0
  return (
    inputs.inverse_ER @ left_RS[:, 0] * values_S[0] * size * turn,
    a_N / size / turn,
  )


def fit_phases(
  inputs: Inputs, cross_EN: np.ndarray, weight_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns complex w [E] and a [N], |a| = 1, as `fit_common`.

  Alternates between the two, each of which is solved exactly.
  """
  weight_N = np.maximum(weight_N, 1e-9 * weight_N.max(initial=0.0))
  _, a_N = fit_common(inputs, cross_EN, weight_N)
  a_N = _phase(a_N)
  share_N = weight_N / max(weight_N.sum(), np.finfo(float).tiny)
  for _ in range(_ROUNDS):
    w_E = regress(inputs, cross_EN @ (a_N.conj() * share_N))
    a_N = _phase(w_E.conj() @ cross_EN)
  w_E = regress(inputs, cross_EN @ (a_N.conj() * share_N))
  return w_E, a_N


def _phase(a_N: np.ndarray) -> np.ndarray:
  size_N = np.abs(a_N)
  return np.divide(a_N, size_N, out=np.ones_like(a_N), where=size_N > 0)
