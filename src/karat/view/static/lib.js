// What all pages use: elements, text from outside, addresses, requests and numbers.
import htm from "./vendor/htm.mjs";
import { Component, createRef, h, render } from "./vendor/preact.mjs";

export { Component, createRef, render };

// ---------------------------------------------------------------- text from outside

// The same characters as karat.html: a test compares the two for every code point.
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\ue000-\uf8ff\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{10ffff}]/gu;

/** @param {number} code */
const isEmoji = (code) =>
  code === 0xfe0f || (code >= 0x2600 && code <= 0x27bf) || (code >= 0x1f000 && code <= 0x1faff);
/** @param {number} code */
const isJoinedScript = (code) =>
  code >= 0x0600 && code < 0x0e00 && !String.fromCodePoint(code).match(HIDDEN);

/**
 * Replace characters that cannot be seen, or that change the order of others, by a name.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(HIDDEN, (found, /** @type {number} */ place) => {
    const code = /** @type {number} */ (found.codePointAt(0));
    if (code === 0x200c || code === 0x200d) {
      const low = place > 0 ? text.charCodeAt(place - 1) : 0;
      const before = low >= 0xdc00 && low < 0xe000 && place > 1 ? text.codePointAt(place - 2) ?? low : low;
      const after = text.codePointAt(place + 1) ?? 0;
      if ((isEmoji(before) && isEmoji(after)) || (isJoinedScript(before) && isJoinedScript(after))) return found;
    }
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** @param {unknown} child @returns {any} */
function shown(child) {
  if (typeof child === "string") return visible(child);
  return Array.isArray(child) ? child.map(shown) : child;
}

/**
 * Make an element: every text in it is made visible, links lead to this server only, and nothing is ever parsed as HTML.
 * @param {any} type @param {Record<string, any> | null} props @param {...any} children
 */
function element(type, props, ...children) {
  if (props && typeof type === "string") {
    const { dangerouslySetInnerHTML: _, ...safe } = props;
    for (const [name, value] of Object.entries(safe)) {
      if (typeof value === "string" && name !== "href" && name !== "value") safe[name] = visible(value);
    }
    if ("href" in safe && !/^\/(?!\/)/.test(String(safe.href))) delete safe.href;
    props = safe;
  }
  return h(type, props, ...children.map(shown));
}

export const html = htm.bind(element);

// ---------------------------------------------------------------- addresses

/**
 * An address with a query; empty values are left out.
 * @param {string} path @param {Record<string, string | number | null | undefined>} [query]
 */
export function address(path, query = {}) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") parts.set(name, String(value));
  }
  const text = parts.toString();
  return text ? `${path}?${text}` : path;
}

export const runPath = (/** @type {string} */ id) => `/r/${encodeURIComponent(id)}`;
/** A name of which no character divides two names. @param {string} name */
const divided = (name) => encodeURIComponent(name).replace(/^\.|\.(?=\.)|\.$/g, "%2E");
export const pairPath = (/** @type {string} */ a, /** @type {string} */ b) => `/c/${divided(a)}..${divided(b)}`;
/** Names as one parameter or one part of a path. @param {string[]} names */
export const listed = (names) => names.map(encodeURIComponent).join(",");
export const runsPath = (/** @type {string} */ page, /** @type {string[]} */ ids) => `/${page}/${listed(ids)}`;

/**
 * A word for a filter, quoted where the grammar needs it.
 * @param {string} text
 */
export function quoted(text) {
  return /^[\w.-]+$/u.test(text) ? text : `"${text.replace(/[\\"]/g, (c) => `\\${c}`)}"`;
}

/** A name in an address; one with a wrong percent sign is taken as it is. @param {string} text */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** The state of the page: what the address says. */
export function here() {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  const [, page = "", rest = ""] = /^\/([^/]*)\/?(.*)$/.exec(location.pathname) ?? [];
  const dots = rest.indexOf("..");
  const pair = page === "c" && dots >= 0 ? [rest.slice(0, dots), rest.slice(dots + 2)] : null;
  return { page, rest: (pair ?? rest.split(",")).map(decoded), query };
}

/** @type {(() => void)[]} */
const listeners = [];
/** @param {() => void} listener */
export const onNavigation = (listener) => listeners.push(listener);
/**
 * Go to another address of the viewer.
 * @param {string} url @param {{replace?: boolean}} [options]
 */
export function go(url, { replace = false } = {}) {
  if (url === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  for (const each of listeners) each();
}
/**
 * Change parts of the query.
 * @param {Record<string, string | number | null>} changes @param {{replace?: boolean}} [options]
 */
export const change = (changes, options) => go(address(location.pathname, { ...here().query, ...changes }), options);

addEventListener("popstate", () => listeners.forEach((each) => each()));
document.addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  const target = link?.getAttribute("href");
  if (!link || !target?.startsWith("/") || target.startsWith("/api/") || event.defaultPrevented) return;
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(target);
});

// ---------------------------------------------------------------- requests

/** Is sent to the document when an answer says that columns are being built. */
export const BUILDING = "karat-building";

/** An answer that has to wait for columns. */
export class NotBuilt extends Error {}

/**
 * Ask the server.
 * @param {string} url @param {AbortSignal} [signal] @returns {Promise<any>}
 */
export async function ask(url, signal) {
  const answer = await fetch(url, { signal, credentials: "same-origin", headers: { Accept: "application/json" } });
  const said = await answer.json().catch((/** @type {unknown} */ error) => {
    if (answer.ok) throw error;
    return {};
  });
  if (said.building?.length && url !== CHANGES) document.dispatchEvent(new Event(BUILDING));
  if (answer.status === 202) throw new NotBuilt("This needs columns that are being built. It appears when they are ready.");
  if (answer.ok) return said;
  throw new Error(said.error ?? `the server answered ${answer.status}`);
}
export const CHANGES = "/api/changes";

/** What went wrong, or what is waited for. @param {{error: Error | null}} props */
export const Problem = ({ error }) =>
  !error ? null : error instanceof NotBuilt ? html`<p class="muted" role="status">${error.message}</p>` : html`<p class="problem" role="alert">${error.message}</p>`;

/**
 * Loads an answer and gives it to a function; what was there stays until the next answer has come.
 * Props: `path`, `version` (loads again when it changes), `children` (a function of the answer).
 */
export class Loaded extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.state = { data: null, error: null, of: "" };
    this.stop = new AbortController();
  }
  componentDidMount() { this.load(); }
  componentWillUnmount() { this.stop.abort(); }
  /** @param {any} before */
  componentDidUpdate(before) {
    const news = before.version !== null && before.version !== this.props.version;
    if (before.path !== this.props.path || news) this.load();
  }
  async load() {
    this.stop.abort();
    this.stop = new AbortController();
    const path = this.props.path;
    try {
      const data = await ask(path, this.stop.signal);
      this.setState({ data, error: null, of: path });
    } catch (error) {
      if (error instanceof Error && error.name !== "AbortError") this.setState({ error });
    }
  }
  render() {
    const { data, error } = this.state;
    if (error) return html`<${Problem} error=${error} />`;
    return data === null ? html`<p class="muted" role="status">Loading …</p>` : this.props.children(data);
  }
}

// ---------------------------------------------------------------- numbers

/** @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "—";
  const size = Math.abs(value);
  return rounded(value, size >= 1000 ? 0 : size >= 10 ? Math.min(1, digits) : digits);
}
/** As Python rounds: of two equally near numbers, the even one. @param {number} value @param {number} digits */
function rounded(value, digits) {
  const exact = value.toFixed(digits + 25); // all digits of a number that lies in the middle of two others
  const [kept, rest] = [exact.slice(0, -25), exact.slice(-25)];
  const even = /[02468]\.?$/.test(kept) && /^50*$/.test(rest);
  return even ? kept.replace(/\.$/, "") : value.toFixed(digits);
}
export const whole = (/** @type {number} */ value) => value.toLocaleString("en-US");
/** @param {{low: number | null, high: number | null}} estimate */
export function interval({ low, high }) {
  if (low === null && high === null) return "";
  return `[${low === null ? "no lower limit" : number(low)}, ${high === null ? "no upper limit" : number(high)}]`;
}
/** @param {number | null | undefined} cost */
export const dollars = (cost) => (cost === null || cost === undefined ? "unknown" : `$${cost.toFixed(4)}`);
/** @param {number | null | undefined} value */
export const seconds = (value) =>
  value === null || value === undefined ? "—" : value > 0 && value < 0.001 ? "<0.001 s" : `${value.toFixed(3)} s`;
/** @param {number} size */
export function bytes(size) {
  return size < 1000 ? `${size} B` : size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}
/** @param {number | null} p */
export const probability = (p) => (p === null ? "—" : p < 0.001 ? "<0.001" : p.toFixed(3));
/** @param {number} count @param {string} noun */
export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
/** @param {number} created */
export function age(created) {
  const minutes = Math.max(0, (Date.now() / 1000 - created) / 60);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${plural(Math.floor(minutes), "minute")} ago`;
  return minutes < 2880 ? `${plural(Math.floor(minutes / 60), "hour")} ago` : `${plural(Math.floor(minutes / 1440), "day")} ago`;
}

/**
 * A word for a shell: nothing in it is a command, and no character of it ends the line when it is pasted.
 * @param {string} text
 */
export function shell(text) {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (!/[\x00-\x1f\x7f-\x9f\u2028\u2029]/.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  const written = text.replace(/[\\']/g, (c) => `\\${c}`);
  return `$'${written.replace(/[\x00-\x1f\x7f-\x9f\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)}'`;
}
