// Two runs side by side.
import {
  Component, Loaded, address, ask, change, createRef, go, here, html, interval, number, pairPath, plural, probability, runPath, shell, whole,
} from "../lib.js";
import { Choice, Field, FilterBox, Output, Plot, Results, Rows, Status, Steps, part, side } from "../parts.js";
import { siblings } from "./run.js";

const CHANGES = ["better", "worse", "same", "missing", "not applicable"];
/** Metrics whose differences are shown before the rows; more are folded. */
const FEW = 6;
/** The rows that both runs have a score of. */
const PAIRED = "changed:better or changed:worse or changed:same";
/** @param {string} name */
const changed = (name) => `changed:${name.includes(" ") ? `"${name}"` : name}`;

export class ComparePage extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {Rows | null} */
    this.list = null;
    this.pane = createRef();
    /** @type {{page: import("../types").Page | null}} */
    this.state = { page: null };
    /** @type {any} */
    this.data = null;
    /** @type {any} */
    this.item = null;
  }
  componentDidMount() {
    this.props.keys({
      move: (/** @type {number} */ by) => this.list?.move(by),
      open: () => { if (this.props.query.key) { change({ open: 1 }); this.pane.current?.focus(); } },
      close: () => change(here().query.open ? { open: null } : { key: null }),
      step: (/** @type {number} */ by) => this.step(by),
      compare: () => { const [a, b] = this.ids(); go(address(pairPath(b, a), this.props.query)); },
      regression: () => this.regression(),
      command: () => {
        const [a, b] = this.ids();
        const { query } = this.props;
        const item = this.item?.key === query.key ? this.item : null; // the one of another row may still be shown
        if (query.filter || query.sort || item) { // `karat compare` has no rows to choose from
          const { attempt = 1, unit = "" } = item?.first ?? {};
          const options = {
            where: query.filter, sort: query.sort, metric: query.evaluator,
            example: item?.example.id, attempt: attempt > 1 ? String(attempt) : "", unit,
          };
          const given = Object.entries(options).filter(([, value]) => value).map(([name, value]) => ` --${name}=${shell(value)}`);
          return `karat view ${shell(a)} ${shell(b)}${given.join("")}`;
        }
        // Of one metric alone the probabilities are others: they are adjusted for the number of metrics.
        const alone = this.data?.alone && this.data.evaluators.length > 1;
        const metric = alone ? ` --metric ${shell(this.data.evaluator)}` : "";
        return `karat compare ${shell(a)} ${shell(b)}${metric}`;
      },
    });
  }
  /** @returns {[string, string]} */
  ids() {
    const [a, b] = this.data?.runs ?? [];
    return [a?.id ?? this.props.runs[0], b?.id ?? this.props.runs[1]];
  }
  /** @param {number} by */
  async step(by) {
    const [a, b] = this.ids();
    const all = (await siblings(b)).filter((/** @type {string} */ each) => each !== a);
    const other = all[all.indexOf(b) + by];
    if (other) go(address(pairPath(a, other), this.props.query));
  }
  async regression() {
    const { query } = this.props;
    if (query.filter === "changed:worse" && this.list?.settled()) { this.list.move(1); return; }
    const [a, b] = this.ids();
    // The rows around the one that is open; where it is no regression, those that come after it.
    const { rows } = await ask(address(`/api${pairPath(a, b)}/rows`, { evaluator: query.evaluator, filter: "changed:worse", around: query.key, count: 3 }));
    const row = rows[rows.findIndex((/** @type {any} */ each) => each.key === query.key) + 1];
    if (row) change({ filter: "changed:worse", key: row.key });
  }
  render() {
    const { runs: [first, second], query, version } = this.props;
    if (!first || !second) return html`<p class="problem" role="alert">A comparison is of two runs: /c/FIRST..SECOND.</p>`;
    const path = pairPath(first, second);
    return html`<${Loaded} path=${address(`/api${path}`, { evaluator: query.evaluator })} version=${version}>${(/** @type {any} */ data) => {
      this.data = data;
      const [a, b] = data.runs;
      document.title = `${a.label} and ${b.label} · karat`;
      const page = this.state.page;
      const opened = { evaluator: query.evaluator, filter: query.filter, sort: query.sort };
      return html`<div class="head"><h1>${b.label} <span class="muted">against</span> ${a.label}</h1>
          <p class="conclusion">${data.conclusion}</p>
          ${data.notes.map((/** @type {string} */ note) => html`<p class="muted">${note}</p>`)}
          <div class="facts">
            ${data.evaluators.length ? html`<${Choice} name="evaluator" label="Metric" value=${data.evaluator} options=${data.evaluators} />` : null}
            <span class="chips" role="group" aria-label="Changes">${CHANGES.filter((name) => name !== "not applicable" || data.counts[name]).map((name) => html`<a class="chip" aria-current=${query.filter === changed(name) ? "true" : undefined}
              href=${address(path, { evaluator: query.evaluator, filter: query.filter === changed(name) ? "" : changed(name) })}><${Status} status=${name} /> ${whole(data.counts[name] ?? 0)}</a> `)}</span>
            ${data.difference ? html`<span>difference <a href=${address(path, { evaluator: query.evaluator, filter: PAIRED, sort: "difference" })}><strong>${data.difference.value > 0 ? "+" : ""}${number(data.difference.value)}</strong></a> <span class="muted">${interval(data.difference)}${data.adjusted_p_value === null ? "" : `, p ${probability(data.adjusted_p_value)}${data.metrics > 1 ? ` adjusted for ${data.metrics} metrics` : ""}`}</span></span>` : null}
          </div>
          ${data.evaluators.length < 2 ? html`<${Plot} plot=${data.plot} link=${() => address(path, { filter: PAIRED, sort: "difference" })} />` : html`<${Loaded} path="/api${path}/differences" version=${version}>${(/** @type {any} */ all) => differences(all, data.plot, path)}<//>`}
          ${data.differs.length ? html`<details><summary>What differs: ${data.differs.map((/** @type {any} */ each) => each.name).join(", ").slice(0, 200)}</summary>
            <div class="scroll" tabindex="0" role="region" aria-label="What differs"><table><thead><tr><th scope="col">setting</th><th scope="col">${a.label}</th><th scope="col">${b.label}</th></tr></thead>
            <tbody>${data.differs.map((/** @type {any} */ each) => html`<tr><td>${each.name}</td><td>${each.first}</td><td>${each.second}</td></tr>`)}</tbody></table></div></details>` : null}
          <${FilterBox} value=${query.filter ?? ""} fields=${["changed", "difference", "first", "second", ...data.fields]} />
          <p class="facts" role="status">${page ? `${whole(page.matching)} of ${plural(page.total, "row")}` : ""}
            <label class="choice"> Sort <select value=${query.sort ?? ""} onChange=${(/** @type {any} */ e) => change({ sort: e.target.value, key: null })}>
              ${[["", "dataset order"], ["difference", "difference, lowest first"], ["-difference", "difference, highest first"], ["first", "first score, lowest first"], ["second", "second score, lowest first"]].map(([value, name]) => html`<option value=${value} selected=${value === (query.sort ?? "")}>${name}</option>`)}
            </select></label></p></div>
        <div class="split ${query.key ? "with-item" : ""} ${query.open ? "opened" : ""}">
          <${Rows} own=${(/** @type {Rows} */ list) => { this.list = list; }} path="/api${path}/rows" query=${opened} selected=${query.key} address=${opened} version=${version} label="Rows"
            draw=${row} onPage=${(/** @type {any} */ said) => this.setState({ page: said })}
            onSelect=${(/** @type {any} */ each) => change({ key: each.key }, { replace: true })} />
          ${query.key ? html`<div class="item" ref=${this.pane} tabindex="0" role="region" aria-label="Item">
            <${Loaded} path=${address(`/api${path}/item`, { key: query.key, evaluator: query.evaluator })} version=${version}>${(/** @type {any} */ item) => { this.item = item; return pair(item, a, b); }}<//></div>` : null}
        </div>`;
    }}<//>`;
  }
}

/** The differences by all metrics; many are folded. @param {any} all @param {any} one @param {string} path */
function differences(all, one, path) {
  if (!all.plot) return html`<${Plot} plot=${one} link=${() => address(path, { filter: PAIRED, sort: "difference" })} />`;
  const open = (/** @type {any} */ about) => address(path, { evaluator: about.evaluator, filter: PAIRED, sort: "difference" });
  const plot = html`<${Plot} plot=${all.plot} link=${open} />${all.left_out ? html`<p class="muted">${plural(all.left_out, "further metric")} without scores of the same items in both runs.</p>` : null}
    ${all.beyond ? html`<p class="muted">${plural(all.beyond, "further metric")} not shown, because there are so many rows: choose one above.</p>` : null}`;
  const shown = all.metrics - all.left_out - all.beyond;
  return shown <= FEW ? plot : html`<details><summary>Paired differences of ${plural(shown, "metric")}</summary>${plot}</details>`;
}

/** @param {import("../types").Row} each */
function row(each) {
  const score = (/** @type {import("../types").Side | undefined} */ side) =>
    side?.score === null || side?.score === undefined ? side?.status ?? "—" : number(side.score, 2);
  const text = each.second?.error || each.second?.output || "";
  return html`<span class="cell id"><${Status} short status=${each.changed ?? ""} /> <span class="text-id">${each.id}</span>${part(each)}</span>
    <span class="cell scores">${each.changed === "not applicable" ? each.changed : `${score(each.first)} → ${score(each.second)}`}</span>
    <span class="cell line" dir="auto"><span class="muted">${each.input.slice(0, 120)}</span> → ${text.slice(0, 160)}</span>`;
}

/** @param {any} item @param {any} a @param {any} b */
function pair(item, a, b) {
  return html`<h2>${item.example.id}${part(item.first)} <${Status} status=${item.changed ?? ""} />
      <button type="button" class="close" onClick=${() => change({ key: null, open: null })}>Close</button></h2>
    <section><h3>Input</h3><${Field} field=${item.example.input} /></section>
    <section><h3>Expected</h3><${Field} field=${item.example.expected} /></section>
    <div class="beside">${[[item.first, a, "removed"], [item.second, b, "added"]].map(([each, run, mine]) => html`<section>
      <h3><a href=${address(runPath(run.id), { key: item.key, open: 1 })}>${run.label}</a></h3>
      ${each ? html`<${Output} item=${each} pieces=${side(item.diff, mine)} />` : html`<p class="muted">The run has no such item.</p>`}
    </section>`)}</div>
    ${item.calls ? html`<section><h3>Tool calls</h3><p>${item.calls.text}</p><div class="scroll" tabindex="0" role="region" aria-label="Tool calls"><table>
      <thead><tr><th scope="col">#</th><th scope="col">${a.label}</th><th scope="col">${b.label}</th></tr></thead>
      <tbody>${item.calls.rows.map((/** @type {any} */ each, /** @type {number} */ place) => html`<tr class=${place === item.calls.first_divergence ? "divergence" : ""}>
        <td>${place + 1}${place === item.calls.first_divergence ? html` <span class="bad">◀ first divergence</span>` : null}</td>
        <td>${each.same ? each.first : html`<del>${each.first}</del>`}</td><td>${each.same ? each.second : html`<ins>${each.second}</ins>`}</td></tr>`)}</tbody></table></div></section>` : null}
    <div class="beside">${[[item.first, a], [item.second, b]].map(([each, run]) => html`<section><h3>Results of ${run.label}</h3>
      ${each ? html`<${Results} results=${each.results} at=${each.key} />` : null}</section>`)}</div>
    ${[[item.first, a], [item.second, b]].map(([each, run]) => (each?.steps.length ? html`<details><summary>Trajectory of ${run.label}: ${plural(each.steps_total, "step")}</summary><${Steps} run=${run.id} item=${each} /></details>` : null))}`;
}
