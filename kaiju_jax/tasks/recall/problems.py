"""Recall problems: statements to read, then cues to answer.

The kinds are those of RULER (Hsieh et al. 2024, arXiv 2404.06654); generators,
words and sizes are ours:

    multi_key_8, _32   the value of one name, among 8 or 32 other names
    multi_value        all four values of one name, in their order
    multi_query        the values of four names
    hops_1 … hops_4    the value of a variable that is defined by another one,
                       over so many steps (RULER asks for all variables of a
                       value; one step here is one step of reading)
    common_words       the three words that stand more often than all others, in
                       the order of their first appearance
    frequent_words     the three most frequent words of a Zipf law, by frequency

A problem has no layout: `rows.py` writes it as tokens, `text.py` the same row
as English. Tokens are those of the needle (`needle/questions.py`): 64 names, 64
values or words, and filler, whose last two tokens ask for words instead.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import numpy as np

from kaiju_jax.tasks.needle import questions as needle

BOS, NAMES, VALUES = needle.BOS, needle.KEYS, needle.VALUES
FILLER = needle.FILLER[:-2]
COMMON, FREQUENT = needle.FILLER[-2:]

CHAINS = 4  # Of variables in a question.
MOST_HOPS = 4
_ASKED = 4  # Answers of multi_value and multi_query.
_OTHERS = 8  # Other names in their rows.
_TOP = 3  # Words that are asked for.
_WORDS = 24  # Other words in common_words.
_EXPONENT = 2.0


class Problem(NamedTuple):
  """One problem."""

  kind: str  # A name of `KINDS`.
  # Tokens that stand together, in the order of the row: (name, value), (name,
  # name) or (word,).
  statements: tuple[tuple[int, ...], ...]
  # (cue, answer) in the order of the questions.
  asked: tuple[tuple[int, int], ...]

  @property
  def candidates(self) -> int:
    """Different values or words in the row, among which one may guess."""
    return len({one[-1] for one in self.statements if one[-1] in VALUES})


def draw(rng: np.random.Generator, kind: str, length: int) -> Problem:
  """Draws a problem for a row of `length` tokens.

  Raises:
    ValueError: no such kind, or the row is too short for it.
  """
  if kind not in KINDS:
    raise ValueError(f'kind={kind!r}: must be one of {", ".join(KINDS)}.')
  found = KINDS[kind](rng, length)
  least = _size(found)
  if length < least:
    raise ValueError(f'length={length}: must be at least {least} for {kind!r}.')
  return found._replace(kind=kind)


def fits(kind: str, length: int) -> bool:
  """Returns whether rows of `length` tokens hold a kind's problems."""
  try:
    draw(np.random.default_rng(0), kind, length)
  except ValueError:
    return False
  return True


def draw_many(rng: np.random.Generator, kind: str, length: int) -> Problem:
  """Draws a problem with as many questions as a row holds, to train on.

  Names, or chains of variables, are as many as fit if each is asked once; from
  half of that on, the number is drawn. Words are asked for as in `draw`.

  Raises:
    ValueError: see `draw`.
  """
  hops = 0 if kind.startswith('multi_key') else hops_of(kind)
  if hops is None:
    return draw(rng, kind, length)
  most = min(length // (2 * hops + 4), len(NAMES) // (hops + 1))
  if not most:
    raise ValueError(
      f'length={length}: must be at least {2 * hops + 4} for {kind!r}.'
    )
  chains = int(rng.integers((most + 1) // 2, most + 1))
  return _draw_hops(rng, length, hops, chains, chains)._replace(kind=kind)


def hops_of(kind: str) -> int | None:
  """Returns the steps of a kind of variables; None for another kind."""
  name, _, hops = kind.rpartition('_')
  return int(hops) if name == 'hops' else None


def _size(problem: Problem) -> int:
  """Returns the tokens of a row without filler."""
  return sum(map(len, problem.statements)) + 2 * len(problem.asked)


def _draw_names(rng, length: int, others: int, copies: int, asked: int):
  """Draws names with values, the asked one `copies` times."""
  del length
  names = rng.permutation(NAMES)[: others + 1]
  names = rng.permutation(np.concatenate([names[:1].repeat(copies), names[1:]]))
  values = rng.permutation(VALUES)[: len(names)]
  if copies > 1:
    found, counts = np.unique(names, return_counts=True)
    chosen = np.flatnonzero(names == found[counts.argmax()])
  else:
    chosen = rng.permutation(len(names))[:asked]
  statements = tuple(zip(names.tolist(), values.tolist()))
  return Problem('', statements, tuple(statements[one] for one in chosen))


def _draw_hops(rng, length: int, hops: int, chains=CHAINS, asked=1) -> Problem:
  """Draws chains of variables; each statement follows what it reads."""
  del length
  names = rng.permutation(NAMES)[: chains * (hops + 1)]
  names = names.reshape(chains, hops + 1).tolist()
  values = rng.permutation(VALUES)[:chains].tolist()
  # Every interleaving of the chains is equally likely.
  order = rng.permutation(np.arange(chains).repeat(hops + 1)).tolist()
  written = [0] * chains
  statements = []
  for chain in order:
    step = written[chain]
    read = names[chain][step - 1] if step else values[chain]
    statements.append((names[chain][step], read))
    written[chain] += 1
  chosen = rng.permutation(chains)[:asked].tolist()
  pairs = tuple((names[one][-1], values[one]) for one in chosen)
  return Problem('', tuple(statements), pairs)


def _draw_common(rng, length: int) -> Problem:
  room = length - 2 * _TOP
  seldom = max(1, room // 96)
  often = (room - _WORDS * seldom) // _TOP
  words = rng.permutation(VALUES)[: _TOP + _WORDS]
  if often < 3 * seldom:
    raise ValueError(f"length={length}: is too short for 'common_words'.")
  row = rng.permutation(
    np.concatenate([words[:_TOP].repeat(often), words[_TOP:].repeat(seldom)])
  ).tolist()
  top = sorted(words[:_TOP].tolist(), key=row.index)
  return _ask_words(row, COMMON, top)


def _draw_frequent(rng, length: int) -> Problem:
  room = length - 2 * _TOP
  shares = np.arange(1, len(VALUES) + 1) ** -_EXPONENT
  counts = np.floor(room * shares / shares.sum()).astype(int)
  # The answers' counts differ from each other's, and from all others'.
  if room < 1 or np.any(np.diff(counts[: _TOP + 1]) >= 0):
    raise ValueError(f"length={length}: is too short for 'frequent_words'.")
  words = rng.permutation(VALUES)
  row = rng.permutation(words.repeat(counts)).tolist()
  return _ask_words(row, FREQUENT, words[:_TOP].tolist())


def _ask_words(row, cue: int, answers) -> Problem:
  statements = tuple((word,) for word in row)
  return Problem('', statements, tuple((cue, one) for one in answers))


KINDS: dict[str, Callable[[np.random.Generator, int], Problem]] = {
  'multi_key_8': functools.partial(_draw_names, others=8, copies=1, asked=1),
  'multi_key_32': functools.partial(_draw_names, others=32, copies=1, asked=1),
  'multi_value': functools.partial(
    _draw_names, others=_OTHERS, copies=_ASKED, asked=_ASKED
  ),
  'multi_query': functools.partial(
    _draw_names, others=_OTHERS + _ASKED - 1, copies=1, asked=_ASKED
  ),
  **{
    f'hops_{hops}': functools.partial(_draw_hops, hops=hops)
    for hops in range(MOST_HOPS + 1)
  },
  'common_words': _draw_common,
  'frequent_words': _draw_frequent,
}
