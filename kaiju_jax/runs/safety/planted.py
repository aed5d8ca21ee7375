"""Benign texts with planted, meaningless marker words as violations.

So that the whole path from labelled texts to certified thresholds runs without
anybody's data, in seconds. Nobody can be hurt by a 'zorbifex'. Benign texts use
words that look like the markers, and the words of a marker that is two words;
what tells them apart is the whole.
"""

import numpy as np

from kaiju_jax.runs.safety import rows as rows_lib
from kaiju_jax.serving.safety import thresholds

MARKERS = {
  'zorb': ('zorbifex', 'zorbifexes'),
  'quam': ('quamlith', 'vexil torm'),
}
_DECOYS = (
  *('zorbital', 'orbit', 'zorro', 'aquamarine', 'quam', 'monolith', 'vexil'),
  *('torm', 'torment'),
)
_WHO = (
  *('the knight', 'my sister', 'the old captain', 'a dragon', 'the teacher'),
  *('our band', 'the robot', 'her ghost', 'the queen', 'that stray dog'),
  *('the detective', 'my best friend', 'the wizard', 'everyone', 'nobody'),
)
_DID = (
  *('cried over', 'ran from', 'fought for', 'dreamed about', 'wrote about'),
  *('laughed at', 'lost', 'found', 'painted', 'forgot', 'stole', 'missed'),
  *('sang to', 'apologized for', 'argued about', 'whispered about'),
)
_WHAT = (
  *('the storm', 'a broken heart', 'the last battle', 'an exam', 'the map'),
  *('her letter', 'the burning ship', 'a funeral', 'the moon', 'the crown'),
  *('an empty house', 'the villain', 'a birthday', 'the winter', 'a promise'),
)
_HOW = (
  *('all night', 'in the rain', 'again', 'with shaking hands', 'in secret'),
  *('before dawn', 'at school', 'for years', 'on the bridge', 'too late'),
)
# What it takes to certify both tiers.
_VIOLATING, _BENIGN = 1_600, 1_600
_OPENINGS = (
  *('', 'please ', 'listen, ', 'so then ', '*sighs* ', 'I feel sad because '),
  *('tell me how ', 'remember when ', 'in the story ', 'oh no, '),
)
_ENDINGS = '.', '!', '?', '...', ' :(', ''


def rows(violating: int, benign: int, seed: int) -> rows_lib.Rows:
  """Returns labelled texts.

  Args:
    violating: how many per dimension.
    benign: how many that violate nothing.
    seed: another one gives others.
  """
  rng = np.random.default_rng(seed)
  names = tuple(sorted(MARKERS))
  found = []
  for name in (*names, *[None] * benign):
    for _ in range(violating if name else 1):
      marker = _one(rng, MARKERS[name]) if name else ''
      labels = tuple(name == one for one in names)
      # One of eight speaks for adults alone, and one for minors alone.
      alone = thresholds.TIERS[len(found) % 8 : len(found) % 8 + 1]
      found.append(
        rows_lib.Row(_text(rng, marker), labels, alone or thresholds.TIERS)
      )
  return rows_lib.Rows(names, tuple(found))


def certifying(seed: int) -> rows_lib.Rows:
  """Returns so many labelled texts that both tiers can be certified."""
  return rows(_VIOLATING, _BENIGN, seed)


def _text(rng, marker: str) -> str:
  """Returns one to four sentences; the marker stands between two words."""
  words = ' '.join(_sentence(rng) for _ in range(rng.integers(1, 5))).split()
  for inserted in (marker, _one(rng, _DECOYS) if rng.random() < 0.6 else ''):
    if inserted:
      words.insert(rng.integers(len(words) + 1), inserted)
  return ' '.join(words)


def _sentence(rng) -> str:
  who, did, what, how = (_one(rng, x) for x in (_WHO, _DID, _WHAT, _HOW))
  opening, ending = _one(rng, _OPENINGS), _one(rng, _ENDINGS)
  return f'{opening}{who} {did} {what} {how}{ending}'


def _one(rng, choices):
  return choices[rng.integers(len(choices))]
