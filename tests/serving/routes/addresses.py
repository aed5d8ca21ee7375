"""The methods and paths of a server."""

import inspect

from starlette import routing

from kaiju_jax.serving.routes import api


def routes(server):
  """Yields the methods and paths of the application."""
  app = inspect.getclosurevars(api.app(server.context)).nonlocals['app']
  for one in app.routes:
    assert isinstance(one, routing.Route), one
    yield from ((method, one.path) for method in one.methods - {'HEAD'})
