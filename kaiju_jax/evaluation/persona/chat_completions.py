"""Asks a server with OpenAI's chat completions, through openai-python."""

import contextlib
from typing import Any


class Refused(RuntimeError):
  """A server did not answer; the message is one line and names it."""


def ask(client: Any, **request: Any) -> str:
  """Returns the text of a chat completion; '' for none.

  Args:
    client: an `openai.OpenAI`.
    **request: the request's fields.

  Raises:
    Refused: the server refuses the request, fails, or cannot be reached.
  """
  with _reporting(client):
    completion = client.chat.completions.create(**request)
    return completion.choices[0].message.content or ''


def served_model(client: Any) -> str:
  """Returns the name of the only model that a server serves.

  MODEL/CHARACTER is MODEL with a character, and no other one.

  Raises:
    Refused: the server does not list its models, or lists none or several.
  """
  with _reporting(client):
    names = [one.id for one in client.models.list()]
  models = [
    name
    for name in names
    if not any(name.startswith(f'{other}/') for other in names)
  ]
  if len(models) != 1:
    listed = ', '.join(models[:8]) or 'none'
    raise Refused(
      f'{client.base_url}: name one of its {len(models)} models with'
      f' --endpoint_model: {listed:.400}.'
    )
  return models[0]


@contextlib.contextmanager
def _reporting(client: Any):
  """Raises what a client raises as `Refused`, with the server's own words."""
  try:
    yield
  except (AttributeError, IndexError, TypeError, ValueError) as error:
    raise Refused(
      f'{client.base_url}: the answer is not one of the OpenAI API'
    ) from error
  except Exception as error:
    import openai

    if not isinstance(error, openai.OpenAIError):
      raise
    body = getattr(error, 'body', None)
    said = body.get('message') if isinstance(body, dict) else None
    words = ' '.join(str(said or error).split())
    raise Refused(f'{client.base_url}: {words:.500}') from error
