"""Characters drawn at random, to the edges of what fields may hold."""

import random

from kaiju_jax.characters.cards import card_extensions
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.cards import lore_rules
from kaiju_jax.data import chat
from tests import random_text

READ = sorted(lore_rules.READ - {'extensions', 'scan_depth'})
SPECIAL = (
  *('{{char}}', '{{user}}', '<BOT>', '{{random:a,b}}', '<START>', '\n', '\t'),
  *('"', '\\', '/', '/a+/i', '@@depth 4', '<script>', '\x00', '\r\n', ' ', '.'),
)


def draw(rng: random.Random) -> card_fields.Fields:
  """Returns fields that pass the check."""

  def text(longest=40):
    return chat.strip(random_text.draw(rng, longest, SPECIAL))

  def line():
    return card_fields.line(random_text.draw(rng, 20, SPECIAL))[:100].strip()

  def lines(most=3):
    return tuple(line() or 'x' for _ in range(rng.randrange(most + 1)))

  def lore():
    return card_fields.Lore(
      keys=lines(),
      content=text(),
      is_constant=rng.random() < 0.3,
      secondary_keys=lines(2),
      is_enabled=rng.random() < 0.8,
      order=rng.choice([0, 1, -5, 2**31 - 1]),
      name=line(),
      other=plain({'extensions': mapping(), 'position': 'before_char'})
      if rng.random() < 0.5
      else {},
    )

  def plain(value):
    return card_extensions.filter_plain(value, '')[0]

  def mapping():
    odd = rng.choice([None, 0, 2, '50', 'x', True, [], -1, 1e9])
    return {line(): value(), rng.choice(READ): odd}

  def value(depth=0):
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind == 5:
      return [value(depth + 1) for _ in range(rng.randrange(3))]
    if kind == 6:
      return {line(): value(depth + 1) for _ in range(rng.randrange(3))}
    return (None, True, rng.randrange(-(10**20), 10**20), rng.random(), line())[
      kind
    ]

  extensions = {line(): value() for _ in range(rng.randrange(4))}
  if rng.random() < 0.5:
    within = {'prompt': text(), 'depth': rng.choice([0, 4, None, 'x'])}
    extensions['depth_prompt'] = within
  return card_fields.Fields(
    name=line() or 'Ada',
    nickname=line(),
    description=text(200),
    personality=text(),
    scenario=text(),
    greeting=text(),
    alternate_greetings=tuple(text() for _ in range(rng.randrange(3))),
    examples=text(100),
    system_prompt=text(),
    post_history=text(),
    lore=tuple(lore() for _ in range(rng.randrange(4))),
    creator=line(),
    notes=text(),
    tags=lines(),
    version_name=line(),
    extensions=plain(extensions),
    other={
      part: plain({f'x {line()}': rng.random()} | mapping())
      for part in rng.sample(card_fields.OTHER, rng.randrange(4))
    },
  )
