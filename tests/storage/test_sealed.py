"""Sealed files: whole, private, and of one key."""

import hashlib
import hmac
import os
import pathlib

import pytest

from kaiju_jax.storage import sealed

DATA = bytes(range(40))


@pytest.fixture
def sealer():
  return sealed.Sealer(b's' * 32, 'points')


def test_a_file_is_read_as_it_was_written_and_nobody_else_can(tmp_path, sealer):
  path = tmp_path / 'a'
  before = os.umask(0)
  try:
    sealer.write(path, DATA)
  finally:
    os.umask(before)
  assert path.stat().st_mode & 0o777 == 0o600
  assert bytes(sealer.read(path, 1000)) == DATA
  sealer.write(path, b'')
  assert bytes(sealer.read(path, 1000)) == b''
  assert [x.name for x in tmp_path.iterdir()] == ['a']


def test_a_file_is_laid_out_as_the_page_says(tmp_path, sealer):
  sealer.write(tmp_path / 'a', DATA)

  def mac(key, *parts):
    return hmac.new(key, b''.join(parts), hashlib.sha256).digest()

  magic = b'kaiju sealed 1\r\n'
  key = mac(b's' * 32, b'the key of points')
  whose = mac(key, b'name')[:16]
  sized = (len(x).to_bytes(8, 'little') + x for x in (b'a', magic, whose))
  tag = mac(key, b'file', *sized, DATA)
  assert (tmp_path / 'a').read_bytes() == magic + whose + tag + DATA


def test_every_byte_counts(tmp_path, sealer):
  path = tmp_path / 'a'
  sealer.write(path, DATA)
  whole = path.read_bytes()
  assert len(whole) == len(DATA) + sealed.OVERHEAD
  for place in range(len(whole)):
    changed = bytearray(whole)
    changed[place] ^= 1 << place % 8
    path.write_bytes(changed)
    with pytest.raises(sealed.SealError, match='damaged'):
      sealer.read(path, 1000)
  for length in range(len(whole)):
    path.write_bytes(whole[:length])
    with pytest.raises(sealed.SealError, match='damaged'):
      sealer.read(path, 1000)
  path.write_bytes(whole + b'0')
  with pytest.raises(sealed.SealError, match='damaged'):
    sealer.read(path, 1000)


def test_other_keys_other_purposes_and_other_names_are_refused(
  tmp_path, sealer
):
  path = tmp_path / 'a'
  sealer.write(path, DATA)
  others = [
    sealed.Sealer(b't' * 32, 'points'),
    sealed.Sealer(b's' * 32, 'other'),
  ]
  for other in others:
    with pytest.raises(sealed.SealError, match='key of another server'):
      other.read(path, 1000)
    assert other.pseudonym(b'x') != sealer.pseudonym(b'x')
  renamed = path.rename(tmp_path / 'b')
  with pytest.raises(sealed.SealError, match='damaged'):
    sealer.read(renamed, 1000)


def test_a_file_that_is_too_large_is_not_read(tmp_path, sealer):
  path = tmp_path / 'a'
  sealer.write(path, DATA)
  size = path.stat().st_size
  assert bytes(sealer.read(path, size)) == DATA
  with pytest.raises(sealed.SealError, match=f'has {size} bytes, and at most'):
    sealer.read(path, size - 1)


def test_a_kill_before_the_last_step_leaves_the_old_file(
  tmp_path, sealer, monkeypatch
):
  path = tmp_path / 'a'
  sealer.write(path, DATA)
  kept = []

  def killed(partial, to):
    # What lies on the disk at a kill.
    kept.append(pathlib.Path(partial).stat().st_mode & 0o777)
    raise KeyboardInterrupt

  monkeypatch.setattr(os, 'replace', killed)
  with pytest.raises(KeyboardInterrupt):
    sealer.write(path, b'new')
  assert kept == [0o600]
  assert bytes(sealer.read(path, 1000)) == DATA
