"""Replies that loop are counted, in whatever way they are drawn."""

import types

import numpy as np
import pytest

from kaiju_jax.experiments.studies import loops

EIGHT = 'one two three four five six seven eight'


@pytest.mark.parametrize(
  'text, wanted',
  [
    ('', False),
    (EIGHT, False),
    (f'{EIGHT}! {EIGHT}, {EIGHT}', False),  # Their last words differ.
    (f'{EIGHT} and {EIGHT}', False),
    (f'{EIGHT} and {EIGHT} or {EIGHT.title()}', True),
    ('ha ' * 9, False),
    ('ha ' * 10, True),  # Begins at three places.
  ],
)
def test_a_loop_is_eight_words_three_times(text, wanted):
  assert loops.has_loop(text) == wanted


def reply(text, reason='stop_token', scores=(0.0,)):
  return types.SimpleNamespace(
    text=text, reason=reason, log_probabilities=np.array(scores)
  )


def test_a_reply_is_bad_once_and_said_before_only_in_its_conversation():
  looped = reply('ha ' * 10, 'length', [np.log(0.5)])
  fine = reply(f'{EIGHT} nine', scores=[np.log(0.25), np.log(0.5)])
  again = reply(f'well, {EIGHT}', 'length', [np.log(0.5)] * 2)
  row = loops.score('so', [[looped, fine], [fine, again]])
  row = dict(zip(loops._COLUMNS, row))
  assert row['replies'] == 4 and tuple(row['loop or at the limit']) == (2, 4)
  assert row['loop'] == 1 and row['at the limit'] == 2
  assert row['said before'] == 1 and row['words'] == '9'
  # One word of ten and nine of nine; ten of eighteen.
  assert row['distinct-1'] == f'{(10 / 19 + 10 / 18) / 2:.2f}'
  assert row['perplexity'] == f'{2 ** (9 / 7):.1f}'


def test_a_way_to_draw_is_read_whole_or_refused():
  read = loops.parse('temperature=0.7,top_k=40,dry_multiplier=0.8')
  assert read == {'temperature': 0.7, 'top_k': 40, 'dry_multiplier': 0.8}
  assert type(read['top_k']) is int and loops.parse('') == {}
  for wrong in 'temperature', 'heat=1', 'top_k=1.5', 'temperature=-1':
    with pytest.raises(ValueError, match=f'--loops=min_p=0.1,{wrong}'):
      loops.parse(f'min_p=0.1,{wrong}')
