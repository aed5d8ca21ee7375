"""Lookup: which character a request means."""

from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib


def find_character(
  context: context_lib.Context, model: str, character: str | None
) -> str | None:
  """Returns the id of the character that a request names; None for none.

  Args:
    context: the server's parts.
    model: the field `model`: the served model's name, or `MODEL/CHARACTER`.
    character: the field `character`; None where the request has none.

  Raises:
    errors.ApiError: 404 for another model; 400 where the two fields name two
      characters.
  """
  name, _, named = model.removeprefix(context.model.name).partition('/')
  if not model.startswith(context.model.name) or name:
    raise errors.missing(
      f'model {model!r} is not served here: {context.model.name!r} is.',
      param='model',
    )
  if named and character not in (None, named):
    raise errors.invalid(
      f'character={character!r}: the model names {named!r}.', param='character'
    )
  return named or character
