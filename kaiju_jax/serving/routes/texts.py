"""Texts: bounds them, and expands their macros, before they are stored."""

import datetime
import random

from kaiju_jax.characters.cards import card_fields
from kaiju_jax.characters.prompts import macros
from kaiju_jax.data import chat as chat_format
from kaiju_jax.serving.http import errors


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


def greetings(fields: card_fields.Fields) -> list[str]:
  """Returns a character's greetings, as a session stores them.

  Raises:
    errors.ApiError: 400; an expanded greeting is too large; names the field.
  """
  several = {'greeting': fields.greeting} | {
    f'alternate_greetings[{n}]': text
    for n, text in enumerate(fields.alternate_greetings)
  }
  return [
    write_message(name, fields, text) for name, text in several.items() if text
  ]
