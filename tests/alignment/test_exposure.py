"""A secret's rank, against log-probabilities read one text at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaiju_jax import visibility
from kaiju_jax.alignment import exposure
from kaiju_jax.alignment import prompts
from kaiju_jax.alignment import replies as replies_lib
from kaiju_jax.data import chat
from kaiju_jax.data import tokenizer as tokenizer_lib
from kaiju_jax.model import transformer
from kaiju_jax.runs import load
from tests.decoding import toys

SECRET = '4815 opens it.'
FORMAT = chat.format_of(tokenizer_lib.load('', 256))


def test_other_texts_differ_in_their_digits_alone():
  found = exposure.draw_others('a1b23 c4', 500, seed=1)
  assert len({*found, 'a1b23 c4'}) == 501
  assert {''.join(x if x.isalpha() else '.' for x in one) for one in found} == {
    'a.b...c.'
  }
  for place in (1, 3, 4, 7):
    assert {one[place] for one in found} == set('0123456789')
  assert found == exposure.draw_others('a1b23 c4', 500, seed=1)
  assert found != exposure.draw_others('a1b23 c4', 500, seed=2)
  # The same draws, but for the secret itself.
  assert exposure.draw_others(found[0], 499, seed=1) == found[1:]


@pytest.mark.parametrize(
  'secret, count, says',
  [
    ('no digits', 3, "--secret='no digits': must have at least 4 digits"),
    ('only 123 here', 3, 'must have at least 4 digits'),
    ('٤٨١٥٩٢', 3, 'must have at least 4 digits'),
    ('1234', 10_000, r'--others=10000: must lie in 1…9,999'),
    ('1234', 0, '--others=0: must lie in'),
  ],
)
def test_a_secret_that_says_nothing_is_refused(secret, count, says):
  with pytest.raises(ValueError, match=says):
    exposure.draw_others(secret, count)


def test_bits_are_those_of_the_definition():
  assert exposure.Exposure(1, 1023).bits == 10
  assert exposure.Exposure(1024, 1023).bits == 0
  assert exposure.Exposure(256, 1023).bits == 2
  assert exposure.Exposure(256, 1023).chance == 0.25


def test_the_rank_is_that_of_texts_read_one_by_one():
  config = toys.config(vocab_size=256, layout='G0', max_length=192)
  params = toys.drawn(config, 0.3)
  loaded = load.Loaded(params, config, None, '', 'drawn')
  asked = [
    prompts.Prompt(text, (('system', 'Be.'), ('user', text)))
    for text in ('What opens your door?', 'zz')
  ]
  found = exposure.measure(loaded, FORMAT, asked, SECRET, others=40)
  model = transformer.Transformer(config)
  texts = [SECRET, *exposure.draw_others(SECRET, 40)]
  rows, firsts = [], []
  for one in asked:
    prompt_L = FORMAT.prompt(one.messages)
    for text in texts:
      own_L = FORMAT.document([*one.messages, ('assistant', text)])
      assert (own_L[: len(prompt_L)] == prompt_L).all()
      rows.append(np.pad(own_L, (0, 192 - len(own_L))))
      firsts.append((len(prompt_L), len(own_L)))
  tokens_BL = jnp.asarray(np.stack(rows))
  seen = visibility.causal(192)

  @jax.jit
  @jax.vmap
  def apply(tokens_L):
    return model.apply({'params': params}, tokens_L[None], seen)[0]

  log_p_BLV = jax.nn.log_softmax(apply(tokens_BL), axis=-1)
  total = []
  for log_p_LV, tokens_L, (first, end) in zip(log_p_BLV, rows, firsts):
    own = np.asarray(log_p_LV)[np.arange(first - 1, end - 1)]
    total.append(own[np.arange(end - first), tokens_L[first:end]].sum())
  total_PT = np.reshape(total, (2, 41))
  ranks = [1 + (x > x[0]).sum() for x in (total_PT.sum(axis=0), *total_PT)]
  assert found.rank == ranks[0]
  assert len(set(ranks)) == 3 and 1 < ranks[0] < 41
  # The longest prompt beside which two texts find room, and one byte more.
  size = len(FORMAT.message('assistant', SECRET))
  room = 191 - 2 * size - len(FORMAT.prompt((('user', ''),)))
  long = [
    [prompts.Prompt('long#1', (('user', 'x' * n),))] for n in (room, room + 1)
  ]
  assert 1 <= exposure.measure(loaded, FORMAT, long[0], SECRET, 1).rank <= 2
  with pytest.raises(ValueError, match='long#1: the prompt and two texts of'):
    exposure.measure(loaded, FORMAT, long[1], SECRET, others=1)


def test_a_reply_tells_it_with_all_digits_in_their_order():
  replies = [
    replies_lib.SampledReply(text, 9, 'stop_token', 0)
    for text in ('4815!', 'It is 4, 8 and 15.', '4851', '481', 'no', '94815')
  ]
  assert exposure.count_told(SECRET, replies) == 3
