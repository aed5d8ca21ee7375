"""Stores of the tests: sqlite, and Redis where it is installed."""

import asyncio
import contextlib
import inspect

import pytest
import uvicorn

from kaiju_jax.serving.http import server as server_lib
from kaiju_jax.serving.stores import sqlite_file
from kaiju_jax.serving.stores import sqlite_store
from tests.serving import hasty
from tests.serving import leftovers
from tests.serving import redis_server


@pytest.fixture(scope='session', autouse=True)
def nothing_is_left_of_a_server():
  """Has every server of the tests end without a task or a connection."""
  running = server_lib.running

  @contextlib.contextmanager
  def checked(*arguments, **options):
    with running(*arguments, **options) as server:
      yield server
    found = leftovers.of_server(server)
    assert not found, found

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(server_lib, 'running', checked)
    # uvicorn sleeps for a fifth of a second in each server that stops.
    hasty.shorten(patch, uvicorn.server)
    yield


@pytest.fixture(scope='session')
def shared_redis():
  """One server of all tests that leave it alone; each takes a prefix."""
  server = redis_server.Server(has_log=False)
  yield server
  server.close()


@pytest.fixture
def start_redis():
  """Returns a function that starts a server of one test."""
  servers = []

  def start(*arguments):
    servers.append(redis_server.Server(*arguments))
    return servers[-1]

  yield start
  for server in servers:
    server.close()


@pytest.fixture
def redis_alone(start_redis):
  """A server that a test may kill, and that loses nothing."""
  return start_redis(True)


@pytest.fixture(params=redis_server.STORES)
def make_store(request, tmp_path, monkeypatch):
  """Returns a function that opens one store, again and again.

  Its arguments are those of a store, without the place.
  """
  opened = []
  if request.param == 'sqlite':
    # No test here cuts the power.
    monkeypatch.setattr(sqlite_file, 'SYNCHRONOUS', 'OFF')

    def make(*values, place='store', **named):
      path = tmp_path / f'{place}.sqlite'
      opened.append(sqlite_store.SqliteStore(path, *values, **named))
      return opened[-1]
  else:
    from kaiju_jax.serving.stores import redis_store

    server = request.getfixturevalue('shared_redis')

    def make(*values, place='store', **named):
      prefix = f'{request.node.name}:{place}:'
      opened.append(
        redis_store.RedisStore(server.address, *values, prefix=prefix, **named)
      )
      return opened[-1]

  yield make
  for store in opened:
    store.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
  """Runs a test that is a coroutine in an event loop of its own."""
  if inspect.iscoroutinefunction(pyfuncitem.obj):
    names = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{x: pyfuncitem.funcargs[x] for x in names})

    async def bounded():
      async with asyncio.timeout(200):
        await test

    asyncio.run(bounded())
    return True
  return None
