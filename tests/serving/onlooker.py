"""A client in a process of its own, which notes how long it waits.

    python -m tests.serving.onlooker PORT TOKEN BODY

It asks for /healthz again and again on one connection, and reads streams of
`BODY` on another. Each line on the standard output is a JSON list: 'healthz' or
'token', when it began to wait and when it was answered, by `time.monotonic`.
"""

import http.client
import json
import sys
import threading
import time

_PAUSE = 0.002


def _note(*values) -> None:
  sys.stdout.write(json.dumps(values) + '\n')
  sys.stdout.flush()


def _healthz(port: int) -> None:
  connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
  while True:
    begun = time.monotonic()
    connection.request('GET', '/healthz')
    connection.getresponse().read()
    _note('healthz', begun, time.monotonic())
    time.sleep(_PAUSE)


def _tokens(port: int, token: str, body: str) -> None:
  headers = {
    'Authorization': f'Bearer {token}',
    'Content-Type': 'application/json',
  }
  while True:
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    connection.request('POST', '/v1/completions', body, headers)
    answer = connection.getresponse()
    last = None
    while line := answer.readline():
      if line.startswith(b'data: {'):
        now = time.monotonic()
        if last is not None:
          _note('token', last, now)
        last = now
    connection.close()


if __name__ == '__main__':
  for target, arguments in (
    (_healthz, [int(sys.argv[1])]),
    (
      _tokens,
      [int(sys.argv[1]), *sys.argv[2:]],
    ),
  ):
    threading.Thread(target=target, args=arguments, daemon=True).start()
  sys.stdin.read()  # To the end of the test.
