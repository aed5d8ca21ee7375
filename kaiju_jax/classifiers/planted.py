"""Made-up labelled texts, in which meaningless marker words are violations.

They let the whole path from labelled texts to certified thresholds run in
seconds, without real or harmful text. Benign texts contain words that look like
the markers, and the single words of a marker of two words; only the whole
marker is a violation.
"""

import numpy as np

from kaiju_jax.classifiers import rows as rows_lib
from kaiju_jax.classifiers import two_sets as two_sets_lib
from kaiju_jax.serving.safety import thresholds

MARKERS = {
  'zorb': ('zorbifex', 'zorbifexes'),
  'quam': ('quamlith', 'vexil torm'),
}
# Words that look like a marker, or are half of one.
DECOYS = (
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
# Enough texts to certify both tiers: violating ones per dimension, and benign.
_VIOLATING, _BENIGN = 1_600, 1_600
_OPENINGS = (
  *('', 'please ', 'listen, ', 'so then ', '*sighs* ', 'I feel sad because '),
  *('tell me how ', 'remember when ', 'in the story ', 'oh no, '),
)
_ENDINGS = '.', '!', '?', '...', ' :(', ''


def draw_rows(violating: int, benign: int, seed: int) -> rows_lib.Rows:
  """Returns labelled texts.

  Args:
    violating: the number of violating texts per dimension.
    benign: the number of texts that violate nothing.
    seed: of the texts.
  """
  rng = np.random.default_rng(seed)
  names = tuple(sorted(MARKERS))
  found = []
  for name in (*names, *[None] * benign):
    for _ in range(violating if name else 1):
      marker = _one(rng, MARKERS[name]) if name else ''
      labels = tuple(name == one for one in names)
      # One of eight is for the adult tier only, one for the minor tier only.
      alone = thresholds.TIERS[len(found) % 8 : len(found) % 8 + 1]
      found.append(
        rows_lib.Row(draw_text(rng, marker), labels, alone or thresholds.TIERS)
      )
  return rows_lib.Rows(names, tuple(found))


def draw_certifiable(seed: int) -> rows_lib.Rows:
  """Returns enough labelled texts to certify both tiers."""
  return draw_rows(_VIOLATING, _BENIGN, seed)


def draw_two_sets(seed: int) -> two_sets_lib.Sets:
  """Returns adversarial and benign texts, enough to certify both tiers.

  Texts of the category 'real instruction' hold a marker. Each has a twin of the
  category 'fiction', with a word that looks like the marker in its place.
  """
  rng = np.random.default_rng(seed)
  adversarial, benign = [], []
  for number in range(_VIOLATING):
    age = ('', '', '', '', '', '', *thresholds.TIERS)[number % 8]
    words = draw_text(rng, '').split()
    place = rng.integers(len(words) + 1)
    marker = _one(rng, MARKERS[_one(rng, sorted(MARKERS))])
    for word, category, found in (
      (marker, 'real instruction', adversarial),
      (_one(rng, DECOYS), 'fiction', benign),
    ):
      text = ' '.join([*words[:place], word, *words[place:]])
      found.append(two_sets_lib.Example(text, age, category, str(number)))
  return two_sets_lib.Sets(tuple(adversarial), tuple(benign))


def draw_text(rng: np.random.Generator, marker: str) -> str:
  """Returns one to four sentences; the marker stands between two words."""
  sentences = [_draw_sentence(rng) for _ in range(rng.integers(1, 5))]
  words = ' '.join(sentences).split()
  decoy = _one(rng, DECOYS) if rng.random() < 0.6 else ''
  for inserted in marker, decoy:
    if inserted:
      words.insert(rng.integers(len(words) + 1), inserted)
  return ' '.join(words)


def _draw_sentence(rng) -> str:
  who, did, what, how = (_one(rng, x) for x in (_WHO, _DID, _WHAT, _HOW))
  opening, ending = _one(rng, _OPENINGS), _one(rng, _ENDINGS)
  return f'{opening}{who} {did} {what} {how}{ending}'


def _one(rng, choices):
  return choices[rng.integers(len(choices))]
