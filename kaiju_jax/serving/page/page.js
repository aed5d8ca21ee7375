/**
 * The chat page: what a person can do, and what the page then asks and shows.
 *
 * The address's fragment says what is shown: #home, #character/ID or
 * #session/ID. State lives in one object; every change ends in draw(state).
 */

import * as client from '/client.js';
import {drafts, leaf, newest, path, recall, remember, siblings, since}
  from '/conversation.js';
import {RATINGS, announce, characterOf, draw, drawNotice, drawText, find,
  focusDraft, isLost, nameOf, shown, streamOf} from '/drawing.js';

const LAST = 'kaiju.session';
const THINKS = 'kaiju.thinks';
const SAMPLING = 'kaiju.sampling';
const LARGEST_CARD = 8 * 2 ** 20;
const TEMPERATURE = 0.7;  // Our guess: at 1, small models ramble.

const state = {
  view: 'welcome',
  server: null,
  characters: [],
  sessions: [],
  character: null,      // The id of the character whose sheet is open.
  session: null,        // The conversation that is open.
  dropped: new Map(),   // Character id -> what its card had and we have not.
  streams: new Map(),   // Session id -> the reply on its way, or how it failed.
  figures: new Map(),   // 'session/message' -> {prompt, cached, wait}.
  notice: null,         // {words, retry, until}.
  agreement: {agrees: false, may_agree: false},
};

// Failures.

const WORDS = {
  0: '',
  400: 'The server did not accept this.',
  401: 'Without a token the server does not answer.',
  403: 'The server does not allow this.',
  404: 'This is not there any more.',
  409: 'The conversation has changed elsewhere.',
  413: 'This is too large for the server.',
  429: 'The server is busy.',
  503: 'The server can neither answer nor store anything at the moment.',
};

/** A failure in words, with what tries again where that can help. */
function noticeOf(error, retry) {
  if (!(error instanceof client.Refusal)) {
    console.error(error);
    return {words: `The page failed: ${error.message}`, retry: null};
  }
  const {status, message, wait} = error;
  const meaning = WORDS[status] ?? `The server failed (${status}).`;
  const canHelp = [0, 401, 409, 429].includes(status) || status >= 500;
  return {
    words: [meaning, message].filter(Boolean).join(' '),
    retry: canHelp ? retry : null,
    until: wait === null ? null : Date.now() + wait * 1000,
  };
}

/** Runs an action; a failure is shown, and can be tried again. */
async function attempt(action) {
  const {notice} = state;
  try {
    const end = action();  // It may read the notice that it answers.
    if (state.notice === notice) state.notice = null;
    await end;
  } catch (error) {
    state.notice = noticeOf(error, () => attempt(action));
  }
  draw(state);
}

setInterval(() => drawNotice(state), 500);

// Where we are.

function go(view, id) {
  location.hash = id ? `${view}/${encodeURIComponent(id)}` : view;
}

/** A part of an address; '' where it cannot be decoded. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return '';
  }
}

async function route() {
  await client.keepKey();
  const [view, id = ''] = location.hash.slice(1).split('/');
  const name = decoded(id);
  const isOfOne = view === 'session' || view === 'character';
  if (isOfOne && !name) {
    leave();  // An empty name would ask the server for the whole listing.
    throw new client.Refusal(404, '');
  }
  if (view === 'session') await showSession(name);
  else if (view === 'character') await showCharacter(name);
  else showHome();
  draw(state);
  if (state.view === 'chat') focusDraft();
  else find(`#${state.view} h1`).focus();
}

/** Goes home from what is no longer there. */
function leave() {
  history.replaceState(null, '', '#home');
  showHome();
}

function showHome() {
  Object.assign(state, {view: 'welcome', session: null});
  document.title = 'kaiju_jax';
}

async function showCharacter(id) {
  if (!characterOf(state, id)) {
    const {hash} = location;
    const character = await client.character(id);
    if (location.hash !== hash) return;  // Gone elsewhere in the meantime.
    state.characters.push(character);
  }
  Object.assign(state, {view: 'sheet', session: null, character: id});
  document.title = shown(characterOf(state, id).name);
}

async function showSession(id) {
  const {hash} = location;
  try {
    const session = await client.session(id);
    if (location.hash !== hash) return;
    state.session = session;
    show(session);
  } catch (error) {
    if (error.status !== 404) throw error;
    forget(id);
    leave();
    throw error;
  }
  state.view = 'chat';
  remember(LAST, id);
  document.title = shown(nameOf(state, state.session));
}

/** Takes what is stored of a conversation, and shows it if it is open. */
function show(session) {
  const at = state.sessions.findIndex(({id}) => id === session.id);
  if (at < 0) state.sessions.unshift(session);
  else state.sessions[at] = session;  // Its place stays, under a finger.
  if (state.session?.id === session.id) state.session = session;
  const stream = state.streams.get(session.id);
  if (!stream?.isLive || stream.isSettled) drafts.settle(session);
}

async function read(id) {
  const session = await client.session(id);
  show(session);
  return session;
}

function forget(id) {
  drafts.remove(id);
  state.streams.delete(id);
  state.sessions = state.sessions.filter((session) => session.id !== id);
  if (recall(LAST) === id) remember(LAST, null);
}

async function begin() {
  await client.keepKey();
  const [server, characters, sessions, agreement] = await Promise.all([
    client.server(), client.characters(), client.sessions(),
    client.agreement(),
  ]);
  Object.assign(state, {server, characters, sessions, agreement});
  drawSampling();
  const last = recall(LAST);
  const isKnown = state.sessions.some(({id}) => id === last);
  if (!location.hash && isKnown) {
    history.replaceState(null, '', `#session/${encodeURIComponent(last)}`);
  }
  await route();
}

// Replies.

/**
 * Asks for a reply to `text`, to the head, for another one (a swipe), or for
 * the last one with more behind it.
 */
async function reply(session, {text = '', isSwipe = false, goesOn = false} = {}) {
  const stream = {
    session: session.id, asked: text, isSwipe, goesOn, after: newest(session),
    text: '', reasoning: '', refusal: '',
    announced: goesOn ? path(session).at(-1).text.length : 0,
    finish: null, message: null, usage: null,
    isLive: true,      // It may still change.
    isSettled: false,  // What is stored of it is known.
    isStored: false,   // There is a stored reply.
    started: performance.now(), wait: null,
    abort: new AbortController(), notice: null,
  };
  state.streams.set(session.id, stream);
  const others = state.sessions.filter(({id}) => id !== session.id);
  state.sessions = [session, ...others];
  state.notice = null;
  draw(state);
  let failure = null;
  try {
    const chunks = client.chat(question(stream), stream.abort.signal);
    for await (const chunk of chunks) take(stream, chunk);
  } catch (error) {
    if (error.name !== 'AbortError') failure = error;
  }
  await settle(stream, failure);
}

function question({session, asked, isSwipe, goesOn}) {
  const set = chosen();
  if (isSwipe && 'seed' in set) {  // Each candidate has another one.
    const own = state.sessions.find(({id}) => id === session);
    set.seed += siblings(own, path(own).at(-1)).length;
  }
  const messages = asked ? [{role: 'user', content: asked}] : [];
  const {model, sampling} = state.server;
  const more = {continue_final_message: true, echo: true};
  const other = goesOn ? more : isSwipe ? {swipe: true} : {};
  // A model that brings its own settings is drawn by them.
  const drawn = 'temperature' in (sampling ?? {}) ?
    {} : {temperature: TEMPERATURE};
  const thinks = state.server.thinking && recall(THINKS) ?
    {chat_template_kwargs: {enable_thinking: true}} : {};
  return {model, session, messages, ...drawn, ...set, ...other, ...thinks};
}

// How replies are drawn, by the API's names; our guesses.

const PRESETS = {
  precise: {
    temperature: 0.3, min_p: 0.1, repetition_penalty: 1.05, dry_multiplier: 0.8,
  },
  balanced: {
    temperature: 0.7, min_p: 0.05, repetition_penalty: 1.05,
    dry_multiplier: 0.8,
  },
  lively: {temperature: 1, min_p: 0.05, dry_multiplier: 0.8},
};

/** What a person has set; the rest is the server's. */
const chosen = () => JSON.parse(recall(SAMPLING) ?? '{}');

/** The name of the preset that has these values, '' for none at all. */
function presetOf({seed, ...values}) {
  const own = {'': {}, ...PRESETS};
  const isSame = (other) =>
    JSON.stringify(Object.entries(other).sort()) ===
    JSON.stringify(Object.entries(values).sort());
  return Object.keys(own).find((name) => isSame(own[name])) ?? 'yours';
}

function drawSampling() {
  const form = find('#sampling');
  const values = chosen();
  const own = {temperature: TEMPERATURE, ...state.server?.sampling};
  for (const input of form.querySelectorAll('input')) {
    input.value = values[input.name] ?? '';
    input.placeholder = own[input.name] ?? '';
  }
  form.elements.preset.value = presetOf(values);
}

function listenToSampling() {
  find('#sampling').addEventListener('change', ({target}) => {
    const {name, value} = target;
    if (!target.reportValidity()) return;
    let values = chosen();
    if (name === 'preset') {
      const {seed} = values;
      values = {...PRESETS[value], ...(seed === undefined ? {} : {seed})};
    } else {
      delete values[name];
      if (value !== '') values[name] = Number(value);
    }
    remember(SAMPLING, JSON.stringify(values));
    drawSampling();
  });
}

function take(stream, {choices: [choice] = [], usage, kaiju}) {
  const text = choice?.delta?.content ?? '';
  stream.refusal += choice?.delta?.refusal ?? '';
  if (text) stream.wait ??= performance.now() - stream.started;
  stream.text += text;
  stream.reasoning += choice?.delta?.reasoning ?? '';
  stream.finish = choice?.finish_reason ?? stream.finish;
  stream.usage = usage ?? stream.usage;
  stream.message = kaiju?.message ?? stream.message;
  if (stream !== streamOf(state)) return;
  drawText(stream);
  const sentences = stream.text.slice(stream.announced).match(/^.*[.!?…]\s/s);
  if (sentences) say(stream, sentences[0]);
}

function say(stream, text) {
  stream.announced += text.length;
  if (text.trim()) announce(text);
}

/** Compares what came with what is stored: the stored is what is shown. */
async function settle(stream, failure) {
  try {
    if (failure?.status === 401) throw failure;  // Ask for a token once.
    const session = await stored(stream, failure);
    const [message] = since(session, stream.after, 'assistant');
    if (message) keepFigures(stream, stream.message ?? message.id);
    stream.isStored = Boolean(message);
    stream.isSettled = true;
    show(session);
  } catch (error) {
    failure ??= error;
  }
  stream.isLive = false;
  if (failure) stream.notice = noticeOf(failure, () => again(stream));
  else if (!isLost(stream)) state.streams.delete(stream.session);
  if (state.session?.id === stream.session) {
    say(stream, stream.text.slice(stream.announced));
  }
  draw(state);
}

/** The conversation with its reply; a part of one may come a moment later. */
async function stored({session: id, after, abort, ...part}, failure) {
  const {aborted} = abort.signal;
  const text = part.text || part.reasoning;
  const isPart = aborted || (failure && text);
  // A busy server stores what was stopped within seconds.
  const tries = aborted && text ? 25 : isPart ? 5 : 1;
  for (let tried = 1; ; tried++) {
    const session = await client.session(id);
    const isThere = since(session, after, 'assistant').length > 0;
    if (isThere || tried === tries) return session;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

function keepFigures({session, usage, wait}, message) {
  state.figures.set(`${session}/${message}`, {
    prompt: usage?.prompt_tokens ?? 0,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    wait,
  });
}

/** What failed, once more: sends what came back, or asks for the reply. */
async function again({session: id, asked, after, goesOn}) {
  state.streams.delete(id);
  const session = await read(id);
  if (asked && !since(session, after, 'user').length) return submit(session);
  const isAnswered = path(session).at(-1)?.role === 'assistant';
  return reply(session, {isSwipe: isAnswered, goesOn: isAnswered && goesOn});
}

/** Sends what stands in the composer. */
async function submit(session = state.session) {
  const {id} = session;
  if (state.streams.get(id)?.isLive || !drafts.get(id).text.trim()) return;
  // Of a message that was sent before, it may not be known if it arrived.
  const current = drafts.get(id).asked ? await read(id) : session;
  const {text} = drafts.get(id);
  drafts.update(id, {text: '', asked: text, after: newest(current)});
  await reply(current, {text});
}

// Actions, by the names that buttons have in `data-action`.

const messageOf = (id) =>
  state.session.messages.find((message) => String(message.id) === id);

async function step(id, by) {
  const message = messageOf(id);
  const versions = siblings(state.session, message);
  const next = versions[versions.indexOf(message) + by];
  if (!next) return actions.swipe();
  const head = leaf(state.session, next).id;
  state.streams.delete(state.session.id);
  show(await client.setHead(state.session.id, head));
  return announce(next.text);
}

/** Gives a reply the rating of a button; pressed again, it withdraws it. */
async function rate(id, name) {
  const {session} = state;
  const message = messageOf(id);
  const rating = message.rating === RATINGS[name] ? null : RATINGS[name];
  await client.rate(session.id, message.id, rating);
  message.rating = rating;
}

const actions = {
  good: (id) => rate(id, 'good'),
  bad: (id) => rate(id, 'bad'),
  wronglyRefused: (id) => rate(id, 'wronglyRefused'),

  async start() {
    const session = await client.openSession(state.character);
    show(session);
    go('session', session.id);
  },

  async removeCharacter() {
    const {id, name} = characterOf(state, state.character);
    if (!await isSure('Delete this character?', name)) return;
    await client.removeCharacter(id);
    state.characters = state.characters.filter((other) => other.id !== id);
    leave();
  },

  async removeSession(id = state.session.id) {
    const session = state.sessions.find((other) => other.id === id);
    const name = nameOf(state, session);
    if (!await isSure('Delete the conversation?', name)) return;
    state.streams.get(id)?.abort.abort();
    await client.removeSession(id);
    forget(id);
    if (state.session?.id === id) leave();
  },

  previous: (id) => step(id, -1),
  next: (id) => step(id, 1),
  swipe: () => reply(state.session, {isSwipe: true}),
  goOn: () => reply(state.session, {isSwipe: true, goesOn: true}),
  answer: () => reply(state.session),
  stop: () => streamOf(state)?.abort.abort(),

  edit(id) {
    const {text} = messageOf(id);
    drafts.update(state.session.id, {edit: {id: Number(id), text}});
    draw(state);
    find('.editor textarea').focus();
  },

  async saveEdit() {
    const {session} = state;
    const {edit} = drafts.get(session.id);
    const {parent, role, text} = messageOf(String(edit.id));
    if (!edit.text.trim()) return;
    if (edit.text === text) return actions.cancelEdit();
    const message = {parent, role, text: edit.text};
    const edited = await client.addMessage(session.id, message);
    drafts.update(session.id, {edit: null});
    state.streams.delete(session.id);
    show(edited);
    if (role === 'user') await reply(edited);
  },

  cancelEdit: () => drafts.update(state.session.id, {edit: null}),

  tryAgain() {
    const {retry} = streamOf(state)?.notice ?? state.notice;
    actions.dismiss();
    return retry();
  },

  dismiss() {
    const stream = streamOf(state);
    if (stream?.notice) stream.notice = null;
    else state.notice = null;
  },
};

// Cards.

async function addCards(files) {
  while (files.length) {
    const [file] = files;
    if (file.size > LARGEST_CARD) {
      throw new client.Refusal(413, `${file.name} has more than 8 MiB.`);
    }
    const {id, notes = []} = await client.addCard(file);
    state.characters = await client.characters();
    state.dropped.set(id, notes);
    go('character', id);
    files.shift();
  }
}

function listenForCards() {
  const hasFiles = (event) => event.dataTransfer?.types.includes('Files');
  const veil = find('#drop-veil');
  addEventListener('dragover', (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    veil.hidden = false;
  });
  addEventListener('dragleave', (event) => {
    if (!event.relatedTarget) veil.hidden = true;
  });
  addEventListener('drop', (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    veil.hidden = true;
    const files = [...event.dataTransfer.files];
    attempt(() => addCards(files));
  });
  find('#card').addEventListener('change', ({target}) => {
    const files = [...target.files];
    target.value = '';
    attempt(() => addCards(files));
  });
}

// Questions.

/** Shows a dialog with one form; true if it was submitted. */
function answered(dialog) {
  dialog.returnValue = 'no';
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener(
      'close', () => resolve(dialog.returnValue === 'yes'), {once: true});
  });
}

function isSure(title, name) {
  const dialog = find('#question');
  find('h2', dialog).textContent = title;
  find('.name', dialog).textContent = shown(name);
  return answered(dialog);
}

async function askForToken(wasRefused) {
  const dialog = find('#token');
  const field = find('input', dialog);
  field.value = '';
  find('.refused', dialog).textContent =
    wasRefused ? 'The server does not know that token.' : '';
  if (!await answered(dialog)) throw new client.Refusal(401, '');
  return field.value.replace(/[^\x21-\x7e]/g, '');
}

function listenToDialogs() {
  for (const dialog of document.querySelectorAll('dialog')) {
    dialog.addEventListener('submit', (event) => {
      event.preventDefault();
      dialog.close('yes');
    });
    find('[value=no]', dialog).addEventListener('click', () => {
      dialog.close('no');
    });
  }
}

// Keys and presses.

function listenToWriting() {
  const box = find('#thinks');
  box.checked = Boolean(recall(THINKS));
  box.addEventListener('change', () => {
    remember(THINKS, box.checked ? 'yes' : null);
  });
  // A refusal draws the box as it was.
  find('#agrees').addEventListener('change', ({target}) => attempt(async () => {
    state.agreement = await client.agree(target.checked);
  }));
  const area = find('#draft');
  find('#composer').addEventListener('submit', (event) => {
    event.preventDefault();
    attempt(submit);
  });
  area.addEventListener('input', () => {
    drafts.update(state.session.id, {text: area.value});
    find('#composer .send').disabled = !area.value.trim();
  });
  area.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    attempt(submit);
  });
  find('#transcript').addEventListener('input', ({target}) => {
    const {edit} = drafts.get(state.session.id);
    drafts.update(state.session.id, {edit: {...edit, text: target.value}});
  });
  addEventListener('keydown', ({key}) => {
    if (key !== 'Escape' || document.querySelector('dialog[open]')) return;
    if (find('.editor:focus-within')) attempt(actions.cancelEdit);
    else actions.stop();
  });
}

function listenToPresses() {
  const running = new Set();
  document.addEventListener('click', async ({target}) => {
    const button = target.closest('[data-action]');
    const {action} = button?.dataset ?? {};
    const press = `${action} ${location.hash}`;
    if (!action || running.has(press)) return;
    const id = button.closest('[data-id]')?.dataset.id;
    running.add(press);
    await attempt(() => actions[action](id));
    running.delete(press);
  });
  addEventListener('hashchange', () => attempt(route));
}

listenForCards();
listenToDialogs();
listenToWriting();
listenToSampling();
listenToPresses();
client.onMissingToken(askForToken);
attempt(begin);
