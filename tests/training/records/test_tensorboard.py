"""The event files hold what metrics.jsonl does, and restarts purge."""

import struct

from tensorboardX.proto import event_pb2

from kaiju_jax.training.records import tensorboard


def _events(path):
  """Reads the TFRecord framing: length, its CRC, the event, its CRC."""
  data, events = path.read_bytes(), []
  while data:
    (length,) = struct.unpack('<Q', data[:8])
    events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
    data = data[16 + length :]
  return events


def _scalars(events):
  return [
    (event.step, value.tag, value.simple_value)
    for event in events
    for value in event.summary.value
  ]


def test_scalars_and_the_step_from_which_a_restart_purges(tmp_path):
  first = tensorboard.Events(tmp_path, 0)
  first.append(1, {'loss': 0.5, 'eval_loss': float('inf')})
  first.flush()
  (file,) = (tmp_path / 'tensorboard').iterdir()
  assert _scalars(_events(file)) == [
    (1, 'loss', 0.5),
    (1, 'eval_loss', float('inf')),
  ]
  first.append(2, {'loss': 0.25})
  first.close()

  second = tensorboard.Events(tmp_path, 7)
  second.append(8, {'loss': 0.125})
  second.close()
  files = sorted((tmp_path / 'tensorboard').iterdir(), key=lambda p: p.suffix)
  assert len(files) == 2, 'within one second, and yet a file each'
  starts = [
    event.step
    for event in _events(files[1])
    if event.session_log.status == event_pb2.SessionLog.START
  ]
  assert starts == [8]
  assert len(_scalars(_events(files[0]))) == 3
  assert _scalars(_events(files[1])) == [(8, 'loss', 0.125)]
