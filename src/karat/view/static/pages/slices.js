// Scores by a field of the examples' metadata.
import { Component, Loaded, address, html, listed, number, pairPath, runPath, shell, whole } from "../lib.js";
import { Choice, Estimate, Plot } from "../parts.js";

/** The rows that both runs have a score of. */
const PAIRED = "changed:better or changed:worse or changed:same";

export class SlicesPage extends Component {
  /** @type {string | null} */
  by = null;
  componentDidMount() {
    this.props.keys({
      command: () => {
        const { runs, query } = this.props;
        const by = query.by ?? this.by;
        const metric = query.evaluator ? ` --metric=${shell(query.evaluator)}` : "";
        return `karat ${by ? "view" : "report"} ${runs.map(shell).join(" ")}${by ? ` --by=${shell(by)}${metric}` : ""}`;
      },
    });
  }
  render() {
    const { runs, query, version } = this.props;
    const path = address("/api/s", { runs: listed(runs), by: query.by, evaluator: query.evaluator });
    return html`<${Loaded} path=${path} version=${version}>${(/** @type {any} */ data) => {
      this.by = data.by;
      document.title = `Slices by ${data.by} · karat`;
      const [a, b] = data.runs;
      const two = data.runs.length === 2;
      if (!data.by) return html`<h1>Slices</h1><p>The examples have no metadata to slice by.</p>`;
      if (!data.evaluator) return html`<h1>Slices</h1><p>No evaluator has judged all of these runs.</p>`;
      return html`<h1>Slices by ${data.by}</h1>
        <div class="facts"><${Choice} name="by" label="By" value=${data.by} options=${data.fields} />
          <${Choice} name="evaluator" label="Metric" value=${data.evaluator} options=${data.evaluators} /></div>
        ${two && data.difference !== null ? html`<p>${b.label} minus ${a.label}: <a href=${address(pairPath(a.id, b.id), { evaluator: data.evaluator, filter: PAIRED })}><strong>${signed(data.difference)}</strong></a> over the items that both have; the contributions of the slices add up to it.</p>` : null}
        <${Plot} plot=${data.plot} link=${(/** @type {any} */ about) => (about.run ? address(runPath(about.run), { filter: about.filter }) : null)} />
        <div class="scroll" tabindex="0" role="region" aria-label="Slices"><table>
          <thead><tr><th scope="col">${data.by}</th><th scope="col">items</th>${data.runs.map((/** @type {any} */ run) => html`<th scope="col">${run.label}</th>`)}
            ${two ? html`<th scope="col">difference, paired</th><th scope="col">contribution</th>` : null}</tr></thead>
          <tbody>${data.groups.map((/** @type {any} */ group) => html`<tr>
            <td class="name"><a data-row=${group.value} href=${address(`/r/${encodeURIComponent(data.runs[data.runs.length - 1].id)}`, { filter: group.filter })}>${group.value}</a></td>
            <td class="n"><a href=${address(runPath(a.id), { filter: group.filter })}>${whole(group.of)}</a> <span class="muted">${number(100 * group.share, 1)} %</span></td>
            ${group.runs.map((/** @type {any} */ each) => html`<td><${Estimate} estimate=${{ ...each, evaluator: data.evaluator }} run=${each.run} filter=${group.filter} rows=${group.of} /></td>`)}
            ${two ? html`<td class="n">${opens(group, group.difference, a, b, data.evaluator)}</td><td class="n">${opens(group, group.contribution, a, b, data.evaluator)}</td>` : null}</tr>`)}</tbody>
        </table></div>`;
    }}<//>`;
  }
}

/** A number that opens the compared rows of a slice. @param {any} group @param {number | null} value @param {any} a @param {any} b @param {string} evaluator */
const opens = (group, value, a, b, evaluator) =>
  value === null ? "—" : html`<a href=${address(pairPath(a.id, b.id), { evaluator, filter: group.filter })}>${signed(value)}</a>`;

const signed = (/** @type {number} */ value) => `${value > 0 ? "+" : ""}${number(value)}`;

