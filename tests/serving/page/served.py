"""A server as a process of its own, as `make chat` starts one."""

import contextlib
import json
import os
import re
import subprocess
import sys
from typing import NamedTuple
import urllib.request

from tests import pages


class Address(NamedTuple):
  """Where a server answers, and the key that it printed."""

  url: str
  key: str


@contextlib.contextmanager
def serve(workdir, folder, *flags):
  """Yields a server's process, address and words."""
  with subprocess.Popen(
    [
      *(sys.executable, '-m', 'experiments.serve', f'--model={workdir}'),
      *('--port=0', f'--folder={folder}', '--rows=2', '--chunk=64', *flags),
    ],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, 'PYTHONPATH': str(pages.ROOT)},
  ) as server:
    try:
      lines = []
      for line in server.stdout:
        lines.append(line)
        if 'Ctrl-C' in line:
          break
      said = ''.join(lines)
      ((url, key),) = re.findall(r'Chat: +(http://\S+)/#key=(\S+)', said)
      assert f'api_key={key}' in said
      yield server, Address(url, key), said
    finally:
      server.kill()


def got(address, path, **body):
  data = json.dumps(body).encode() if body else None
  headers = {'Content-Type': 'application/json'}
  headers['Authorization'] = f'Bearer {address.key}'
  request = urllib.request.Request(address.url + path, data, headers)
  with urllib.request.urlopen(request, timeout=250) as answer:
    return answer.read()
