/**
 * Draws the page from its state.
 *
 * What people, cards or the model wrote becomes text nodes and nothing else.
 * Elements come from the templates of index.html; buttons say by `data-action`
 * what page.js does when they are pressed.
 */

import {drafts, path, siblings, since} from '/conversation.js';

export const find = (selector, root = document) => root.querySelector(selector);

const number = new Intl.NumberFormat('en');
const ago = new Intl.RelativeTimeFormat('en', {numeric: 'auto'});
const SMALL = 200e6;  // Parameters below which the banner says what to expect.
const ANNOUNCED = 20;  // Sentences that may wait to be said.
const LONGEST = 28;  // Characters of a name in the composer.
const HUES = 7;  // As many as page.css has.

// A character that turns the direction of what follows it is shown, not obeyed:
// isolation alone ends at a stray U+2069.
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

/** A text as it may stand anywhere. */
export const shown = (text) => String(text ?? '').replace(TURNING, '\ufffd');

/** Draws everything; focus, caret and place in the transcript stay. */
export function draw(state) {
  const {session} = find('#transcript').dataset;
  const isNew = state.session?.id !== session;
  keepingFocus(() => keepingPlace(() => drawAll(state), isNew));
}

function drawAll(state) {
  document.body.dataset.view = state.view;
  drawBanner(state.server);
  drawConversations(state);
  find('#welcome').hidden = state.view !== 'welcome';
  find('#sheet').hidden = state.view !== 'sheet';
  find('#chat').hidden = state.view !== 'chat';
  find('#composer').hidden =
    state.view !== 'chat' || state.server?.chats === false;
  if (state.view === 'welcome') drawWelcome(state);
  if (state.view === 'sheet') drawSheet(state);
  if (state.view === 'chat') drawChat(state);
  drawNotice(state);
}

/** What the transcript shows beside the stored messages, if anything. */
export const streamOf = ({session, streams}) => streams.get(session?.id);

export const characterOf = ({characters}, id) =>
  characters.find((character) => character.id === id);

/** Who a conversation is with; its title, once the character is gone. */
export const nameOf = (state, session) =>
  characterOf(state, session.character)?.name ?? session.title;

// As `macros.expand_names`, so that the gate reads what is shown.
const NAMES = /\{\{[ \t\n]*(char|user)[ \t\n]*\}\}|<(bot|char|user)>/gi;

/** A character's text with names for its macros. */
function named(text, {name, fields}) {
  return text.replace(NAMES, (_, braced, tag) =>
    (braced ?? tag).toLowerCase() === 'user' ? 'User' : fields.nickname || name);
}

/** A character in few words; others see less of it than its author. */
function blurb(character) {
  const {description, notes, tags = []} = character.fields;
  return named(description || notes || tags.join(', '), character);
}

function drawBanner(server) {
  const banner = find('#banner');
  banner.hidden = !server;
  if (!server) return;
  const {model, parameters, license, moderated, sampling = {}, chats = true} =
    server;
  write('.model', model, banner);
  write('.size', [`${number.format(parameters)} parameters`, license]
    .filter(Boolean).join(', '), banner);
  write('.honesty', parameters < SMALL ?
    `Expect a model of ${rounded(parameters)} parameters to be often wrong.` :
    '', banner);
  const numbers = Object.entries(sampling).filter(([, x]) => typeof x === 'number');
  write('.sampling', numbers.map(([name, value]) =>
    `${name.replaceAll('_', ' ')} ${number.format(value)}`).join(', '), banner);
  find('.unmoderated', banner).hidden = moderated;
  find('#composer .thinks').hidden = !server.thinking;
  find('#no-chats').hidden = chats;
  find('#welcome .gallery').hidden = !chats;
}

function rounded(count) {
  return count < 1e6 ? number.format(count) :
    `${number.format(Math.round(count / 1e6))} million`;
}

function drawConversations(state) {
  const items = state.sessions.map((session) => sessionItem(state, session));
  place(find('#conversations .list'), items);
  find('#conversations .empty').hidden = items.length > 0;
  const {agrees, may_agree: mayAgree} = state.agreement;
  find('#conversations .agrees').hidden = !mayAgree;
  find('#agrees').checked = agrees;
}

function sessionItem(state, session) {
  const name = nameOf(state, session);
  const item = clone('#session-item');
  item.dataset.id = session.id;
  const link = find('a', item);
  link.href = `#session/${encodeURIComponent(session.id)}`;
  link.dataset.key = `session-${session.id}`;
  if (session.id === state.session?.id && state.view === 'chat') {
    link.setAttribute('aria-current', 'page');
  }
  drawAvatar(find('.avatar', item), name);
  write('.name', name, item);
  write('.title', session.title === name ? '' : session.title, item);
  write('.when', when(session.updated), item);
  const button = find('button', item);
  button.ariaLabel = `Delete the conversation with ${shown(name)}`;
  button.dataset.key = `delete-${session.id}`;
  return item;
}

function when(seconds) {
  if (!seconds) return '';
  const minutes = Math.round((seconds - Date.now() / 1000) / 60);
  if (minutes > -1) return 'just now';
  if (minutes > -60) return ago.format(minutes, 'minute');
  if (minutes > -24 * 60) return ago.format(Math.round(minutes / 60), 'hour');
  return ago.format(Math.round(minutes / 60 / 24), 'day');
}

function drawWelcome({characters}) {
  place(find('#welcome ul'), characters.map((character) => {
    const item = clone('#character-item');
    const link = find('a', item);
    link.href = `#character/${encodeURIComponent(character.id)}`;
    link.dataset.key = `character-${character.id}`;
    drawAvatar(find('.avatar', item), character.name);
    write('.name', character.name, item);
    write('.description', blurb(character), item);
    return item;
  }));
}

function drawSheet(state) {
  const sheet = find('#sheet');
  const character = characterOf(state, state.character);
  drawAvatar(find('.avatar', sheet), character.name);
  write('.name', character.name, sheet);
  const {own: isOwn, fields} = character;
  write('.origin', [
    isOwn ? 'Your character' : 'A character of this server',
    fields.creator && `by ${fields.creator}`,
  ].filter(Boolean).join(', '), sheet);
  prose(find('.description', sheet), blurb(character));
  const notes = fields.description ? fields.notes : '';
  prose(find('.notes', sheet), named(notes, character));
  find('.remove', sheet).hidden = !isOwn;
  const dropped = state.dropped.get(character.id) ?? [];
  find('.dropped', sheet).hidden = !dropped.length;
  find('.dropped ul', sheet).replaceChildren(...dropped.map((note) => {
    const item = document.createElement('li');
    item.textContent = shown(note);
    return item;
  }));
  const before = state.sessions.filter((s) => s.character === character.id);
  find('.before', sheet).hidden = !before.length;
  const items = before.map((session) => sessionItem(state, session));
  place(find('.before .list', sheet), items);
}

function drawChat(state) {
  const {session} = state;
  const name = nameOf(state, session);
  const chat = find('#chat');
  drawAvatar(find('header .avatar', chat), name);
  write('header .name', name, chat);
  const isThere = Boolean(characterOf(state, session.character));
  find('.about .hint', chat).hidden = !isThere;
  if (isThere) {
    find('.about', chat).href =
      `#character/${encodeURIComponent(session.character)}`;
  } else {
    find('.about', chat).removeAttribute('href');
  }
  const transcript = find('#transcript');
  transcript.dataset.session = session.id;
  place(transcript, transcriptItems(state, name));
  drawComposer(state, name);
}

function drawComposer(state, name) {
  const composer = find('#composer');
  const isLive = Boolean(streamOf(state)?.isLive);
  const area = find('#draft');
  const {text} = drafts.get(state.session.id);
  if (area.value !== text) area.value = text;
  area.placeholder = `Write to ${cut(shown(name))}`;
  find('.send', composer).hidden = isLive;
  find('.send', composer).disabled = !text.trim();
  find('.stop', composer).hidden = !isLive;
}

function cut(text) {
  const letters = [...text];
  return letters.length <= LONGEST ? text :
    `${letters.slice(0, LONGEST).join('')}…`;
}

/** What stands above the composer: a failure, and how to go on. */
export function drawNotice(state) {
  const box = find('#notice');
  const notice = streamOf(state)?.notice ?? state.notice;
  box.hidden = !notice;
  if (!notice) return;
  write('.words', notice.words, box);
  const seconds = Math.ceil(((notice.until ?? 0) - Date.now()) / 1000);
  const button = find('.again', box);
  button.hidden = !notice.retry;
  button.disabled = seconds > 0;
  write('.again', seconds > 0 ? `Try again in ${seconds} s` : 'Try again', box);
}

/** The stored path, then what is on its way. */
function transcriptItems(state, name) {
  const {session} = state;
  const stream = streamOf(state);
  const asked = isOnItsWay(session, stream) ? stream.asked : '';
  const messages = path(session);
  if (stream?.isLive && stream.isSwipe) messages.pop();
  const items = messages.map((message, depth) => {
    const isLast = depth === messages.length - 1 && !asked;
    return storedItem(state, {message, depth, isLast, name});
  });
  if (asked) items.push(messageItem('user', 'You', {text: asked}));
  if (stream?.isLive || isLost(stream)) items.push(replyItem(stream, name));
  return items;
}

/** Whether the conversation lacks the question that a reply is to. */
function isOnItsWay(session, stream) {
  return stream?.asked && !stream.isSettled &&
    !since(session, stream.after, 'user').length;
}

/** Whether something came of a reply that is not stored. */
export function isLost(stream) {
  if (!stream || stream.isStored) return false;
  const {text, reasoning, refusal, finish} = stream;
  return Boolean(text || reasoning || refusal || finish);
}

function messageItem(role, name, {text, reasoning}) {
  const item = clone('#message-item');
  item.dataset.role = role;
  drawAvatar(find('.avatar', item), name);
  write('.who', name, item);
  prose(find('.text', item), text);
  find('.reasoning', item).hidden = !reasoning;
  write('.reasoning p', reasoning ?? '', item);
  find('.swipes', item).hidden = true;
  find('.again', item).hidden = true;
  find('.more', item).hidden = true;
  find('.ratings', item).hidden = true;
  find('.edit', item).hidden = true;
  return item;
}

/** A reply that is being written, or broke off without being stored. */
function replyItem(stream, name) {
  const item = messageItem('assistant', name, stream);
  item.classList.add(stream.isLive ? 'live' : 'lost');
  item.ariaBusy = String(stream.isLive);
  find('.text', item).hidden = !stream.isLive && !stream.text;
  if (!stream.isLive) {
    const why = stream.refusal || REMARKS[stream.finish];
    remark(item, why || 'This much of the reply came. It is not stored.');
  }
  return item;
}

const REMARKS = {
  content_filter: 'The content filter ended this reply.',
  length: 'The reply reached its length limit.',
  cancelled: 'This reply was stopped.',
};

function storedItem(state, {message, depth, isLast, name}) {
  const isReply = message.role === 'assistant';
  const item = messageItem(message.role, isReply ? name : 'You', message);
  const unfolded = `#transcript [data-id="${message.id}"] details[open]`;
  find('.reasoning', item).open = Boolean(find(unfolded));
  item.dataset.id = message.id;
  remark(item, isReply ? REMARKS[message.finish] : null);
  drawFigures(item, state.figures.get(`${state.session.id}/${message.id}`));
  const {edit} = drafts.get(state.session.id);
  if (edit?.id === message.id) {
    openEditor(item, edit);
  } else if (!streamOf(state)?.isLive) {
    drawControls(item, {session: state.session, message, isLast});
  }
  for (const button of item.querySelectorAll('[data-action]')) {
    button.dataset.key = `${button.dataset.action}-${depth}`;
  }
  return item;
}

function drawControls(item, {session, message, isLast}) {
  const versions = siblings(session, message);
  const place = versions.indexOf(message) + 1;
  const isReply = message.role === 'assistant' && message.parent !== null;
  const canGrow = isReply && isLast;
  const atEnd = place === versions.length;
  find('.edit', item).hidden = false;
  find('.swipes', item).hidden = versions.length === 1 && !canGrow;
  write('.count', `${place}/${versions.length}`, item);
  find('[data-action=previous]', item).disabled = place === 1;
  find('[data-action=next]', item).disabled = atEnd && !canGrow;
  find('[data-action=next]', item).ariaLabel =
    atEnd && canGrow ? 'A new version' : 'Next version';
  find('.again', item).hidden = !canGrow;
  find('.more', item).hidden = !canGrow;
  drawRatings(item, message);
  if (message.role === 'user' && isLast) offerReply(item);
}

/** The buttons that rate a reply; what a person wrote has none. */
function drawRatings(item, {finish, rating}) {
  find('.ratings', item).hidden = !finish;
  for (const button of find('.ratings', item).children) {
    button.ariaPressed = String(RATINGS[button.dataset.action] === rating);
  }
}

/** A message of a person that nothing answered, after a failure or a reload. */
function offerReply(item) {
  remark(item, 'There is no reply yet.');
  const button = find('.again', item);
  button.hidden = false;
  button.dataset.action = 'answer';
  button.append('Ask for a reply');
  button.classList.remove('round');
  button.removeAttribute('aria-label');
}

/** Ratings as the server calls them, by the names of their buttons. */
export const RATINGS = {
  good: 'good', bad: 'bad', wronglyRefused: 'wrongly_refused',
};

function drawFigures(item, figures) {
  if (!figures) return;
  const {prompt, cached, wait} = figures;
  const parts = [];
  if (prompt) {
    parts.push(`${number.format(cached)} of ${number.format(prompt)} prompt ` +
      'tokens reused');
  }
  if (wait !== null) parts.push(`first token after ${seconds(wait)}`);
  write('.figures', parts.join(' · '), item);
}

function seconds(milliseconds) {
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` :
    `${(milliseconds / 1000).toFixed(1)} s`;
}

function openEditor(item, edit) {
  const editor = clone('#editor');
  find('textarea', editor).value = edit.text;
  find('.text', item).replaceWith(editor);
  item.classList.add('editing');
}

function remark(item, text) {
  find('.remark', item).hidden = !text;
  write('.remark', text ?? '', item);
}

let frame = null;

/** Draws what has come of a live reply, at most once per frame. */
export function drawText(stream) {
  frame ??= requestAnimationFrame(() => {
    frame = null;
    const text = find('#transcript .live .text');
    if (!text) return;
    const thought = find('#transcript .live .reasoning');
    keepingPlace(() => {
      prose(text, stream.text);
      thought.hidden = !stream.reasoning;
      write('p', stream.reasoning, thought);
    });
  });
}

/** Says a text to screen readers, after what they are saying now. */
export function announce(text) {
  const line = document.createElement('p');
  line.textContent = shown(text);
  const said = find('#announcer');
  said.append(line);
  while (said.childElementCount > ANNOUNCED) said.firstChild.remove();
}

/** Writes a text as nodes; *what a character does* stands in italics. */
function prose(element, text) {
  const parts = shown(text).split(/(?<![\w*])\*([^*\n]+)\*(?![\w*])/);
  element.replaceChildren(...parts.map((part, at) => {
    if (at % 2 === 0) return part;
    const action = document.createElement('em');
    action.textContent = part;
    return action;
  }));
}

/** Writes a text into an element; what it says already is not said again. */
function write(selector, text, root) {
  const element = find(selector, root);
  if (element.textContent !== shown(text)) element.textContent = shown(text);
}

function drawAvatar(element, name) {
  const letters = [...shown(name)];
  const mix = (sum, letter) => (sum * 31 + letter.codePointAt(0)) | 0;
  const initial = letters.find((letter) => /[\p{L}\p{N}]/u.test(letter));
  element.textContent = (initial ?? letters[0] ?? '?').toUpperCase();
  element.dataset.hue = Math.abs(letters.reduce(mix, 0)) % HUES;
}

/** Makes `items` the children; what looks the same stays, under a finger. */
function place(parent, items) {
  items.forEach((item, at) => {
    const present = parent.children[at];
    if (!present) parent.append(item);
    else if (!present.isEqualNode(item)) present.replaceWith(item);
  });
  while (parent.childElementCount > items.length) {
    parent.lastElementChild.remove();
  }
}

function clone(selector) {
  return find(selector).content.firstElementChild.cloneNode(true);
}

/** Runs a drawing; the end of the transcript stays in view if it was. */
function keepingPlace(drawing, goesToEnd = false) {
  const pane = find('#chat .scroll');
  const isAtEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 60;
  const top = pane.scrollTop;
  drawing();
  pane.scrollTop = goesToEnd || isAtEnd ? pane.scrollHeight : top;
}

/** Runs a drawing; what replaces the focused element has the focus. */
function keepingFocus(drawing) {
  const {dataset, selectionStart, selectionEnd} = document.activeElement;
  const {key} = dataset;
  drawing();
  if (!key) return;
  const next = find(`[data-key="${CSS.escape(key)}"]`);
  const isThere = next && next.offsetParent && !next.disabled;
  if (!isThere) return focusDraft();
  next.focus({preventScroll: true});
  if (selectionStart !== undefined) {
    next.setSelectionRange(selectionStart, selectionEnd);
  }
}

/** Lets a person write at once, where that opens no keyboard on the screen. */
export function focusDraft() {
  if (matchMedia('(pointer: fine)').matches) find('#draft').focus();
}
