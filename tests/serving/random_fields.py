"""Characters drawn at random, to the edges of what fields may hold."""

import random

from kaiju_jax.characters.cards import card_extensions
from kaiju_jax.characters.cards import card_fields
from kaiju_jax.data import chat
from tests import random_text

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
    )

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
    extensions=card_extensions.filter_plain(extensions, '')[0],
  )
