"""Two sets of texts to examine a classifier with: adversarial and benign.

Source 003 wants both, of about 600 texts each, by age tier: adversarial texts,
nearly all of which must be refused, and texts that are emotionally heavy but
allowed ("benign but intense"), nearly none of which may be. Both are JSONL
files:

    {"text": "…", "age": "minor", "category": "fiction", "pair": "7"}

`age` is the tier in which the text counts; without it, both. `category` is any
word, for rates by category. Texts of the same `pair` belong together: source
003's example is a scene of fiction, which is allowed, and the same request in
earnest, which is not, however it is framed. Only `text` is required.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import pathlib
from typing import Any

from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.data import reading
from kaiju_jax.storage import files
from kaiju_jax.storage import strict

ADVERSARIAL, BENIGN = 'adversarial', 'benign'


@dataclasses.dataclass(frozen=True)
class Example:
  """A text of one of the two sets."""

  text: str
  age: str = ''  # 'adult', 'minor', or '' for both tiers.
  category: str = ''  # Any word; '' for none.
  pair: str = ''  # What the two texts of a pair share; '' for none.

  @property
  def tiers(self) -> tuple[str, ...]:
    """The tiers in which the text counts."""
    return rows_lib.tiers_of(self.age or None)


@dataclasses.dataclass(frozen=True)
class Sets:
  """The two sets."""

  adversarial: tuple[Example, ...]
  benign: tuple[Example, ...]

  def with_labels(self) -> Iterator[tuple[Example, bool]]:
    """Yields every example, and whether it is adversarial."""
    yield from ((one, True) for one in self.adversarial)
    yield from ((one, False) for one in self.benign)

  def by_text(self) -> dict[str, Example]:
    """Returns the examples by their text."""
    return {example.text: example for example, _ in self.with_labels()}

  def halves(self, seed: int) -> tuple[rows_lib.Rows, rows_lib.Rows]:
    """Returns half of the texts to choose thresholds on, and the other half.

    Texts that read the same count once per tier; pairs are not separated.

    Raises:
      ValueError: two texts read the same, and only one is adversarial.
    """
    rows = rows_lib.Rows(
      (ADVERSARIAL,),
      tuple(
        rows_lib.Row(example.text, (is_adversarial,), example.tiers)
        for example, is_adversarial in self.with_labels()
      ),
    )
    pairs = {x.text: f'pair {x.pair}' for x, _ in self.with_labels() if x.pair}
    parts = rows_lib.split(rows, 0.5, 0.5, seed, pairs)
    return parts['choose'], parts['certify']


def read(path: str) -> tuple[Example, ...]:
  """Returns the texts of one set's file.

  Raises:
    OSError: the file cannot be read.
    ValueError: names the line, the field, its value and what would be right.
  """
  found = tuple(reading.parse_lines(path, _parse))
  if not found:
    raise ValueError(f'{path}: holds no texts.')
  return found


def add(
  known: Iterable[Example], new: Iterable[Example]
) -> tuple[tuple[Example, ...], int]:
  """Returns a set extended by new texts, and how many they are.

  A text that reads like a known one for the same tiers is left out.
  """
  found = list(known)
  seen = set().union(*map(_keys, found))
  before = len(found)
  for example in new:
    if not _keys(example) <= seen:
      found.append(example)
      seen |= _keys(example)
  return tuple(found), len(found) - before


def write(path: pathlib.Path, examples: Iterable[Example]) -> None:
  """Writes one set's file, whole or not at all."""
  files.write_json_lines(
    path,
    (
      {name: value for name, value in vars(example).items() if value}
      for example in examples
    ),
  )


def _keys(example: Example) -> set[tuple[str, str]]:
  skeleton = rows_lib.skeleton(example.text)
  return {(skeleton, tier) for tier in example.tiers}


def _parse(data: Any) -> Example:
  found = strict.parse(Example, data)
  if not found.text:
    raise ValueError('text: missing or empty.')
  rows_lib.tiers_of(found.age or None)
  return found
