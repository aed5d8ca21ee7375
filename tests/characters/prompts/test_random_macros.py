"""Macros within macros, drawn with all texts that they may become."""

import itertools
import random

from kaiju_jax.characters.prompts import macros

COUNT = 400


def _draw(rng, depth=0):
  """Returns a text with macros, and the set of what it may become."""
  made = [_draw_part(rng, depth) for _ in range(rng.randint(0, 3))]
  texts = itertools.product(*(some for _, some in made))
  return ''.join(x for x, _ in made), {''.join(one) for one in texts}


def _draw_part(rng, depth):
  plain = rng.choice(['a', 'é', ' x ', '🐉', '{', '}', '}}', '<b>', '//', '::'])
  if depth and plain in ('}}', '}', '{', '::'):
    plain = ' y '  # These would end, or split, the macro around them.
  kind = rng.randrange(9 if depth < 3 else 4)
  if kind < 2:
    return plain, {plain}
  if kind == 2:
    name = rng.choice(['{{char}}', '{{ CHAR }}', '<BOT>', '<char>'])
    return name, {'Ada'}
  if kind == 3:
    return rng.choice(['{{user}}', '<User>']), {'Bo'}
  inner, some = _draw(rng, depth + 1)
  if kind == 4:
    mark = rng.choice(['// ', 'comment: ', 'hidden_key:'])
    return '{{' + mark + inner + '}}', {''}
  if kind == 5:
    reversed_ = {one[::-1].strip() for one in some}
    return '{{reverse:' + inner + '}}', reversed_
  if kind == 6:
    dice = rng.randint(1, 9)
    return '{{roll:' + f'{dice}d1' + '}}', {str(dice)}
  if kind == 7:
    name = rng.choice(['getvar::', 'unknown '])
    return '{{' + name + inner + '}}', {'{{' + name + x + '}}' for x in some}
  choices = [(inner, some)] + [
    _draw(rng, depth + 1) for _ in range(rng.randint(1, 2))
  ]
  ways = ('random:', ','), ('pick:', ','), ('random::', '::')
  name, mark = rng.choice(ways)
  text = '{{' + name + mark.join(x for x, _ in choices) + '}}'
  return text, {one.strip() for _, some in choices for one in some}


def test_what_random_texts_become():
  rng = random.Random(0)
  several = 0
  for _ in range(COUNT):
    text, some = _draw(rng)
    if len(some) > 40:
      continue
    drawn = {
      macros.expand(text, 'Ada', 'Bo', random.Random(seed))
      for seed in range(20 * len(some))
    }
    assert drawn <= some, (text, drawn - some)
    # Choices are even at each macro alone, so that some are rare.
    assert len(drawn) >= min(len(some), 2), text
    several += len(some) > 1
  assert several > COUNT / 10


def test_what_a_choice_hides_shows_nowhere():
  for text in (
    'a{{// secret {{random:a,b}} }}b',
    'a{{//secret}}b',
    'a{{comment: {{reverse:terces}} }}b',
    'a{{// secret {{// secret }} secret }}b',
    'a{{//}} secret {{///}}b',
    'a{{hidden_key: {{char}} secret}}b',
  ):
    made = macros.expand(text, 'Ada', 'Bo', random.Random(0))
    assert made in ('ab', 'a b'), text
