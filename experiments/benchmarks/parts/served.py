"""Starts `experiments.serve` as a process of its own, for benchmarks."""

import logging
import re
import subprocess
import sys
from typing import Any
from typing import NamedTuple

_SERVE = 'experiments.serve'


class Served(NamedTuple):
  """A server that answers."""

  # The server's; its output is read up to the address.
  process: subprocess.Popen[bytes]
  address: str  # Its URL.
  key: str  # Of its local user.
  said: tuple[str, ...]  # The lines that it printed before its address.

  @property
  def client(self) -> dict[str, Any]:
    """What a client of httpx is made with; its requests are not logged."""
    logging.getLogger('httpx').setLevel(logging.WARNING)
    headers = {'Authorization': f'Bearer {self.key}'}
    return {'base_url': self.address, 'headers': headers, 'timeout': 600}


def start(model: str, folder: str, *arguments: str) -> Served:
  """Returns a server of a model, once it answers; the caller ends it."""
  process = subprocess.Popen(
    [
      *(sys.executable, '-m', _SERVE, '--port=0'),
      *(f'--model={model}', f'--folder={folder}', *arguments),
    ],
    stdout=subprocess.PIPE,
    text=True,
  )
  said = []
  for line in process.stdout:
    if found := re.search(r'Chat: +(http://\S+)/#key=(\S+)', line):
      return Served(process, found[1], found[2], tuple(said))
    said.append(line.rstrip())
  process.wait()
  raise SystemExit('error: the server did not start.')
