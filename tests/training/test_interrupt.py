"""The first signal is a request, the second is what it always was."""

import os
import signal
import threading
import time

import pytest

from kaiju_jax.training import interrupt


def _handlers():
  return [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize('number', [None, signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_handlers_come_back(number):
  before = _handlers()
  with interrupt.Interrupt() as stop:
    assert not stop.requested and _handlers() != before
    if number is not None:
      os.kill(os.getpid(), number)
      assert stop.requested and _handlers() == before
  assert _handlers() == before


def test_the_second_ctrl_c_aborts():
  with pytest.raises(KeyboardInterrupt), interrupt.Interrupt() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.requested
    os.kill(os.getpid(), signal.SIGINT)


def test_an_ignored_signal_stays_ignored():
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with interrupt.Interrupt() as stop:
      os.kill(os.getpid(), signal.SIGINT)
      assert not stop.requested
  finally:
    signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_it_does_nothing():
  entered = []

  def run():
    with interrupt.Interrupt() as stop:
      entered.append(stop.requested)

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert entered == [False]


def test_two_signals_within_one_step_are_two():
  begun, may_end, ended = (threading.Event() for _ in range(3))
  waiting = []

  class Running:
    def block_until_ready(self):
      waiting.append(threading.current_thread())
      begun.set()
      assert may_end.wait(60)
      ended.set()

  def send():
    begun.wait(60)
    os.kill(os.getpid(), signal.SIGINT)
    while not stop.requested:
      time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

  thread = threading.Thread(target=send, daemon=True)
  with pytest.raises(KeyboardInterrupt), interrupt.Interrupt() as stop:
    thread.start()
    interrupt.wait({'loss': Running()})
  # The step still runs. Inside XLA, the main thread would hear no signal.
  assert stop.requested and not ended.is_set()
  assert waiting[0] is not threading.main_thread()
  may_end.set()
  assert ended.wait(60)
  thread.join()


def test_waiting_raises_what_the_step_raised():
  class Failed:
    def block_until_ready(self):
      raise FloatingPointError('of the step')

  with pytest.raises(FloatingPointError, match='of the step'):
    interrupt.wait({'loss': Failed()})
