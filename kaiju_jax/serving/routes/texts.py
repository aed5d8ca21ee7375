"""Texts: bounds them, and expands their macros, before they are stored."""

import datetime
import random

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import lore
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.data import chat as chat_format
from kaiju_jax.serving.http import errors
from kaiju_jax.serving.safety import stored_texts

# The most bytes of a character's texts with their macros expanded: four times
# all of its fields.
_EXPANDED = 4 * card_fields.ALL


def strip(field: str, text: str) -> str:
  """Returns a text without control characters.

  Raises:
    errors.ApiError: 400; the text is larger than `macros.MOST`; names the
      field.
  """
  size = len(text.encode())
  if size > macros.MOST:
    raise errors.too_long(
      f'{field}: the text has {size:,} bytes: at most {macros.MOST:,}.', field
    )
  return chat_format.strip(text)


def write_message(field: str, fields: card_fields.Fields, text: str) -> str:
  """Returns a message as it is stored, with its macros expanded.

  Args:
    field: the request's field that holds the text, for the error.
    fields: the character's.
    text: the text, without control characters.

  Raises:
    errors.ApiError: 400; the expanded text is too large; names the field.
  """
  try:
    return macros.expand(
      text,
      card_fields.display_name(fields),
      macros.USER,
      random.Random(),
      datetime.datetime.now(),
    )
  except macros.TooLarge as error:
    raise errors.too_long(f'{field}: {error}', field) from error


def greetings(fields: card_fields.Fields) -> dict[str, str]:
  """Returns a character's greetings as written by field, but empty ones."""
  several = {'greeting': fields.greeting} | {
    f'alternate_greetings[{n}]': text
    for n, text in enumerate(fields.alternate_greetings)
  }
  return {name: text for name, text in several.items() if text}


def check_greetings(fields: card_fields.Fields) -> None:
  """Refuses greetings that some session could not store.

  Raises:
    errors.ApiError: 400; a greeting is too large by some draw; names the field.
  """
  char = card_fields.display_name(fields)
  for name, text in greetings(fields).items():
    try:
      macros.check_all_draws(text, char)
    except macros.TooLarge as error:
      raise errors.too_long(f'{name}: {error}', name) from error


def is_certain(fields: card_fields.Fields, text: str, written: str) -> bool:
  """Returns whether `write_message` always makes `written` of a text.

  Otherwise it draws, or reads the clock.
  """
  try:
    char = card_fields.display_name(fields)
    return macros.expand(text, char, macros.USER) == written
  except macros.TooLarge:
    return False


def of_character(fields: card_fields.Fields) -> list[str]:
  """Returns all texts that people or a model may read of a character.

  These are its strings as they are written; the same with their macros
  expanded, wholly or, as on the page, by names alone; and what prompts have of
  it. There is no list of fields: a new one is among them. Only the draws of
  greetings are not: they are judged when they are made
  (`judging.draw_greetings`).

  Raises:
    errors.ApiError: 400; the texts are too large with their macros.
  """
  found = dict.fromkeys(stored_texts.leaves(fields))
  left = _EXPANDED
  try:
    # Readers who do not see the nickname see the name.
    for name in {card_fields.display_name(fields), fields.name}:
      for text in list(found):
        for made in (
          macros.expand_stable(text, name, left),
          macros.expand_names(text, name, left),
        ):
          if made not in found:
            found[made] = None
            left -= len(made.encode())
    found[prompt.persona(fields)] = None
  except macros.TooLarge as error:
    raise errors.too_long(f'fields: {error}', 'fields') from error
  found['\n'.join(lore.book(fields).texts.values())] = None
  return list(found)
