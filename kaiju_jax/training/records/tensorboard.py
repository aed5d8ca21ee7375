"""Writes the records of metrics.jsonl as TensorBoard events, too.

tensorboardX's SummaryWriter is not used: on a full disk its thread ends
without an error, and its queue then blocks forever.
"""

from collections.abc import Mapping
import pathlib
import time

from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2
from tensorboardX.proto import summary_pb2

from kaiju_jax.storage import files

_FOLDER = 'tensorboard'
_SECONDS_BETWEEN_FLUSHES = 10.0


class Events:
  """A writer of scalars to a new event file in the workdir's tensorboard/.

  The file tells TensorBoard to drop earlier files' events after `last_step`.
  """

  def __init__(self, folder: pathlib.Path, last_step: int):
    self._folder = folder / _FOLDER
    with files.writing(str(self._folder)):
      self._folder.mkdir(exist_ok=True)
      # File names count seconds; the suffix tells quick restarts apart.
      self._writer = event_file_writer.EventsWriter(
        str(self._folder / 'events'), f'.{last_step}'
      )
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._write(last_step + 1, session_log=start)
    self._flushed = time.monotonic()

  def append(self, step: int, values: Mapping[str, float]) -> None:
    """Adds scalars; they stay in memory for ten seconds or until `flush`."""
    summary = summary_pb2.Summary(
      value=[
        summary_pb2.Summary.Value(tag=name, simple_value=value)
        for name, value in values.items()
      ]
    )
    with files.writing(str(self._folder)):
      self._write(step, summary=summary)
    if time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
      self.flush()

  def flush(self) -> None:
    """Writes the events in memory to the file."""
    with files.writing(str(self._folder)):
      self._writer.flush()
    self._flushed = time.monotonic()

  def close(self) -> None:
    """Flushes and closes the file."""
    with files.writing(str(self._folder)):
      self._writer.close()

  def _write(self, step: int, **what) -> None:
    self._writer.write_event(
      event_pb2.Event(step=step, wall_time=time.time(), **what)
    )
