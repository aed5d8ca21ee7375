/**
 * A conversation: a tree of messages, and what was typed but is not in it yet.
 *
 * A message's children are candidates for what comes next. Candidates for one
 * reply (swipes) and versions of one edited message are siblings; `head` names
 * the leaf whose path is shown.
 */

/** The messages from the first one to the head. */
export function path(session) {
  const byId = new Map(session.messages.map((each) => [each.id, each]));
  const messages = [];
  for (let at = byId.get(session.head); at; at = byId.get(at.parent)) {
    messages.unshift(at);
  }
  return messages;
}

/** All versions of a message, itself included, oldest first. */
export function siblings(session, message) {
  return session.messages
    .filter(({parent}) => parent === message.parent)
    .sort((a, b) => a.id - b.id);
}

/** The end of the newest branch below a message. */
export function leaf(session, message) {
  const children = session.messages.filter(({parent}) => parent === message.id);
  const ids = children.map(({id}) => id);
  const newest = children.find(({id}) => id === Math.max(...ids));
  return newest ? leaf(session, newest) : message;
}

/** The messages of a role that came after the one with an id. */
export function since(session, id, role) {
  return session.messages.filter(
    (message) => message.id > id && message.role === role,
  );
}

/** The highest id; -1 where there is no message. */
export function newest(session) {
  return Math.max(-1, ...session.messages.map(({id}) => id));
}

const EMPTY = {text: '', asked: '', after: -1, edit: null};

/**
 * What a person typed in a session, in localStorage until the server has it.
 *
 * `text` stands in the composer. `asked` was sent, behind message `after`, and
 * has not been seen among the stored messages. `edit` is {id, text}.
 */
export const drafts = {
  get(session) {
    return {...EMPTY, ...JSON.parse(recall(`kaiju.draft.${session}`) ?? '{}')};
  },

  update(session, changes) {
    const draft = {...drafts.get(session), ...changes};
    const isEmpty = !draft.text && !draft.asked && !draft.edit;
    remember(`kaiju.draft.${session}`, isEmpty ? null : JSON.stringify(draft));
  },

  /** Lets go of what was asked and stored; gives back what was not stored. */
  settle(session) {
    const {text, asked, after} = drafts.get(session.id);
    if (!asked) return;
    const isStored = since(session, after, 'user').length > 0;
    const given = isStored ? text : [asked, text].filter(Boolean).join('\n');
    drafts.update(session.id, {text: given, asked: ''});
  },

  remove(session) {
    remember(`kaiju.draft.${session}`, null);
  },
};

// A browser may refuse storage, or have none left: then the page still works
// until it is closed.
const memory = new Map();

/** The text kept under a key, or null. */
export function recall(key) {
  if (memory.has(key)) return memory.get(key);
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** Keeps a text under a key; null forgets it. */
export function remember(key, text) {
  memory.set(key, text);
  try {
    if (text === null) localStorage.removeItem(key);
    else localStorage.setItem(key, text);
  } catch {
    // It stays in memory.
  }
}
