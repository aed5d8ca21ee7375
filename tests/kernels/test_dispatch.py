"""A kernel's implementation is imported where it can run, and only there."""

import jax
import jax.numpy as jnp
import pytest

from kaiju_jax.kernels import dispatch

pytestmark = pytest.mark.versions

_RUNS_ON = {
  'plain': dispatch.ANYWHERE,
  'metal': ('gpu', 'tpu'),
  'broken': ('tpu',),
}


@pytest.fixture(autouse=True)
def _package(tmp_path, monkeypatch):
  package = tmp_path / 'a_kernel'
  package.mkdir()
  (package / '__init__.py').touch()
  (package / 'plain.py').write_text('forward = len\n')
  (package / 'metal.py').write_text('forward = abs\n')
  (package / 'broken.py').write_text('raise ImportError("no compiler")\n')
  monkeypatch.syspath_prepend(tmp_path)


def _forward(implementation):
  return dispatch.choose('a_kernel', implementation, _RUNS_ON).forward


def test_only_what_is_asked_for_is_imported():
  assert _forward('plain') is len
  with dispatch.compiling_for('tpu'):
    assert _forward('plain') is len
    with pytest.raises(ImportError, match='no compiler'):
      _forward('broken')


def test_an_unknown_name_lists_what_runs_here():
  with pytest.raises(ValueError, match=r"'plan' is unknown: cpu runs plain\."):
    _forward('plan')
  with dispatch.interpret(), pytest.raises(ValueError, match='unknown'):
    _forward('plan')


def test_another_platforms_is_refused_unless_compiled_for_or_interpreted():
  refused = r"='metal' runs on gpu, tpu: cpu runs plain\."
  with pytest.raises(ValueError, match=refused):
    _forward('metal')
  with dispatch.compiling_for('gpu'):
    assert _forward('metal') is abs
    with pytest.raises(ValueError, match='gpu runs plain, metal'):
      _forward('broken')
  with dispatch.interpret():
    assert _forward('metal') is abs
  with pytest.raises(ValueError, match=refused):
    _forward('metal')


def test_contexts_nest_and_end_with_an_error():
  assert dispatch.platform() == jax.default_backend() == 'cpu'
  assert not dispatch.interpreting()
  with dispatch.compiling_for('gpu'):
    with pytest.raises(KeyError), dispatch.compiling_for('tpu'):
      assert dispatch.platform() == 'tpu'
      raise KeyError
    assert dispatch.platform() == 'gpu'
  with pytest.raises(KeyError), dispatch.interpret():
    assert dispatch.interpreting()
    raise KeyError
  assert dispatch.platform() == 'cpu'
  assert not dispatch.interpreting()


def test_a_context_never_gets_what_was_traced_in_another():
  @jax.jit
  def inner():
    platform = {'cpu': 1, 'gpu': 2}[dispatch.platform()]
    return jnp.int32(platform + 10 * dispatch.interpreting())

  def run():
    return jax.jit(lambda: inner())()

  for _ in range(2):
    assert inner() == run() == 1
    with dispatch.compiling_for('gpu'):
      assert inner() == run() == 2
      with dispatch.interpret():
        assert inner() == run() == 12


def test_an_unknown_platform_is_refused():
  with (
    pytest.raises(ValueError, match=r"'cuda'.*one of cpu, gpu, tpu"),
    dispatch.compiling_for('cuda'),
  ):
    pass
