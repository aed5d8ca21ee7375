"""An ingress finds the replicas of its Ray before it answers."""

import threading
import time

import pytest

from kaiju_jax.app import ingress
from tests.serving.routing import processes


class Ray:
  """Replicas by name; `late` ones answer some seconds after the start."""

  def __init__(self, late):
    self.late = late
    self.processes = {
      name: processes.Process(processes.Local(name)) for name in late
    }
    self.begun = time.monotonic()

  def list(self, prefix):
    return [name for name in self.late if name.startswith(prefix)]

  def transport(self, name):
    ray = self

    class Late(processes.Transport):
      async def subscribe(self, ingress):
        if time.monotonic() < ray.begun + ray.late[name]:
          raise ConnectionError('not yet')
        async for message in super().subscribe(ingress):
          yield message

    return Late(self.processes[name])


@pytest.fixture
def find():
  made = []

  def make(**late):
    ray = Ray({name.replace('_', '-'): x for name, x in late.items()})
    found = ingress.Replicas(ray)
    made.append((ray, found))
    return found

  yield make
  for ray, found in made:
    found.stop()
    for process in ray.processes.values():
      process.kill()
  assert not [x for x in threading.enumerate() if 'replica' in x.name]


def test_all_that_run_are_waited_for(find):
  """One that is added later has lost its conversations to the others."""
  found = find(kaiju_0=0, kaiju_1=0.6, other=0)
  assert found.wait(60).name == 'kaiju-0'
  assert set(found.answered) == {'kaiju-0', 'kaiju-1'}


def test_one_that_does_not_answer_holds_up_nothing(find):
  found = find(kaiju_0=1e9, kaiju_1=0)
  begun = time.monotonic()
  assert found.wait(60, others=0.2).name == 'kaiju-1'
  assert set(found.answered) == {'kaiju-1'} and time.monotonic() < begun + 30


def test_none_at_all_is_an_error(find):
  with pytest.raises(ValueError, match='--replicas=0'):
    find().wait(60)
  with pytest.raises(ValueError, match='no replica has answered in'):
    find(kaiju_0=1e9).wait(0.5)
