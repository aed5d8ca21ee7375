"""Exports feedback of people who agree, as training data.

    export.export(store, tokens, key, 'feedback')

writes a folder that only its user can read:

    train.jsonl      conversations with choices (`data/conversations.py`)
    held_out.jsonl   the same, of other owners
    export.json      counts, the exported sessions, and those that are gone

An owner's sessions are exported if the owner agreed last, on the page or by a
token, and holds tokens, all of them an adult's: without a token nobody can
withdraw. The server's own user needs none. Nobody else's sessions are read.

A session's character must be built in, of an owner who agrees, or the live
version of a public one. Sessions with other or removed characters are left out
whole, because greetings and replies reveal the character's text.

Owners and sessions have pseudonyms: HMACs under the server's key, unlike those
in logs. What an owner withdraws or deletes is listed under "gone" in the next
export: remove it from copies, and from what was trained. All conversations of
an owner are in one of the two files.
"""

import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import hashlib
import hmac
import json
import os
import pathlib
import shutil
from typing import Any

from kaiju_jax.alignment.feedback import tree
from kaiju_jax.characters.prompts import macros
from kaiju_jax.characters.prompts import prompt
from kaiju_jax.serving.http import auth
from kaiju_jax.serving.stores import characters
from kaiju_jax.serving.stores import conversing
from kaiju_jax.storage import files
from kaiju_jax.storage import locks

FORMAT = 1
MANIFEST, TRAIN, HELD_OUT = 'export.json', 'train.jsonl', 'held_out.jsonl'
_PAGE = 1_000  # Sessions of one reading.


@dataclasses.dataclass(frozen=True)
class Export:
  """What was exported."""

  counts: dict[str, int]  # As `describe` prints them.
  # By (n, k): how often the reply sampled as k-th of n, from 0, was kept.
  places: dict[tuple[int, int], int]
  # Pseudonyms, sorted: of exported sessions, and of those in former exports
  # alone.
  sessions: tuple[str, ...]
  gone: tuple[str, ...]


class Pseudonyms:
  """The names that stand for owners and sessions under one key.

  Attributes:
    digest: identifies the key without revealing it.
  """

  def __init__(self, key: bytes):
    self._key = key
    self.digest: str = self.name('key', '')

  def name(self, kind: str, value: str) -> str:
    """Returns the HMAC-SHA256 of a name of a kind, in hex.

    The kind keeps it apart from the pseudonyms of the same owner in the logs.
    """
    data = f'feedback {kind}\0{value}'.encode(errors='surrogatepass')
    return hmac.new(self._key, data, hashlib.sha256).hexdigest()


def find_owners(
  store: conversing.Store, tokens: Sequence[auth.Token]
) -> tuple[str, ...]:
  """Returns the owners whose conversations may be exported, sorted."""
  words = store.agreements()
  held = collections.defaultdict(list)
  for one in tokens:
    held[one.owner].append(one)
  found = []
  for owner in {*words, *held}:
    own = held.get(owner, [])
    word = words.get(owner, any(one.feedback for one in own))
    is_known = bool(own) or owner == auth.LOCAL
    is_adult = all(one.age == auth.ADULT for one in own)
    if word and is_known and is_adult:
      found.append(owner)
  return tuple(sorted(found))


def export(
  store: conversing.Store,
  tokens: auth.Tokens,
  key: bytes,
  out: str | os.PathLike[str],
  held_out: float = 0.1,
) -> Export:
  """Writes an export, or replaces a former one.

  The same store and key give the same files, byte for byte.

  Args:
    store, tokens, key: the server's, which may be running.
    out: the export's folder.
    held_out: the share of owners in held_out.jsonl, 0…1.

  Raises:
    BlockingIOError: another process writes to this folder.
    OSError: it cannot be read or written; a former export is kept.
    ValueError: the share is wrong; or the folder holds something else, or an
      export with another key or format.
    characters.Unavailable: the store cannot be reached.
  """
  if not 0 <= held_out <= 1:
    raise ValueError(f'held_out={held_out}: must be within 0 and 1.')
  out = pathlib.Path(os.path.abspath(out))
  names = Pseudonyms(key)
  files.make_folder(out.parent)
  with locks.hold(
    out.with_name(f'.{out.name}.lock'), f'folder {out}', 'exports', '--out'
  ):
    former = _read_former(out, names)
    found = list(_read_all(store, tokens, names))
    # Nor does it hold what was withdrawn or deleted in the meantime.
    owners = set(find_owners(store, tokens.list_all()))
    found = [
      one for one in found if one.owner in owners and one.is_there(store)
    ]
    result, lines = _sum_up(found, former, held_out)
    _replace(out, lines, _manifest(result, names, held_out))
  return result


@dataclasses.dataclass(frozen=True)
class _Read:
  """A session as it was read."""

  owner: str
  session: str
  # Their pseudonyms.
  owner_name: str
  session_name: str
  found: tree.SessionTree | None  # None if its character may not be exported.

  def is_there(self, store: conversing.Store) -> bool:
    try:
      store.session(self.owner, self.session)
    except characters.Missing:
      return False
    return True


def _read_all(
  store: conversing.Store, tokens: auth.Tokens, names: Pseudonyms
) -> Iterator[_Read]:
  """Yields the sessions of all owners who agree, sorted by pseudonyms."""
  agreed = find_owners(store, tokens.list_all())
  # Any other order would reveal when somebody came or went.
  for owner_name, owner in sorted((names.name('owner', x), x) for x in agreed):
    sessions = {one.id: one for one in _list_sessions(store, owner)}
    for session_name, session in sorted(
      (names.name('session', one), one) for one in sessions
    ):
      try:
        found = _read_session(store, sessions[session], set(agreed))
      except characters.Missing:
        continue  # It was removed in the meantime.
      yield _Read(owner, session, owner_name, session_name, found)


def _list_sessions(
  store: conversing.Store, owner: str
) -> Iterator[characters.Session]:
  """Yields an owner's sessions; one that goes on meanwhile comes again."""
  after = ''
  while True:
    # The oldest first: what changes moves to the end, and is not missed.
    page = store.sessions(owner, _PAGE, after, is_oldest_first=True)
    yield from page
    if len(page) < _PAGE:
      return
    after = characters.cursor(page[-1])


def _read_session(
  store: conversing.Store, session: characters.Session, agreed: set[str]
) -> tree.SessionTree | None:
  """Returns a session's lines; None if its character may not be exported."""
  messages = store.messages(session.owner, session.id)
  ratings = store.ratings(session.owner, session.id)
  if not _may_export(store, session, agreed):
    return None
  version = store.version(session.character, session.version)
  try:
    system = prompt.persona(version.fields)
  except macros.TooLarge:
    return None
  return tree.read(session, messages, ratings, system)


def _may_export(
  store: conversing.Store, session: characters.Session, agreed: set[str]
) -> bool:
  """Returns whether the text of a session's character may be exported."""
  try:
    found = store.character(session.owner, session.character)
  except characters.Missing:
    return False  # Removed; or private by now, and another owner's.
  if found.owner in agreed or found.owner == characters.BUILT_IN:
    return True
  # Earlier versions of a public character are its owner's alone.
  return found.is_public and found.live == session.version


def _sum_up(
  found: Sequence[_Read], former: set[str], held_out: float
) -> tuple[Export, dict[str, list[str]]]:
  """Returns the export, and the lines of its files by their names."""
  counts: collections.Counter = collections.Counter()
  places: collections.Counter = collections.Counter()
  lines: dict[str, list[str]] = {TRAIN: [], HELD_OUT: []}
  seen, sessions, owners = set(), set(), set()
  for one in found:
    if one.found is None:
      counts['sessions_of_untold_characters'] += 1
      continue
    counts.update(one.found.counts)
    places.update(one.found.places)
    is_held_out = int(one.owner_name[:13], 16) < held_out * 16**13
    file = HELD_OUT if is_held_out else TRAIN
    for messages in one.found.lines:
      text = json.dumps(messages, sort_keys=True)
      digest = hashlib.sha256(_without_origin(messages)).digest()
      if digest in seen:
        counts['lines_repeated'] += 1
        continue
      seen.add(digest)
      sessions.add(one.session_name)
      owners.add((one.owner_name, file))
      lines[file].append(
        f'{{"messages": {text}, "owner": "{one.owner_name}",'
        f' "session": "{one.session_name}"}}\n'
      )
  counts['sessions'], counts['owners'] = len(sessions), len(owners)
  counts['owners_held_out'] = sum(file == HELD_OUT for _, file in owners)
  for file, name in (TRAIN, 'lines_train'), (HELD_OUT, 'lines_held_out'):
    counts[name] = len(lines[file])
  result = Export(
    dict(sorted(counts.items())),
    dict(sorted(places.items())),
    tuple(sorted(sessions)),
    tuple(sorted(former - sessions)),
  )
  return result, lines


def _without_origin(messages: list[tree.Message]) -> bytes:
  """Returns the texts of a line and what was kept, for comparison."""
  return json.dumps(
    [
      (
        one['role'],
        one.get('content'),
        [(each['content'], each['kept']) for each in one.get('replies', ())],
      )
      for one in messages
    ]
  ).encode()


def _manifest(
  result: Export, names: Pseudonyms, held_out: float
) -> dict[str, Any]:
  return {
    'format': FORMAT,
    'key': names.digest,
    'held_out': held_out,
    'counts': result.counts,
    'places': [[*key, count] for key, count in result.places.items()],
    'sessions': list(result.sessions),
    'gone': list(result.gone),
  }


def _read_former(out: pathlib.Path, names: Pseudonyms) -> set[str]:
  """Returns the sessions of former exports; cleans up after a kill."""
  partial, old = _beside(out)
  if old.exists() and not out.exists():
    old.rename(out)  # The process was killed between two renames.
  for one in partial, old:
    if one.exists():
      shutil.rmtree(one)
  if not os.path.lexists(out):
    return set()
  path = out / MANIFEST
  if not path.is_file():
    raise ValueError(f'{out}: is no export of feedback; name a new folder.')
  data = files.read_json(path)
  if not isinstance(data, dict) or data.get('format') != FORMAT:
    raise ValueError(
      f'{path}: not of format {FORMAT}; name a new folder, and delete this one.'
    )
  if data.get('key') != names.digest:
    raise ValueError(
      f"{path}: written with another key, so that its owners' names are"
      " others: is this the export of another server, or is the server's key"
      ' lost? Put the key back, or name a new folder and delete this one.'
    )
  return {*data['sessions'], *data['gone']}


def _beside(out: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  return tuple(out.with_name(f'.{out.name}.{x}') for x in ('partial', 'former'))


def _replace(
  out: pathlib.Path, lines: dict[str, list[str]], manifest: dict[str, Any]
) -> None:
  """Writes a folder whole, and deletes the former one."""
  partial, old = _beside(out)
  text = json.dumps(manifest, indent=2, allow_nan=False)
  try:
    with files.writing(str(out)):
      partial.mkdir(mode=0o700)
      for name, content in {**lines, MANIFEST: [f'{text}\n']}.items():
        with open(
          partial / name, 'x', encoding='utf-8', opener=files.open_private
        ) as file:
          file.writelines(content)
          file.flush()
          os.fsync(file.fileno())
      if out.exists():
        out.rename(old)
      partial.rename(out)
  finally:
    for one in partial, old:
      if out.exists():
        shutil.rmtree(one, ignore_errors=True)


_SIGNS = 'rated', 'went_on', 'shown'


def describe(result: Export) -> list[str]:
  """Returns the lines that the command prints."""
  count = result.counts.get
  ended = {
    name.removeprefix('ended_'): number
    for name, number in result.counts.items()
    if name.startswith('ended_')
  }
  ratings = {x: count(f'rated_{x}', 0) for x in characters.RATINGS}
  return [
    f'{count("owners", 0):,} owners who agree, of whom'
    f' {count("owners_held_out", 0):,} are held out;'
    f' {count("sessions", 0):,} sessions.',
    f'{count("lines_train", 0):,} lines to train on,'
    f' {count("lines_held_out", 0):,} held out;'
    f' {count("lines_repeated", 0):,} repeated ones are left out.',
    f'{count("turns", 0):,} turns, {count("regenerations", 0):,} regenerations,'
    f' {count("replies_edited", 0):,} edits of replies.',
    f'{count("choices", 0):,} choices'
    f' ({_list({x: count(f"choices_{x}", 0) for x in _SIGNS})}):'
    f' {count("replies_kept", 0):,} replies kept,'
    f' {count("replies_passed_over", 0):,} passed over.',
    f'Ratings: {_list(ratings)}.',
    f'Replies ended: {_list(ended) or "none"};'
    f' {count("endings", 0):,} turns end a conversation.',
    f'Left out: {count("replies_filtered", 0):,} replies that safety ended'
    f' ({count("filtered_rated_wrongly_refused", 0):,} rated wrongly refused),'
    f' {count("turns_refused", 0):,} turns for them,'
    f' {count("sessions_of_untold_characters", 0):,} sessions with characters'
    ' whose owners have not agreed,'
    f' {count("lines_too_long", 0):,} branches of very long sessions.',
    *_describe_places(result.places),
    f'{len(result.gone):,} sessions of earlier exports are gone:'
    f' {MANIFEST} lists them.',
  ]


def _describe_places(places: Mapping[tuple[int, int], int]) -> list[str]:
  """Returns a line per number of replies, and one about the last place.

  A person stops swiping at the first reply that is good enough, so that the
  last one is kept most often, whatever it says. A model that trains on choices
  learns this, too, unless its rows are weighted or sampled by place.
  """
  total = sum(places.values())
  if not total:
    return ['Places: no choice among replies that the model drew.']
  found = []
  for size in sorted({size for size, _ in places}):
    kept = [places.get((size, place), 0) for place in range(size)]
    shares = ', '.join(f'{one / sum(kept):.0%}' for one in kept)
    found.append(
      f'Kept of {size} replies, by place: {shares} ({sum(kept):,} choices;'
      f' {1 / size:.0%} each by chance).'
    )
  last = sum(count for (size, at), count in places.items() if at == size - 1)
  chance = sum(count / size for (size, _), count in places.items())
  found.append(
    f'The last one drawn was kept in {last:,} of {total:,}; by chance in'
    f' {chance:,.1f}.'
  )
  return found


def _list(counts: Mapping[str, int]) -> str:
  return ', '.join(
    f'{number:,} {name.replace("_", " ")}' for name, number in counts.items()
  )
