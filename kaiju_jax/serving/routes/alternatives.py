"""Alternatives (`top_logprobs`): whether a request may have as many.

The likeliest tokens that were not drawn are text that no head has judged. So a
moderated server gives none unless its operator says so, and then only those of
tokens that were released.
"""

from kaiju_jax.serving.http import errors
from kaiju_jax.serving.routes import context as context_lib

# Alternatives of all tokens of an answer, some 5 MiB of JSON; our guess.
MOST = 2**17


def check(
  context: context_lib.Context, field: str, count: int, tokens: int
) -> None:
  """Refuses alternatives that the server does not give, or too many.

  Args:
    context: the server's parts.
    field: the request's field that asks for them.
    count: alternatives of each token; 0 for none.
    tokens: the tokens of all choices that may have some; a lower bound while a
      prompt is not encoded.

  Raises:
    errors.ApiError: 400; names the field, its value and what is right.
  """
  if not count:
    return
  most = context.engines.alternatives
  if count > most:
    raise errors.invalid(
      f'{field}={count}: must be 0…{most} here; the server is started with'
      ' --top_logprobs=K for up to K.',
      param=field,
    )
  if context.moderator.mode != 'unmoderated' and not context.shows_unjudged:
    raise errors.invalid(
      f'{field}={count}: must be 0 on a moderated server, because nothing'
      ' judges alternatives; --unjudged_top_logprobs gives them all the same.',
      param=field,
    )
  if count * tokens > MOST:
    raise errors.invalid(
      f'{field}={count}: of {tokens:,} tokens that are {count * tokens:,}'
      f' alternatives, and an answer has at most {MOST:,}.',
      param=field,
    )
