"""Ctrl-C in a block that holds it back."""

import signal
import threading

import pytest

from kaiju_jax.decoding.device import interrupts


def test_ctrl_c_comes_after_the_block():
  before = signal.getsignal(signal.SIGINT)
  done = []
  with pytest.raises(KeyboardInterrupt):
    with interrupts.delay():
      with interrupts.delay():
        signal.raise_signal(signal.SIGINT)
        done.append('inner')
      done.append('outer')
    done.append('after')
  assert done == ['inner', 'outer']
  assert signal.getsignal(signal.SIGINT) == before


def test_blocks_within_a_block_leave_the_handler_alone(monkeypatch):
  swapped, swap = [], signal.signal
  monkeypatch.setattr(
    signal, 'signal', lambda *x: (swapped.append(x), swap(*x))[1]
  )
  for _ in range(2):
    with interrupts.delay(), interrupts.delay(), interrupts.delay():
      pass
  assert len(swapped) == 4


def test_a_second_ctrl_c_meets_the_handler_that_the_first_one_left():
  came = []

  def once(number, frame):
    came.append(number)
    signal.signal(signal.SIGINT, signal.default_int_handler)

  before = signal.signal(signal.SIGINT, once)
  try:
    with pytest.raises(KeyboardInterrupt), interrupts.delay():
      signal.raise_signal(signal.SIGINT)
      signal.raise_signal(signal.SIGINT)
  finally:
    signal.signal(signal.SIGINT, before)
  assert came == [signal.SIGINT]


def test_an_ignored_ctrl_c_and_another_thread():
  before = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with interrupts.delay():
      assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGINT, before)
  found = []

  def run():
    with interrupts.delay():
      found.append(signal.getsignal(signal.SIGINT))

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert found == [before]
