"""The two sources of the experiment on annealing."""

import numpy as np

from kaiju_jax.data import docstrings
from kaiju_jax.data import documents

MODULE = '''
"""One line of a module."""

class A:
  """A class."""

  def f(self):
    """A method.

    With two paragraphs.
    """
    "not a docstring"
'''


def test_docstrings_alone_are_read(monkeypatch):
  long = MODULE.replace('A class.', 'word ' * docstrings.LEAST)
  found = [
    documents.Document('long.py', (long,)),
    documents.Document('short.py', (MODULE,)),
    documents.Document('bad.py', ('def f(:',)),
    documents.Document('prose.txt', ('word ' * 999,)),
  ]
  monkeypatch.setattr(documents, 'read', lambda path: iter(found))
  monkeypatch.setattr(documents, 'is_held_out', lambda *_: True)
  (text,), noisy = docstrings.read()
  assert text.startswith('One line of a module.\n\nword word')
  assert text.endswith('A method.\n\nWith two paragraphs.')
  assert not noisy


def test_half_of_the_words_are_noise():
  words = ['noun', 'verb', 'of', 'sentences'] * 500
  text = ', '.join(words)
  noisy = docstrings.with_noise(text, np.random.default_rng(0))
  found = noisy.split(', ')
  assert list(map(len, found)) == list(map(len, words))
  kept = np.mean([a == b for a, b in zip(words, found)])
  assert 0.45 < kept < 0.55
  drawn = ''.join(b for a, b in zip(words, found) if a != b)
  shares = [drawn.count(letter) / len(drawn) for letter in set(drawn)]
  assert len(shares) == 26 and max(shares) < 0.06
  # Other characters stay, and count as no letters.
  other = 'é 漢 1, [`{@\n'
  assert docstrings.with_noise(other, np.random.default_rng(0)) == other
