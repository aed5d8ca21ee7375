"""A module's text is sorted by kind, and nothing is in two."""

from kaiju_jax.experiments.studies import python_texts

MODULE = '''
"""Counts what there is.

>>> count([1, 2])
2
>>> for one in []:
...   pass

Then it stops.
"""

# A remark.
LIMIT = 3  # Another one.

def count(items):
  """Returns how many."""
  if len(items) > LIMIT:
    raise ValueError('there are too many items')
  return len(items)
'''


def test_kinds():
  found = python_texts.kinds(MODULE)
  assert found['comments'] == 'A remark.\nAnother one.'
  assert found['messages'] == 'there are too many items'
  assert found['sessions'] == (
    '>>> count([1, 2])\n2\n>>> for one in []:\n...   pass'
  )
  prose = found['docstrings']
  assert 'Counts what' in prose and 'Then it' in prose and 'Returns' in prose
  assert '>>>' not in prose
  assert 'def count(items):' in found['code'] and 'LIMIT = 3' in found['code']
  assert 'Returns' not in found['code'] and 'remark' not in found['code']


def test_what_is_no_python_has_no_kind():
  assert python_texts.kinds('print "a"') == {}
