// The viewer: which page the address names, the keys, and news from the store.
import { BUILDING, CHANGES, Component, ask, here, html, onNavigation, pairPath, render, runsPath, shell } from "./lib.js";
import { ComparePage } from "./pages/compare.js";
import { FailuresPage } from "./pages/failures.js";
import { HomePage } from "./pages/home.js";
import { PerformancePage } from "./pages/performance.js";
import { RunPage } from "./pages/run.js";
import { SlicesPage } from "./pages/slices.js";

/** @typedef {import("./types").Keys} Keys */

const PAGES = /** @type {Record<string, any>} */ ({
  "": HomePage, r: RunPage, c: ComparePage, s: SlicesPage, f: FailuresPage, p: PerformancePage,
});

const HELP = [
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["x", "close the row; on the list of runs, select or deselect the run"],
  ["[, ]", "previous and next run of the dataset, at the same row"],
  ["/", "filter"],
  ["c", "compare: the selected runs, or this run with the one before it"],
  ["w", "next regression"],
  ["y", "copy the command line that gives this view"],
  ["?", "these keys"],
];

class App extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {any} */
    this.state = { ...here(), version: null, live: false, building: [], help: false, toast: "" };
    /** What the page shown does with the keys. @type {Keys | null} */
    this.keys = null;
    this.timer = 0;
  }
  componentDidMount() {
    onNavigation(() => this.setState({ ...here(), toast: "" }));
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => this.poll());
    document.addEventListener(BUILDING, () => this.poll());
    this.poll();
  }
  async poll() {
    clearTimeout(this.timer);
    if (document.hidden) return; // nobody looks: do not disturb the writer
    let wait = 10_000;
    try {
      const { version, built, live, building } = await ask(CHANGES);
      wait = building.length ? 1000 : live ? 2000 : wait;
      this.setState({ version: JSON.stringify([version, built]), live, building, lost: false });
    } catch {
      this.setState({ lost: true });
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), wait);
  }
  /** @param {KeyboardEvent} event */
  key(event) {
    const typing = event.target instanceof Element && event.target.closest("input, select, textarea");
    if (event.key === "Escape") {
      if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
      this.setState({ help: false, toast: "" });
      return;
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const link = event.target instanceof Element && event.target.closest("a, button, summary");
    const keys = this.keys;
    const todo = /** @type {Record<string, (() => void) | undefined>} */ ({
      j: () => (keys?.move ?? focusRow)(1),
      k: () => (keys?.move ?? focusRow)(-1),
      "/": () => document.getElementById("filter")?.focus(),
      Enter: link ? undefined : keys?.open,
      "[": () => keys?.step?.(-1),
      "]": () => keys?.step?.(1),
      x: () => (keys?.close ?? keys?.select)?.(),
      c: keys?.compare,
      w: keys?.regression,
      y: () => this.copy(),
      "?": () => this.setState({ help: !this.state.help }),
    })[event.key];
    if (!todo) return;
    event.preventDefault();
    todo();
  }
  async copy() {
    const { store } = await ask("/api/runs?limit=1").catch(() => ({ store: "" }));
    const command = (this.keys?.command() ?? "karat view") + (store ? ` --store ${shell(store)}` : "");
    try {
      await navigator.clipboard.writeText(command);
      this.setState({ toast: `Copied: ${command}` });
    } catch {
      this.setState({ toast: command });
    }
  }
  render() {
    const { page, rest, query, version, live, building, help, toast, lost } = this.state;
    const Page = PAGES[page];
    const body = Page && (page === "" || rest[0])
      ? html`<${Page} key=${page} runs=${rest} query=${query} version=${version} keys=${(/** @type {Keys} */ keys) => { this.keys = keys; }} />`
      : html`<p class="problem" role="alert">There is no page ${location.pathname}.</p>`;
    return html`<div class="app page-${page || "home"}">
      <header class="bar">
        <a class="home" href="/"><svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><path d="M8 1l6 5-6 9-6-9z" class="m-gem" /></svg> karat</a>
        <nav aria-label="Pages">${tabs(page, rest)}</nav>
        <span class="muted" role="status">${lost ? "The server does not answer." : live ? "▶ live" : ""}</span>
        <button type="button" onClick=${() => this.setState({ help: true })}>Keys: ?</button>
      </header>
      ${building.length ? html`<${Building} building=${building} />` : null}
      <main>${body}</main>
      ${toast ? html`<div class="toast" role="status"><code>${toast}</code> <button type="button" onClick=${() => this.setState({ toast: "" })}>Close</button></div>` : null}
      ${help ? html`<div class="help" role="dialog" aria-label="Keys"><h2>Keys</h2>
        <dl>${HELP.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
        <button type="button" onClick=${() => this.setState({ help: false })}>Close</button></div>` : null}
    </div>`;
  }
}

/** How far the columns are that a page needs. @param {{building: import("./types").Building[]}} props */
function Building({ building }) {
  return html`<div class="building" role="status">${building.map((each) => html`<label>Building the columns of ${each.kind} ${each.id}
      <progress max="1" value=${each.share}></progress> ${Math.floor(100 * each.share)} %</label> `)}
    <span class="muted">Rows can already be read; filters, sorting and sums wait for the columns, which are built once and kept.</span></div>`;
}

/** The other pages on the same runs. @param {string} page @param {string[]} runs */
function tabs(page, runs) {
  if (!page || !runs[0]) return null;
  const [first = "", second] = runs;
  const last = encodeURIComponent(second ?? first);
  const links = [
    ["r", "Rows", `/r/${last}`],
    ...(second ? [["c", "Compare", pairPath(first, second)]] : []),
    ["s", "Slices", runsPath("s", runs)],
    ["f", "Failures", `/f/${last}`],
    ["p", "Cost and time", runsPath("p", runs)],
  ];
  return links.map(([id, name, url]) => html`<a href=${url} aria-current=${id === page ? "page" : undefined}>${name}</a>`);
}

/** Focus the next link that stands for a row. @param {number} by */
function focusRow(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const now = rows.indexOf(/** @type {Element} */ (document.activeElement));
  const next = rows[now < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, now + by))];
  if (next instanceof HTMLElement) next.focus();
}

const root = document.getElementById("app");
if (root) render(html`<${App} />`, root);

