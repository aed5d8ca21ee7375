"""Resources: what the routes of characters and of sessions share."""

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from starlette import requests
from starlette import responses

from kaiju_jax.serving.routes import forgetting
from kaiju_jax.serving.routes import intake
from kaiju_jax.serving.stores import characters


def page(
  data: list[dict],
  found: Sequence[characters.Character | characters.Session],
  has_more: bool,
) -> dict[str, Any]:
  """Returns a page of a listing, in OpenAI's form.

  Args:
    data: the entries as plain data.
    found: the same entries as the store returned them.
    has_more: whether there may be more entries.

  Returns:
    The page; the query parameter `after` set to its `after` gives the next one.
  """
  return {
    'object': 'list',
    'data': data,
    'has_more': has_more,
    'after': characters.cursor(found[-1]) if found else None,
  }


async def remove(
  request: requests.Request,
  kind: str,
  method: Callable[[characters.Store], Callable[[str, str], None]],
  plan: Callable[..., Awaitable[forgetting.Forget]],
) -> responses.Response:
  """Answers a DELETE of what the path names, once nothing is left of it.

  Args:
    request: the request.
    kind: 'character' or 'session'.
    method: returns the store's method that removes it, of owner and id.
    plan: returns what forgets what is cached of it, of context, owner and id.

  Raises:
    errors.ApiError: 403 or 404; 503 where the store is away.
  """
  context, caller = await intake.authorize(request)
  name = request.path_params['id']
  forget = await plan(context, caller.owner, name)
  await forget()
  await context.run_store(method(context.store), caller.owner, name)
  await forget()
  return responses.JSONResponse({'id': name, 'object': kind, 'deleted': True})
