"""Writes a server's log: a line of JSON per request, and its faults.

    with log.write_to(sys.stderr):
      server.run()

    {"time": "2026-11-22T10:00:00.123Z", "level": "INFO", "event": "request",
     "request": "5f1e…", "owner": "9c0a…", "method": "POST",
     "route": "/v1/chat/completions", "status": 200, "first_byte": 0.012,
     "seconds": 1.84, "prompt": 900, "cached": 896, "completion": 120,
     "reason": "stop"}

No line holds a text, an id of a session, a query or an owner's name. An
operator's command has a line of its own, with "event": "operation". Warnings
and errors of other modules are lines of the same form with a "message".

Logging never waits for a terminal or a disk: lines go through a queue to a
thread that writes them. If the thread falls behind, lines are dropped and
counted.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import datetime
import json
import logging
import logging.handlers
import queue
from typing import Any
from typing import TextIO

from kaiju_jax.serving.http import exchange

# 'json': all lines. 'faults': warnings and errors, as plain text for a person.
FORMS = ('json', 'faults', 'none')
_OPERATIONS = logging.getLogger('kaiju_jax.operations')
_LINES = 10_000  # The most lines that wait to be written.


def refusal(name: str, status: int) -> None:
  """Logs bytes that were refused before they were a whole request."""
  exchange.log_line({'request': name, 'status': status, 'reason': 'no_request'})


def operation(fields: Mapping[str, Any]) -> None:
  """Logs an operator's command: its name ('operation'), what it changed."""
  words = ' '.join(f'{name}={value}' for name, value in fields.items())
  line = {'event': 'operation', **fields}
  _OPERATIONS.info('%s', words, extra={'fields': line})


class Json(logging.Formatter):
  """Formats a record as a line of JSON."""

  def format(self, record: logging.LogRecord) -> str:
    line = {'time': _time(record), 'level': record.levelname}
    fields = getattr(record, 'fields', None)
    if fields is None:
      line |= {'logger': record.name, 'message': record.getMessage()}
    else:
      line |= {'event': 'request', **fields}
    if record.exc_info:
      line['exception'] = self.formatException(record.exc_info)
    return json.dumps(line)


class Plain(logging.Formatter):
  """Formats a record for a person: time, level, message."""

  def format(self, record: logging.LogRecord) -> str:
    line = f'{_time(record)} {record.levelname}: {record.getMessage()}'
    if record.exc_info:
      line += f'\n{self.formatException(record.exc_info)}'
    return line


class _Queue(logging.handlers.QueueHandler):
  """Passes records to the thread that writes them; drops them if it is full."""

  def __init__(self, waiting: queue.Queue):
    super().__init__(waiting)
    self.dropped = 0

  def enqueue(self, record: logging.LogRecord) -> None:
    try:
      self.queue.put_nowait(record)
    except queue.Full:
      self.dropped += 1
      return
    # Threads log one after another, so that the count fits, too, or waits.
    if self.dropped and not self.queue.full():
      dropped, self.dropped = self.dropped, 0
      logging.getLogger(__name__).warning('%d lines were dropped.', dropped)


@contextlib.contextmanager
def write_to(stream: TextIO, form: str = 'json') -> Iterator[None]:
  """Writes what the block logs, in one of `FORMS` (else a ValueError)."""
  if form not in FORMS:
    raise ValueError(f'log={form!r}: expected one of {FORMS}.')
  waiting: queue.Queue = queue.Queue(_LINES)
  handler = _Queue(waiting)
  handler.setFormatter(Json() if form == 'json' else Plain())
  listener = logging.handlers.QueueListener(
    waiting, logging.StreamHandler(stream)
  )
  root = logging.getLogger()
  handlers = root.handlers[:]
  requests = exchange.REQUESTS
  levels = {logger: logger.level for logger in (requests, _OPERATIONS)}
  root.handlers[:] = [logging.NullHandler() if form == 'none' else handler]
  requests.setLevel(logging.INFO if form == 'json' else logging.WARNING)
  _OPERATIONS.setLevel(logging.INFO)
  listener.start()
  try:
    yield
  finally:
    root.handlers[:] = handlers
    for logger, level in levels.items():
      logger.setLevel(level)
    listener.stop()


def _time(record: logging.LogRecord) -> str:
  when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
  return when.isoformat(timespec='milliseconds').replace('+00:00', 'Z')
