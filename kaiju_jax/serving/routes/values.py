"""The values that single fields of a request may have."""

from typing import Any

import pydantic

# Our guesses. OpenAI allows 4 stop strings, and some clients send more.
STOPS, STOP_LENGTH, CHOICES = 16, 256, 8
PARTS = 1024  # The most parts of a message.


def refuse_any(value: Any) -> None:
  """Refuses every value but None, 'none' and empty lists and objects."""
  if value not in (None, [], {}, 'none'):
    raise ValueError('is not supported')


def limit_entries(most: int):
  """Returns a validator that counts entries before any is validated."""

  def check(value: Any) -> Any:
    if isinstance(value, (list, dict)) and len(value) > most:
      raise ValueError(f'has {len(value):,} entries: at most {most:,}')
    return value

  return pydantic.BeforeValidator(check)


def join_parts(value: Any) -> str | None:
  """Returns a message's text; joins a list of text parts.

  Raises:
    ValueError: a part of another type than text.
  """
  if value is None or isinstance(value, str):
    return value
  if not isinstance(value, list):
    raise ValueError('must be a string or a list of parts')
  if len(value) > PARTS:
    raise ValueError(f'has {len(value):,} parts: at most {PARTS:,}')
  for number, part in enumerate(value):
    kind = part.get('type') if isinstance(part, dict) else None
    if kind != 'text':
      raise ValueError(
        f'part {number} has the type {kind!r:.40}, which is not supported:'
        " 'text' alone is"
      )
    if part.keys() != {'type', 'text'} or not isinstance(part['text'], str):
      raise ValueError(f'part {number} must have a string "text", and no more')
  return ''.join(part['text'] for part in value)


def check_stop(value: Any) -> Any:
  strings = [value] if isinstance(value, str) else value
  if value is None:
    return value
  if not isinstance(strings, list):
    raise ValueError('must be a string or a list of strings')
  if len(strings) > STOPS:
    raise ValueError(f'{len(strings)} strings: at most {STOPS} are supported')
  for string in strings:
    if not isinstance(string, str) or not 1 <= len(string) <= STOP_LENGTH:
      raise ValueError(f'each must be a string of 1…{STOP_LENGTH} characters')
  return value


def check_prompt(value: Any) -> str | list:
  """Returns a text, a list of texts, a list of tokens or a list of those.

  Raises:
    ValueError: another value, an empty list or too many prompts.
  """
  if isinstance(value, str):
    return value
  if value == []:
    raise ValueError('is empty')
  kinds = set(map(type, value)) if isinstance(value, list) else set()
  is_right = kinds in ({str}, {int})
  if kinds == {list} and len(value) <= CHOICES:
    is_right = all(set(map(type, one)) == {int} for one in value)
  elif kinds != {int} and len(value) > CHOICES:
    raise ValueError(f'has {len(value):,} entries: at most {CHOICES}')
  if not is_right:
    raise ValueError(
      'must be a text, a list of texts, a list of tokens, or a list of such'
      ' lists'
    )
  return value
