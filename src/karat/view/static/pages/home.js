// The runs by dataset.
import { Component, Loaded, address, age, change, dollars, go, here, html, pairPath, plural, runPath, runsPath, whole } from "../lib.js";
import { Counts, Estimate, Plot, Status } from "../parts.js";

/** The first number of each evaluator. @param {import("../types").Run} run */
export function headlines(run) {
  const seen = new Set();
  return run.estimates.filter((each) => !each.group && each.evaluator && !seen.has(each.evaluator) && seen.add(each.evaluator));
}

export class HomePage extends Component {
  componentDidMount() {
    document.title = "Runs · karat";
    this.props.keys({
      select: () => this.toggle(document.activeElement?.getAttribute("data-row") ?? ""),
      compare: () => this.compare(),
      command: () => "karat ls",
    });
  }
  selected() {
    return (this.props.query.select ?? "").split(",").filter(Boolean);
  }
  /** @param {string} id */
  toggle(id) {
    if (!id) return;
    const now = (here().query.select ?? "").split(",").filter(Boolean);
    change({ select: (now.includes(id) ? now.filter((each) => each !== id) : [...now, id]).join(",") }, { replace: true });
  }
  compare() {
    const [first, second] = this.selected();
    if (first && second) go(pairPath(first, second));
  }
  render() {
    const chosen = this.selected();
    return html`<${Loaded} path="/api/runs" version=${this.props.version}>${(/** @type {any} */ data) => html`
      <h1>Runs</h1>
      <p class="muted"><code>${data.store}</code>${data.more ? ` · ${plural(data.more, "older run")} not shown` : ""}</p>
      <div class="actions" role="group" aria-label="With the selected runs">
        <span>${plural(chosen.length, "run")} selected</span>
        <button type="button" disabled=${chosen.length !== 2} onClick=${() => this.compare()}>Compare</button>
        <button type="button" disabled=${!chosen.length} onClick=${() => go(runsPath("s", chosen))}>Slices</button>
        <button type="button" disabled=${!chosen.length} onClick=${() => go(runsPath("p", chosen))}>Cost and time</button>
        ${chosen.length ? html`<button type="button" onClick=${() => change({ select: null })}>Clear</button>` : null}
      </div>
      ${data.datasets.length ? null : html`<p>There are no runs yet: <code>karat run</code> creates one.</p>`}
      ${data.datasets.map((/** @type {any} */ each) => this.dataset(each, chosen))}`}<//>`;
  }
  /** @param {any} data @param {string[]} chosen */
  dataset(data, chosen) {
    return html`<section class="dataset"><h2>${data.label} <span class="muted">${plural(data.examples, "example")}</span></h2>
      <${Plot} plot=${data.forest} link=${(/** @type {any} */ about) => (about.run ? address(runPath(about.run), { sort: about.evaluator }) : null)} />
      <div class="scroll" tabindex="0" role="region" aria-label="Runs on ${data.label}"><table>
        <thead><tr><th scope="col"><span class="hidden">selected</span></th><th scope="col">run</th><th scope="col">status</th><th scope="col">items</th>
          <th scope="col">scores</th><th scope="col">cost</th><th scope="col">settings that differ</th><th scope="col">made</th></tr></thead>
        <tbody>${data.runs.map((/** @type {import("../types").Run} */ run) => html`<tr class=${chosen.includes(run.id) ? "chosen" : ""}>
          <td><input type="checkbox" aria-label="select ${run.label}" checked=${chosen.includes(run.id)} onChange=${() => this.toggle(run.id)} /></td>
          <td class="name"><a data-row=${run.id} href=${runPath(run.id)}><strong>${run.label}</strong></a><br /><code class="muted">${run.id}</code>
            ${run.labels.map((label) => html` <span class="tag">${label}</span>`)}</td>
          <td><${Status} status=${run.status} /></td>
          <td class="items"><${Counts} run=${run} /> <a class="muted" href=${runPath(run.id)}>of ${whole(run.counts.total)}</a>
            ${run.counts.failed || run.estimates.some((each) => each.n < each.of) ? html`<br /><a href="/f/${encodeURIComponent(run.id)}">failures by kind</a>` : null}</td>
          <td class="scores">${headlines(run).slice(0, 4).map((each) => html`<div><span class="muted">${each.label}</span> <${Estimate} estimate=${each} run=${run.id} rows=${run.counts.total} /></div>`)}
            ${headlines(run).length > 4 ? html`<div><a href=${runPath(run.id)}>${plural(headlines(run).length - 4, "more metric")}</a></div>` : null}
            ${run.estimates.length ? null : html`<div class="muted">${run.evaluators.length ? html`<a href=${runPath(run.id)}>${plural(run.evaluators.length, "metric")}</a>, not aggregated` : run.live ? "" : "not evaluated"}</div>`}</td>
          <td class="n">${run.cost === null ? (run.tokens.input ? "unknown" : "—") : html`<a href=${address(runPath(run.id), { sort: "-cost" })}>${dollars(run.cost)}</a>`}</td>
          <td class="settings">${Object.entries(run.settings).slice(0, 6).map(([name, value]) => html`<div><span class="muted">${name}</span> ${value}</div>`)}</td>
          <td class="n">${age(run.created)}</td></tr>`)}</tbody>
      </table></div></section>`;
  }
}
