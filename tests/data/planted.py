"""Texts whose truth is known: words drawn from distributions that were made."""

import numpy as np

WORDS = np.array([f'word{number}' for number in range(2000)])
# As in a language, words come in company: pairs recur.
PHRASES = np.array([f'a{n} b{n % 83} c{n % 97}' for n in range(100)])


def distributions(count, seed=0, items=WORDS):
  """Returns [count, items]: one Zipf distribution, perturbed per source."""
  rng = np.random.default_rng(seed)
  zipf = 1 / np.arange(5, len(items) + 5)
  shares = zipf * np.exp(rng.standard_normal((count, len(items))))
  return shares / shares.sum(axis=1, keepdims=True)


def texts(distribution, count, size, rng):
  """Returns `count` texts of `size` words or phrases each."""
  items = WORDS if len(distribution) == len(WORDS) else PHRASES
  drawn = rng.choice(len(items), (count, size), p=distribution)
  return [' '.join(items[row]) for row in drawn]


def changed(text, which):
  """Returns the text with the words at some places replaced by new ones."""
  found = text.split(' ')
  for place in which:
    found[place] = f'new{place}{found[place]}'
  return ' '.join(found)
