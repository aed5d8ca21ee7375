"""Labels of characters, held to answers written out by hand."""

import numpy as np
import pytest

from kaiju_jax.data import loader
from kaiju_jax.data import packing
from kaiju_jax.data import properties


def row(*texts, length=24, bos=True):
  """One row of documents; BOS is byte 0."""
  pieces = [
    packing.Piece([*[0] * bos, *text.encode()], source=index)
    for index, text in enumerate(texts)
  ]
  return packing.row(pieces, length)


def marked(row, name):
  """Returns labels as a line: 1, 0, and '.' where the weight is 0."""
  extras = properties.labels(row, [name])
  pairs = zip(extras['label_BLC'][:, 0], extras['weight_BLC'][:, 0])
  return ''.join(
    '.' if not weight else f'{label:.0f}' for label, weight in pairs
  )


@pytest.mark.parametrize(
  'name, want',
  [
    #           Ab 1c_ dE.F(x
    ('digit', '.0001000000000'),
    ('word', '.1101110110101'),
    ('capitalized', '.1100000000100'),
    ('bracketed', '.0000000000011'),
  ],
)
def test_what_holds_of_each_byte(name, want):
  assert marked(row('Ab 1c_ dE.F(x'), name).rstrip('.') == want


def test_a_bracket_ends_with_its_line():
  assert marked(row('(a\nb[c]'), 'bracketed').rstrip('.') == '.1100110'


def test_documents_know_nothing_of_each_other():
  found = marked(row('(A', 'b'), 'bracketed')
  assert found.rstrip('.') == '.11.0'
  assert marked(row('A', 'b'), 'capitalized').rstrip('.') == '.1.0'


def test_a_beginning_that_is_cut_off_is_unknown():
  cut = row('bc D\ne', bos=False)
  assert marked(cut, 'capitalized').rstrip('.') == '..0100'
  assert marked(cut, 'bracketed').rstrip('.') == '....00'
  assert marked(cut, 'word').rstrip('.') == '110101'


def test_rows_carry_labels_and_batches_keep_them():
  class Source:
    def __len__(self):
      return 3

    def __getitem__(self, index):
      return row(f'{index % 3}a')

  names = 'digit', 'word'
  labelled = properties.LabelledRows(Source(), names)
  batch = next(loader.batches(labelled, batch=2, microbatches=2))
  assert batch.extras['label_BLC'].shape == (2, 2, 24, 2)
  np.testing.assert_array_equal(
    batch.extras['label_BLC'][1, 0, :3], [[0, 0], [1, 1], [0, 1]]
  )
  # An epoch's last batch is filled with rows that count nothing.
  *_, last = loader.epoch(labelled, batch=2)
  assert last.extras['weight_BLC'][0].any()
  assert not last.extras['weight_BLC'][1].any()


def test_unknown_properties_are_refused():
  with pytest.raises(ValueError, match="'mood' must be one of 'digit'"):
    properties.check(('digit', 'mood'))
