"""The values that single fields of a request may have."""

from typing import Any

import pydantic

from kaiju_jax.serving.routes import known

# Our guesses. OpenAI allows 4 stop strings, and some clients send more.
STOPS, STOP_LENGTH, CHOICES = 16, 256, 8
PARTS = 1024  # The most parts of a message.


def limit_entries(most: int):
  """Returns a validator that counts entries before any is validated."""

  def check(value: Any) -> Any:
    if isinstance(value, (list, dict)) and len(value) > most:
      raise ValueError(f'has {len(value):,} entries: at most {most:,}')
    return value

  return pydantic.BeforeValidator(check)


def join_parts(value: Any) -> str | None:
  """Returns a message's text; joins a list of parts.

  Raises:
    ValueError: a part that is neither text nor a refusal.
  """
  if value is None or isinstance(value, str):
    return value
  if not isinstance(value, list):
    raise ValueError('must be a string or a list of parts')
  if len(value) > PARTS:
    raise ValueError(f'has {len(value):,} parts: at most {PARTS:,}')
  return ''.join(_read_part(*one) for one in enumerate(value))


def _read_part(number: int, part: Any) -> str:
  kind = part.get('type') if isinstance(part, dict) else None
  if kind not in ('text', 'refusal'):
    raise ValueError(
      f'part {number} has the type {kind!r:.40}, which is not supported:'
      " 'text' and 'refusal' alone are"
    )
  # Each type has its text in the field of its own name.
  text = part.get(kind)
  if not isinstance(text, str | None):
    raise ValueError(f'part {number}: {kind} must be a string')
  for name, one in part.items():
    is_known = name in ('type', kind) or name in known.PART_LABELS
    if not is_known and not known.asks_nothing(one):
      raise ValueError(f'part {number}: {name:.80} is not supported')
  return text or ''


def check_stop(value: Any) -> Any:
  strings = [value] if isinstance(value, str) else value
  if value in (None, ''):
    return None
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
  entries = value if isinstance(value, list) else []
  kinds = set(map(type, entries))
  is_right = kinds in ({str}, {int})
  if kinds == {list} and len(entries) <= CHOICES:
    is_right = all(set(map(type, one)) == {int} for one in entries)
  elif kinds != {int} and len(entries) > CHOICES:
    raise ValueError(f'has {len(value):,} entries: at most {CHOICES}')
  if not is_right:
    raise ValueError(
      'must be a text, a list of texts, a list of tokens, or a list of such'
      ' lists'
    )
  return value
