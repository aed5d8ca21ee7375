/**
 * The server's HTTP as functions: answers are JSON, replies are streams.
 *
 * A request that lacks permission asks for a bearer token once and is sent
 * again, so that nothing above this file knows of tokens. The token lives in
 * sessionStorage: closing the tab forgets it. A key in the page's address is
 * exchanged for a cookie that no script can read.
 */

const TOKEN = 'kaiju.token';

/** Why something was not done: the server's words, or the connection's. */
export class Refusal extends Error {
  /**
   * @param {number} status HTTP's; 0 where no answer came, or a stream broke.
   * @param {string} message for people.
   * @param {?number} wait seconds after which to try again.
   */
  constructor(status, message, wait = null) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

let ask = () => Promise.reject(new Refusal(401, 'A token is needed.'));
let question = null;

/**
 * @param {function(boolean): Promise<string>} handler asks a person for a
 *     token; its argument says whether one was refused.
 */
export function onMissingToken(handler) {
  ask = handler;
}

/** Has the browser keep the key of the address, and takes it out of there. */
export async function keepKey() {
  const key = /^#key=([\x21-\x7e]+)$/.exec(location.hash)?.[1];
  if (!key) return;
  const headers = {Authorization: `Bearer ${key}`};
  try {
    await fetch(at('key'), {method: 'POST', headers});
  } catch (error) {
    throw broken(error, 'The server cannot be reached.');
  }
  // A key that is wrong counts as none: the next request asks for a token.
  history.replaceState(null, '', location.pathname);
}

/** Waits for a token other than `refused`, by one question for all requests. */
async function permission(refused) {
  if (sessionStorage.getItem(TOKEN) !== refused) return;
  question ??= ask(refused !== null)
    .then((token) => sessionStorage.setItem(TOKEN, token))
    .finally(() => { question = null; });
  await question;
}

async function send(method, path, {body, type, signal} = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = {};
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (type) headers['Content-Type'] = type;
  let response;
  try {
    response = await fetch(path, {method, headers, body, signal});
  } catch (error) {
    throw broken(error, 'The server cannot be reached.');
  }
  if (response.status === 401) {
    await permission(token);
    return send(method, path, {body, type, signal});
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** What fetch throws, as a Refusal; an abort stays what it is. */
function broken(error, message) {
  return error.name === 'AbortError' ? error : new Refusal(0, message);
}

async function refusal(response) {
  const answer = await response.json().catch(() => null);
  const wait = Number(response.headers.get('Retry-After') ?? NaN);
  return new Refusal(
    response.status,
    answer?.error?.message ?? '',
    Number.isFinite(wait) ? wait : null,
  );
}

async function json(method, path, value) {
  const options = value === undefined ?
    {} : {body: JSON.stringify(value), type: 'application/json'};
  const response = await send(method, path, options);
  return response.status === 204 ? null : response.json();
}

const at = (...parts) => ['/v1', ...parts.map(encodeURIComponent)].join('/');

export const server = () => json('GET', at('server'));

const PAGES = 20;  // Of a hundred entries each.

/** Reads a listing, page by page. */
async function list(name) {
  const found = [];
  let query = '';
  for (let page = 0; page < PAGES; page++) {
    const answer = await json('GET', at(name) + query);
    found.push(...answer.data);
    if (!answer.has_more) break;
    query = `?after=${encodeURIComponent(answer.after)}`;
  }
  return found;
}

export const characters = () => list('characters');
export const character = (id) => json('GET', at('characters', id));
export const removeCharacter = (id) => json('DELETE', at('characters', id));

/** Publishes a card's file; the answer's `notes` say what was left out. */
export async function addCard(file) {
  const isImage = file.type === 'image/png' || /\.png$/i.test(file.name);
  const type = isImage ? 'image/png' : 'application/json';
  return (await send('POST', at('characters'), {body: file, type})).json();
}

// All that change a conversation answer with the conversation.
export const sessions = () => list('sessions');
export const session = (id) => json('GET', at('sessions', id));
export const openSession = (character) =>
  json('POST', at('sessions'), {character, greeting: 0});
export const removeSession = (id) => json('DELETE', at('sessions', id));
export const addMessage = (session, message) =>
  json('POST', at('sessions', session, 'messages'), message);
export const setHead = (session, message) =>
  json('PUT', at('sessions', session, 'head'), {message});

/** Whether this person's conversations may be used for training. */
export const agreement = () => json('GET', at('feedback'));
export const agree = (agrees) => json('PUT', at('feedback'), {agrees});

/** Rates a reply; null withdraws the rating. */
export const rate = (session, message, rating) =>
  json('POST', at('sessions', session, 'messages', message, 'rating'),
    {rating});

/**
 * Asks for a reply and yields its chunks, as of /v1/chat/completions.
 *
 * @throws {Refusal} also in the middle: an error event, or an end without
 *     [DONE].
 */
export async function* chat(request, signal) {
  const body = JSON.stringify({
    ...request, stream: true, stream_options: {include_usage: true},
  });
  const options = {body, type: 'application/json', signal};
  const response = await send('POST', at('chat', 'completions'), options);
  for await (const data of events(response)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) {
      throw new Refusal(0, `The reply broke off: ${chunk.error.message}`);
    }
    yield chunk;
  }
  throw new Refusal(0, 'The connection ended before the reply did.');
}

/** Yields the data of each server-sent event. */
async function* events(response) {
  const reader =
    response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      yield* blocks.map(dataOf).filter((data) => data);
    }
  } catch (error) {
    throw broken(error, 'The connection broke off.');
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(block) {
  const lines = block.split(/\r?\n/).filter((line) => line.startsWith('data:'));
  return lines.map((line) => line.slice(5).replace(/^ /, '')).join('\n');
}
