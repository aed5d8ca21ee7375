"""Chooses the layers that share keys and values by what a fit would lose.

The first layer shares with none: what it loses, all layers read, and small
models do not learn induction without its keys (`results/induction.md`). Pairs
of neighbours of one kind come before triples (from 1B parameters on, factor 2
costs nothing, arXiv:2405.12981).
"""

from collections.abc import Mapping
from collections.abc import Sequence

from kaiju_jax.interchange import plain as plain_lib
from kaiju_jax.interchange.surgery import calibrate
from kaiju_jax.interchange.surgery import share
from kaiju_jax.model import config as model_config


def candidates(letters: Sequence[str]) -> list[tuple[int, int]]:
  """Returns the pairs of layers that may share: neighbours of one kind.

  Args:
    letters: each layer's word in a layout without its owner, 'L' or 'L:64+4'.
  """
  last: dict[str, int] = {}
  pairs = []
  for index, letter in enumerate(letters):
    if letter in last:
      pairs.append((last[letter], index))
    if index:
      last[letter] = index
  return pairs


def residuals(
  teacher: plain_lib.Plain,
  config: model_config.ModelConfig,
  statistics: calibrate.Statistics,
  pairs: Sequence[tuple[int, int]],
) -> dict[tuple[int, int], float]:
  """Returns what each pair would lose: the mean share of keys and values.

  Args:
    teacher: the teacher's weights.
    config: the teacher's config.
    statistics: the teacher's, with these pairs.
    pairs: (owner, reader), as `candidates` returns them.
  """
  heads = config.num_kv_heads
  found = {}
  for owner, reader in pairs:
    fits = [
      fit(teacher, config, statistics, owner, members)
      for members in share.merge([owner, reader], heads, heads)
      for fit in (share.fit_keys, share.fit_values)
    ]
    found[owner, reader] = sum(one.residual for one in fits) / len(fits)
  return found


def draw(
  letters: Sequence[str], residuals: Mapping[tuple[int, int], float]
) -> str:
  """Returns the layout in which the pairs that lose least share.

  Args:
    letters: each layer's word, as for `candidates`.
    residuals: {(owner, reader): what it would lose}.
  """
  owners = list(range(len(letters)))
  taken: set[int] = set()
  for owner, reader in sorted(residuals, key=residuals.get):
    if taken.isdisjoint((owner, reader)):
      owners[reader] = owner
      taken |= {owner, reader}
  return ' '.join(f'{a[0]}{b}{a[1:]}' for a, b in zip(letters, owners))
