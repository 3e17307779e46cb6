// The rows of a run, and one item.
import {
  Component, Loaded, address, ask, change, createRef, go, here, html, number, pairPath, plural, runPath, shell, whole,
} from "../lib.js";
import { Calls, Counts, Estimate, Field, FilterBox, Output, Results, Rows, Status, Steps, Tries, groupFilter, part, side, tone } from "../parts.js";
import { headlines } from "./home.js";

/** The runs of the same dataset, oldest first. @param {string} id */
export async function siblings(id) {
  const data = await ask("/api/runs");
  const mine = data.datasets.find((/** @type {any} */ each) => each.runs.some((/** @type {any} */ run) => run.id === id));
  return mine ? mine.runs.map((/** @type {any} */ run) => run.id).reverse() : [];
}

/** Metrics that are shown above the rows; further ones are folded. */
const FEW = 4;

export class RunPage extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {Rows | null} */
    this.list = null;
    this.pane = createRef();
    /** @type {{page: import("../types").Page | null}} */
    this.state = { page: null };
    /** @type {any} */
    this.run = null;
    /** @type {any} */
    this.item = null;
  }
  componentDidMount() {
    this.props.keys({
      move: (/** @type {number} */ by) => this.list?.move(by),
      open: () => { if (this.props.query.key) { change({ open: 1 }); this.pane.current?.focus(); } },
      close: () => change(here().query.open ? { open: null } : { key: null }),
      step: (/** @type {number} */ by) => this.step(by),
      compare: () => this.step(-1, true),
      regression: () => this.step(-1, true, "changed:worse"),
      command: () => this.command(),
    });
  }
  command() {
    const { query } = this.props;
    const id = shell(this.run?.id ?? this.props.runs[0]);
    if (query.key && this.item?.key === query.key) return `karat show ${id} --example ${shell(this.item.example.id)}`;
    const filter = query.filter ? ` --where=${shell(query.filter)}` : "";
    return `karat show ${id}${filter}${query.sort ? ` --sort=${shell(query.sort)}` : ""}`;
  }
  /** Go to another run of the dataset, or compare with it. @param {number} by @param {boolean} [compare] @param {string} [filter] */
  async step(by, compare = false, filter = "") {
    const id = this.run?.id;
    const all = await siblings(id);
    const other = all[all.indexOf(id) + by] ?? (compare ? all[all.indexOf(id) + 1] : undefined);
    if (!other) return;
    const { query } = this.props;
    if (compare) go(address(pairPath(other, id), { key: filter ? "" : query.key, filter }));
    else go(address(runPath(other), query));
  }
  render() {
    const { runs: [id], query, version } = this.props;
    const path = runPath(id);
    return html`<${Loaded} path="/api${path}" version=${version}>${(/** @type {any} */ data) => {
      this.run = data.run;
      document.title = `${data.run.label} · karat`;
      const keys = data.evaluators.map((/** @type {any} */ each) => each.key);
      const page = this.state.page;
      const numbers = headlines({ ...data.run, estimates: data.estimates });
      const shown = (/** @type {any} */ each) => html`<span><span class="muted">${each.label}</span> <${Estimate} estimate=${each} run=${id} filter=${groupFilter(each.group)} rows=${data.run.counts.total} /></span>`;
      return html`<div class="head"><h1>${data.run.label} <${Status} status=${data.run.status} /></h1>
          <p class="facts"><code class="muted">${data.run.id}</code> <span class="muted">${data.run.task} on ${data.run.dataset}</span> · <${Counts} run=${data.run} />
            ${numbers.slice(0, FEW).map(shown)}</p>
          ${numbers.length > FEW ? html`<details><summary>${plural(numbers.length - FEW, "more metric")}</summary><p class="facts">${numbers.slice(FEW).map(shown)}</p></details>` : null}
          <${FilterBox} value=${query.filter ?? ""} fields=${["status", "score", ...keys, ...data.fields]} />
          <p class="facts" role="status">${page ? `${whole(page.matching)} of ${plural(page.total, "row")}` : ""}
            <label class="choice"> Sort <select value=${query.sort ?? ""} onChange=${(/** @type {any} */ e) => change({ sort: e.target.value, key: null })}>
              ${["", ...["score", ...keys, "seconds", "cost", "tokens", "id"].flatMap((each) => [each, `-${each}`])].map((each) => html`<option value=${each} selected=${each === (query.sort ?? "")}>
                ${each === "" ? "dataset order" : each.startsWith("-") ? `${each.slice(1)}, highest first` : `${each}, lowest first`}</option>`)}
            </select></label></p></div>
        <div class="split ${query.key ? "with-item" : ""} ${query.open ? "opened" : ""}">
          <${Rows} own=${(/** @type {Rows} */ list) => { this.list = list; }} path="/api${path}/rows" query=${{ filter: query.filter, sort: query.sort }} selected=${query.key}
            address=${{ filter: query.filter, sort: query.sort }} version=${version} label="Rows" draw=${(/** @type {any} */ row) => this.row(row, data.evaluators)}
            onPage=${(/** @type {any} */ said) => this.setState({ page: said })}
            onSelect=${(/** @type {any} */ row) => change({ key: row.key }, { replace: true })} />
          ${query.key ? html`<div class="item" ref=${this.pane} tabindex="0" role="region" aria-label="Item">
            <${Loaded} path=${address(`/api${path}/item`, { key: query.key })} version=${version}>${(/** @type {any} */ item) => this.itemView(item, data.run)}<//></div>` : null}
        </div>`;
    }}<//>`;
  }
  /** @param {import("../types").Row} row @param {any[]} evaluators */
  row(row, evaluators) {
    const keys = /** @type {string[]} */ (evaluators.map((each) => each.key));
    const { filter = "", sort = "" } = this.props.query;
    const asked = keys.filter((key) => filter.includes(key) || sort.endsWith(key)); // they come first: the place is narrow
    const judged = keys.filter((key) => row.results[key] && row.results[key].status !== "skipped");
    return html`<span class="cell id"><${Status} short status=${row.status} /> <span class="text-id">${row.id}</span>${part(row)}</span>
      <span class="cell scores">${[...new Set([...asked, ...(judged.length ? judged : keys)])].slice(0, 4).map((key) => {
        const result = row.results[key];
        if (!result) return null;
        const text = result.score === null || result.score === undefined ? result.status : number(result.score, 2);
        const spec = evaluators.find((each) => each.key === key);
        return html`<span class="score" title="${key} ${result.comment || result.error || ""}"><span class="muted">${key}</span> <b class=${tone(spec, result.score)}>${text}</b></span> `;
      })}</span>
      <span class="cell line" dir="auto"><span class="muted">${row.input.slice(0, 120)}</span> → ${row.error || row.output.slice(0, 160)}</span>`;
  }
  /** @param {import("../types").Item} item @param {any} run */
  itemView(item, run) {
    this.item = item;
    return html`<h2>${item.example.id}${part(item)}
        <button type="button" class="close" onClick=${() => change({ key: null, open: null })}>Close</button></h2>
      <section><h3>Input</h3><${Field} field=${item.example.input} /></section>
      <div class="beside">
        <section><h3>Expected</h3><${Field} field=${item.example.expected} pieces=${side(item.diff, "removed")} /></section>
        <section><h3>Output</h3><${Output} item=${item} pieces=${side(item.diff, "added")} /></section>
      </div>
      <section><h3>Results</h3><${Results} results=${item.results} at=${item.key} /></section>
      <${Steps} run=${run.id} item=${item} />
      <${Calls} calls=${item.calls} total=${item.calls_total} title="Model and tool calls" />
      <${Tries} item=${item} />
      <details><summary>Metadata</summary><${Field} field=${item.example.metadata} />${item.output.metadata ? html`<${Field} field=${item.output.metadata} />` : null}</details>
      <details><summary>Raw record</summary><${Field} field=${item.raw} /></details>`;
  }
}
