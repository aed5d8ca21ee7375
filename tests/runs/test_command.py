"""What every command shares: its fields, and where compiled code is kept."""

import os
import pathlib
import re
import subprocess
import sys

from absl import flags
from absl.testing import flagsaver
import pytest

from kaiju_jax.runs import command
from kaiju_jax.runs import configs


@pytest.mark.parametrize(
  'argument, message',
  [
    ('--config.model.windw=3', "no field 'windw'. Did you mean 'window'"),
    ('--config.sead=3', "Experiment has no field 'sead'. Did you mean 'seed'"),
    ('-config.model.window.x=3', "int has no field 'x'"),
  ],
)
def test_an_unknown_field_is_refused(argument, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    configs.check_fields(['train', '--config=a.py', argument])


def test_known_fields_and_other_flags_pass():
  configs.check_fields(
    ['train', '--config.model.quantization.kv=none', '--workdir=config.x', 'x']
  )


ROOT = pathlib.Path(__file__).parents[2]
CACHE = 'JAX_COMPILATION_CACHE_DIR'


@pytest.mark.parametrize(
  'given, folder',
  [
    ({'HOME': '/home/a'}, '/home/a/.cache/kaiju_jax'),
    ({'HOME': '/home/a', 'XDG_CACHE_HOME': '/c'}, '/c/kaiju_jax'),
    ({'XDG_CACHE_HOME': '/c', CACHE: '/mine'}, '/mine'),
    ({'XDG_CACHE_HOME': '/c', CACHE: ''}, ''),
  ],
)
def test_the_folder_of_compiled_code(monkeypatch, given, folder):
  monkeypatch.setattr(os, 'environ', dict(given))
  command.keep_compiled()
  assert os.environ[CACHE] == folder


@pytest.mark.parametrize('is_on', [True, False])
def test_compiled_code_is_kept_unless_a_flag_says_otherwise(monkeypatch, is_on):
  flags.FLAGS.mark_as_parsed()
  monkeypatch.setattr(os, 'environ', {'XDG_CACHE_HOME': '/c'})
  with flagsaver.flagsaver(compilation_cache=is_on):
    command.call(lambda _: None, ['x'], compiles=False)
    assert CACHE not in os.environ
    command.call(lambda _: None, ['x'])
  assert (CACHE in os.environ) == is_on
  used = os.environ.get('JAX_ENABLE_COMPILATION_CACHE')
  assert used == (None if is_on else 'false')


@pytest.mark.parametrize('error', [OSError, ValueError, LookupError])
def test_an_expected_error_is_one_line(monkeypatch, error):
  flags.FLAGS.mark_as_parsed()
  monkeypatch.setattr(os, 'environ', {CACHE: ''})

  def main(argv):
    raise error(f'{argv[0]}: bad')

  with pytest.raises(SystemExit, match=r'^error: .?x: bad'):
    command.call(main, ['x'], LookupError)
  with pytest.raises(error if error is LookupError else SystemExit):
    command.call(main, ['x'])
  assert command.call(lambda _: 3, ['x']) == 3


def test_an_abort_waits_for_no_thread():
  # What an ordinary exit would wait for: a thread in the middle of a save.
  program = (
    'import threading, time\n'
    'from kaiju_jax.runs import command\n'
    'threading.Thread(target=time.sleep, args=(60,)).start()\n'
    'with command.abortable():\n'
    '  raise KeyboardInterrupt\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=250
  )
  assert (done.returncode, done.stderr) == (130, 'Aborted.\n')


def test_the_library_defines_no_flags_and_needs_no_repository():
  """Only `command` and `devices` are for commands alone."""
  program = (
    'import sys\n'
    "sys.modules['experiments'] = sys.modules['tpu_gpu_configs'] = None\n"
    'from absl import flags\n'
    'from kaiju_jax.runs import exchange, load, play, train\n'
    'from kaiju_jax.tasks import registry\n'
    'modules = flags.FLAGS.flags_by_module_dict()\n'
    "assert not [name for name in modules if name.startswith('kaiju_jax')]\n"
  )
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=250
  )
  assert done.returncode == 0, done.stderr


def test_a_config_s_name_stands_for_its_file():
  words = ['train', '--config=tiny:bf16', '--workdir=tiny']
  _, config, workdir = configs.named_configs(words)
  file = config.removeprefix('--config=').removesuffix(':bf16')
  assert pathlib.Path(file).samefile(ROOT / 'experiments/configs/tiny.py')
  assert workdir == '--workdir=tiny'
  assert configs.named_configs(['train', '--config', 'needle']) == [
    'train',
    '--config',
    configs.config_path('needle'),
  ]


@pytest.mark.parametrize('path', ['my/tiny:a', 'tiny.py', 'tiny.py:a', ''])
def test_a_path_to_a_config_stays(path):
  assert configs.config_path(path) == path


def test_an_unknown_config_s_name_is_refused():
  message = "--config=tinny:a: neither a path nor a config. Did you mean 'tiny'"
  with pytest.raises(ValueError, match=re.escape(message)):
    configs.config_path('tinny:a')


def test_accepted_fields_pass_here_and_in_what_the_command_starts(monkeypatch):
  flags.FLAGS.mark_as_parsed()
  monkeypatch.setenv('KAIJU_ACCEPT_FIELD', '')
  read = (
    'from kaiju_jax.interchange import fields;'
    "one = fields.Fields({'a': {'note': 3}, 'made_by': 1}, within='x');"
    "one.descend('a').finish(); one.finish()"
  )

  def main(argv):
    exec(read)
    subprocess.run([sys.executable, '-c', read], check=True)

  names = ['x.a.note', 'x.made_by']
  with flagsaver.flagsaver(accept_field=names):
    command.call(main, [], compiles=False)
  refused = pytest.raises(SystemExit, match=r'x\.made_by=1: not a field')
  with flagsaver.flagsaver(accept_field=names[:1]), refused:
    command.call(main, [], compiles=False)
