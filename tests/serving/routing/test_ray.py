"""Two replicas and two ingresses under Ray, as `make fleet` starts them.

One command starts all of it. Replicas and an ingress are killed, and no client
sees it; then a signal ends everything, and nothing is left. KILLS=50 kills more
replicas than five.
"""

import asyncio
from concurrent import futures
import functools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

from kaiju_jax.app import operate
from kaiju_jax.app import replicas
from kaiju_jax.app import settings as settings_lib
from kaiju_jax.decoding.requests import request as request_lib
from kaiju_jax.interchange import own
from kaiju_jax.model import config as model_config
from kaiju_jax.serving.routing import ray_local
from kaiju_jax.serving.routing import remote_replica
from tests import ports
from tests.decoding import toys
from tests.serving import redis_server

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1200)]
KILLS = int(os.environ.get('KILLS', '5'))
PLANTED = 'Zwockelfjord'
TOKEN = 'a' * 64
LENGTH, MOST = 512, 160


class Fleet:
  """The processes of one command.

  Attributes:
    url, key: as it printed them.
    ray: the address of its Ray.
    joined: that Ray.
    folder: where it keeps files, TMPDIR among them.
    store: the Redis with conversations and the table.
    metrics: the ingresses' ports of metrics.
    remotes: the replicas, as this process reaches them.
    pages: global pages of both.
  """

  def __init__(self, folder: pathlib.Path, model: pathlib.Path, store):
    self.folder, self.store = folder, store
    first = ports.free()
    self.metrics = first, first + 1
    self._log = (folder / 'log').open('w+')
    (folder / 'tmp').mkdir()
    environment = {'TMPDIR': str(folder / 'tmp'), 'RAY_AUTH_TOKEN': TOKEN}
    self.process = subprocess.Popen(
      [
        *(sys.executable, '-m', 'experiments.serve', '--ray=auto'),
        *('--replicas=2', '--ingresses=2', '--port=0', '--reference'),
        *(
          f'--model={model}',
          f'--store={store.address}',
          f'--folder={folder}/server',
        ),
        *(f'--metrics_port={self.metrics[0]}', f'--length={LENGTH}'),
        *('--rows=4', '--kept=16', '--chunk=64', '--grace=5', '--log=faults'),
      ],
      stdout=self._log,
      stderr=subprocess.STDOUT,
      env=os.environ | environment,
    )

  def begin(self):
    """Waits until both replicas answer, here and at both ingresses."""
    said = self.wait(self._greeting, 900)
    ((self.url, self.key),) = re.findall(r'Chat: +(\S+)/#key=(\S+)', said)
    (self.ray,) = re.findall(r'Ray: (\S+)', said)
    self.joined = self._join()
    self.remotes = [
      remote_replica.RemoteReplica(name, self.joined.transport(name))
      for name in ('kaiju-0', 'kaiju-1')
    ]
    for remote in self.remotes:
      remote.start()
      assert remote.wait(60)
    states = [asyncio.run(remote.status()) for remote in self.remotes]
    self.pages = sum(
      count
      for state in states
      for (kind, _), count in state.reading.pages.items()
      if kind == 'global'
    )
    self.wait_for_both()

  def _join(self):
    os.environ.update(ray_local.environment() | {'RAY_AUTH_TOKEN': TOKEN})
    # Not before: Ray reads its environment as it is imported.
    from kaiju_jax.serving.routing import ray_app

    return ray_app.join(self.ray)

  def leave(self):
    """Leaves the Ray, which would take this process with it."""
    for remote in self.remotes:
      remote.stop()
    self.joined.stop()

  def end(self):
    """Ends whatever a failed test has left."""
    for number in self.children():
      os.kill(number, signal.SIGKILL)
    self.process.wait()
    self._log.close()

  def words(self) -> str:
    return (self.folder / 'log').read_text()

  def children(self) -> dict[int, str]:
    """Returns all processes that descend from the command, by number."""
    parents, names = {}, {}
    for path in pathlib.Path('/proc').glob('[0-9]*'):
      try:
        stat = (path / 'stat').read_text()
        name = (path / 'cmdline').read_bytes().replace(b'\0', b' ').decode()
      except OSError:
        continue
      number = int(path.name)
      parents[number] = int(stat.rpartition(')')[2].split()[1])
      names[number] = name
    found, last = {self.process.pid}, set()
    while found != last:
      last = set(found)
      found |= {x for x, parent in parents.items() if parent in found}
    return {x: names[x] for x in found if names.get(x)}

  def processor_seconds(self) -> float:
    """Returns those of its living processes, and of their ended children."""
    total = 0
    for number in self.children():
      stat = pathlib.Path(f'/proc/{number}/stat').read_text()
      total += sum(map(int, stat.rpartition(')')[2].split()[11:15]))
    return total / os.sysconf('SC_CLK_TCK')

  def find(self, word: str) -> list[int]:
    return sorted(x for x, name in self.children().items() if word in name)

  def ask(self, path: str, body: dict | None = None) -> dict:
    with urllib.request.urlopen(self._request(path, body), timeout=60) as said:
      return json.loads(said.read())

  def stream(self, seed: int, note=lambda count: None) -> str:
    """Returns the text of a completion; calls `note` at each piece of it."""
    body = {
      'model': 'tiny',
      'prompt': f'{PLANTED} {seed % 2}',
      'max_tokens': MOST,
      'seed': seed,
      'stream': True,
    }
    pieces, is_done = [], False
    request = self._request('/v1/completions', body)
    with urllib.request.urlopen(request, timeout=120) as answer:
      for line in map(bytes.decode, answer):
        if line.startswith('data: [DONE]'):
          is_done = True
        elif line.startswith('data: '):
          event = json.loads(line.removeprefix('data: '))
          assert 'error' not in event, event
          pieces += [one['text'] for one in event['choices']]
          note(len(pieces))
    assert is_done
    return ''.join(pieces)

  def operate(self) -> list[operate.Server]:
    """Returns the ingresses, to operators' commands."""
    key = operate.load_key(f'{self.folder}/server')
    return [operate.Server(port, key) for port in self.metrics]

  def say(self, session: str, text: str) -> float:
    """Sends a message; returns the share of its prompt that was cached."""
    body = {
      'model': 'tiny',
      'session': session,
      'messages': [{'role': 'user', 'content': text}],
      'max_tokens': 4,
    }
    usage = self.ask('/v1/chat/completions', body)['usage']
    cached = usage['prompt_tokens_details']['cached_tokens']
    return cached / usage['prompt_tokens']

  def wait_for_both(self):
    """Waits until both ingresses reach both replicas."""
    self.wait(lambda: self._count_pages() == self.pages, 120)

  def _greeting(self) -> str:
    assert self.process.poll() is None, self.words()
    said = self.words()
    return said if 'Ctrl-C' in said else ''

  def _count_pages(self) -> int:
    """Returns the pages of the replicas that answer each ingress: the least."""
    counts = []
    for port in self.metrics:
      try:
        url = f'http://127.0.0.1:{port}/metrics'
        with urllib.request.urlopen(url, timeout=10) as answer:
          said = answer.read().decode()
      except OSError:
        return 0
      found = re.findall(
        r'kaiju_pages\{kind="global",state="\w+"\} (\S+)', said
      )
      counts.append(int(sum(map(float, found))))
    return min(counts)

  def _request(self, path: str, body: dict | None) -> urllib.request.Request:
    headers = {
      'Authorization': f'Bearer {self.key}',
      'Content-Type': 'application/json',
    }
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(self.url + path, data, headers)

  def wait(self, find, seconds: float):
    """Returns what `find` finds; asks it for so many seconds."""
    end = time.monotonic() + seconds
    while not (found := find()):
      assert time.monotonic() < end, self.words()
      time.sleep(0.1)
    return found


@pytest.fixture(scope='module')
def fleet():
  assert redis_server.PROGRAM, 'no redis-server here'
  # Sockets of Ray need a short path.
  folder = pathlib.Path(tempfile.mkdtemp(prefix='f-', dir='/tmp'))
  config = model_config.ModelConfig(
    layout='L0 G1', d_model=32, d_ff=64, num_heads=2, head_dim=16, window=64
  )
  model = folder / 'tiny'
  model.mkdir()
  own.save(model / own.WEIGHTS, toys.drawn(config), config)
  store = redis_server.Server(False)
  made = None
  try:
    made = Fleet(folder, model, store)
    made.begin()
    yield made
  finally:
    if made is not None:
      made.end()
    store.close()
    shutil.rmtree(folder)


@pytest.fixture(scope='module')
def wanted(fleet):
  """Returns the texts by seed, which nobody has disturbed."""
  found = {seed: fleet.stream(seed) for seed in range(4)}
  assert len(set(found.values())) == 4
  return found


def ask_all(fleet, note=lambda count: None):
  with futures.ThreadPoolExecutor(4) as threads:
    texts = threads.map(lambda seed: fleet.stream(seed, note), range(4))
    return dict(enumerate(texts))


def test_one_command_serves_by_two_replicas(fleet, wanted):
  assert len(fleet.find('ray::ServeReplica:kaiju-')) == 2
  assert fleet.ask('/v1/server')['model'] == 'tiny'
  assert ask_all(fleet) == wanted
  states = [asyncio.run(remote.status()) for remote in fleet.remotes]
  assert min(state.reading.points for state in states) > 0


def draw(remote, length):
  """Returns the tokens that follow a prompt, and their log-probabilities."""
  request = request_lib.Request(list(range(1, length)), 12)

  async def follow():
    (stream,) = await remote.submit(request)
    tokens = [event.token async for event in stream]
    assert stream.result().tokens.tolist() == tokens
    return tokens, stream.result().log_probabilities.tolist()

  return asyncio.run(follow())


def test_each_replica_gives_the_same_text(fleet):
  one, other = (draw(remote, 40) for remote in fleet.remotes)
  assert one == other
  assert fleet.remotes[0].build == fleet.remotes[1].build != ''


def test_a_mesh_answers_as_one_device_does(fleet):
  """The ring turns and a page is resumed; the devices are simulated."""
  settings = settings_lib.Settings(
    model=f'{fleet.folder}/tiny',
    folder=f'{fleet.folder}/server',
    tensor=2,
    length=LENGTH,
    rows=1,
    chunk=64,
    cache=2**21,
    points='none',
    reference=True,
  )
  make = functools.partial(replicas.make, settings, ())
  fleet.joined.deploy(['mesh'], make, settings.tensor)
  mesh = remote_replica.RemoteReplica('mesh', fleet.joined.transport('mesh'))
  mesh.start()
  try:
    assert mesh.wait(60) and mesh.build == fleet.remotes[0].build
    for length in 30, 200, 150:
      assert draw(mesh, length) == draw(fleet.remotes[0], length)
  finally:
    mesh.stop()


def test_a_replica_asks_for_as_many_gpus_as_devices(fleet, monkeypatch):
  from kaiju_jax.serving.routing import ray_app

  found = []
  monkeypatch.setattr(ray_app.ray, 'cluster_resources', lambda: {'GPU': 5.0})
  monkeypatch.setattr(ray_app.serve, 'run_many', found.extend)
  mine = ray_app.Ray(fleet.ray, is_ours=False)
  mine.deploy(['a', 'b'], replicas.make, 2)
  needs = {'num_cpus': 0, 'num_gpus': 2}
  for one in found:
    options = one.target._bound_deployment.ray_actor_options
    assert needs.items() <= options.items()
  assert [one.name for one in found] == ['a', 'b']
  with pytest.raises(ValueError, match=r'--replicas=2, --tensor=3: .* most 5'):
    mine.deploy(['a', 'b'], replicas.make, 3)


def test_refusals_cross_with_their_type(fleet):
  wrong = request_lib.Request([1], 4, stop_strings=(PLANTED, ''))
  with pytest.raises(ValueError, match='stop'):
    asyncio.run(fleet.remotes[0].submit(wrong))
  wrong = request_lib.Request([1], 4, owner=PLANTED, priority='high')
  with pytest.raises(TypeError, match="priority='high'"):
    asyncio.run(fleet.remotes[0].submit(wrong))
  with pytest.raises(urllib.error.HTTPError) as error:
    fleet.ask('/v1/completions', {'model': 'tiny', 'prompt': PLANTED, 'n': 0})
  assert error.value.code == 400


def test_killed_replicas_lose_nothing(fleet, wanted):
  """No error reaches a client; texts are equal, nothing lost or doubled."""
  draw = random.Random(27)
  guard = threading.Lock()
  for number in range(KILLS):
    fleet.wait_for_both()
    at, killed = draw.randrange(1, MOST // 2), []

    def note(count, at=at, killed=killed, number=number):
      with guard:
        if count < at or killed:
          return
        # The one that has texts to lose; in turn where both have.
        for remote in fleet.remotes[number % 2 :] + fleet.remotes:
          if asyncio.run(remote.status()).running:
            (victim,) = fleet.find(f'ray::ServeReplica:{remote.name}')
            os.kill(victim, signal.SIGKILL)
            killed.append(remote.name)
            return

    for _ in range(10):
      assert ask_all(fleet, note) == wanted
      # On a busy machine all texts may have ended before one was found.
      if killed:
        break
    assert killed
  fleet.wait_for_both()


def test_a_killed_ingress_is_not_missed(fleet, wanted):
  ingresses = fleet.find('spawn_main')
  assert len(ingresses) == 2
  os.kill(ingresses[0], signal.SIGKILL)
  end = time.monotonic() + 3
  while time.monotonic() < end:
    fleet.ask('/v1/server')
  assert ask_all(fleet) == wanted
  fleet.wait_for_both()
  assert len(fleet.find('spawn_main')) == 2
  assert 'Ingress 0 ended with -9' in fleet.words()


def test_hits_come_back_after_the_table_is_lost(fleet):
  """With an ingress that was killed with it, and so knows no session.

  Each replica could keep all sessions. A sixth turn fills the context.
  """
  fields = {'name': 'Bo', 'description': 'A dog.', 'greeting': 'Woof.'}
  character = fleet.ask('/v1/characters', {'fields': fields})['id']
  opens = {'character': character}
  sessions = [fleet.ask('/v1/sessions', opens)['id'] for _ in range(12)]
  for turn in range(2):
    before = [fleet.say(one, f'turn {turn}') for one in sessions]
  assert sum(before) / len(before) > 0.6
  with fleet.store.client() as client:
    old = client.keys('kaiju:affinity:*')
    assert len(old) > 2 and client.delete(*old) == len(old)
  os.kill(fleet.find('spawn_main')[0], signal.SIGKILL)
  start = time.monotonic()
  with fleet.store.client() as client:

    def count():
      return sum(map(client.zcard, client.keys('kaiju:affinity:*:s:*')))

    fleet.wait(lambda: count() >= len(sessions), 5)
  table = time.monotonic() - start
  rates, back = [], None
  for _ in range(3):
    rates.append(_say_more(fleet, sessions))
    if rates[-1] > 0.95 * sum(before) / len(before):
      back = time.monotonic() - start
      break
    # The next turn is told to the ingress that has started again, too.
    fleet.wait_for_both()
  assert back is not None and back < 60, rates
  print(f'table after {table:.1f} s, hits after {back:.1f} s, {len(old)} keys')
  fleet.wait_for_both()


def _say_more(fleet, sessions):
  """Returns the mean share of prompts that was cached, in one more turn."""
  rates = []
  for one in sessions:
    try:
      rates.append(fleet.say(one, 'more'))
    except (OSError, urllib.error.URLError):
      rates.append(0.0)  # A connection of the killed ingress.
  return sum(rates) / len(rates)


def test_a_rollout_and_a_drain_lose_nothing(fleet, wanted):
  """The replica is taken off; the other one gives all texts."""
  servers = fleet.operate()
  with futures.ThreadPoolExecutor(1) as thread:
    start = time.monotonic()
    for server in servers:
      server.ask('rollout', {'of': 'kaiju-1', 'hold': 0.5})
    texts = thread.submit(ask_all, fleet)
    fleet.wait(
      lambda: all(x.ask()['rollouts'][-1]['state'] == 'done' for x in servers),
      60,
    )
    rolled = time.monotonic() - start
    assert texts.result() == wanted
    texts, start = thread.submit(ask_all, fleet), time.monotonic()
    for server in servers:
      server.ask('drain', {'of': 'kaiju-1', 'seconds': 1})
    drained = time.monotonic() - start
    assert texts.result() == wanted
  assert drained < 100
  print(f'rolled out in {rolled:.1f} s, drained in {drained:.1f} s')
  for server in servers:
    (state,) = [x for x in server.ask()['replicas'] if x['name'] == 'kaiju-1']
    assert state['is_closing'] and state['running'] == 0
  assert ask_all(fleet) == wanted


def test_nothing_listens_to_other_machines(fleet):
  """Of all processes of the server, Ray's among them."""
  sockets = {}
  for kind in 'tcp', 'tcp6':
    for line in pathlib.Path(f'/proc/net/{kind}').read_text().splitlines()[1:]:
      fields = line.split()
      if fields[3] == '0A':  # It listens.
        sockets[fields[9]] = fields[1].partition(':')[0]
  local = {
    '0100007F',
    '0000000000000000FFFF00000100007F',
    f'{"0" * 24}01000000',
  }
  found = []
  for process, name in fleet.children().items():
    for path in pathlib.Path(f'/proc/{process}/fd').iterdir():
      try:
        target = os.readlink(path)
      except OSError:
        continue
      address = sockets.get(target.removeprefix('socket:[').removesuffix(']'))
      if address is not None:
        found.append((address, name))
  # Ray's, and the server's own.
  assert len(found) > 8
  assert not [x for x in found if x[0] not in local]


def test_no_text_is_in_a_file_that_others_read(fleet):
  """Neither in Ray's logs, also of killed replicas, nor in the server's."""
  (temporary,) = (fleet.folder / 'tmp').glob('kaiju-*')
  assert temporary.stat().st_mode & 0o777 == 0o700
  files = [x for x in temporary.rglob('*') if x.is_file()]
  assert any('ServeReplica' in x.read_text(errors='replace') for x in files)
  words = PLANTED.encode()
  told = [x for x in files if words in x.read_bytes()]
  assert not told
  assert PLANTED not in fleet.words()


def test_a_signal_ends_everything(fleet):
  """The last test: nothing of the server runs, listens or lies around."""
  fleet.leave()
  processes = fleet.children()
  print(f'{len(processes)} processes, {fleet.processor_seconds():.0f} s')
  fleet.process.send_signal(signal.SIGTERM)
  assert fleet.process.wait(60) == 0

  def left():
    found = []
    for number, name in processes.items():
      path = pathlib.Path(f'/proc/{number}/cmdline')
      if path.exists() and path.read_bytes():
        found.append(name)
    return found

  # Some end when they see that their parent has.
  fleet.wait(lambda: not left(), 5)
  assert not list((fleet.folder / 'tmp').iterdir())
  with pytest.raises(OSError):
    fleet.ask('/readyz')
