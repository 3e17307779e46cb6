// Cost, time and quality of runs.
import { Component, Loaded, address, dollars, html, listed, runPath, seconds, shell, whole } from "../lib.js";
import { Choice, Counts, Estimate, Plot } from "../parts.js";

export class PerformancePage extends Component {
  componentDidMount() {
    document.title = "Cost and time · karat";
    this.props.keys({ command: () => `karat report ${this.props.runs.map(shell).join(" ")}` });
  }
  render() {
    const { runs, query, version } = this.props;
    const path = address("/api/p", { runs: listed(runs), evaluator: query.evaluator });
    return html`<${Loaded} path=${path} version=${version}>${(/** @type {any} */ data) => html`<h1>Cost, time and quality</h1>
      ${data.evaluators.length ? html`<div class="facts"><${Choice} name="evaluator" label="Metric" value=${data.evaluator} options=${data.evaluators} /></div>` : null}
      <${Plot} plot=${data.plot} link=${(/** @type {any} */ about) => (about.run ? runPath(about.run) : null)} />
      <div class="scroll" tabindex="0" role="region" aria-label="Cost and time"><table>
        <thead><tr>${["run", "items", "score", "cost", "cost per item", "tokens in", "tokens out", "seconds, median", "p95", "waiting, median"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${data.runs.map((/** @type {any} */ each) => {
          const estimate = each.estimates.find((/** @type {any} */ e) => e.evaluator === data.evaluator && !e.group);
          const path = runPath(each.run.id);
          /** Without a model call nothing was paid. @param {number | null} value */
          const cost = (value) => (value === null && !each.tokens.input && !each.tokens.output ? "—" : dollars(value));
          /** @param {number} count */
          const tokens = (count) => (count ? whole(count) : "—");
          /** @param {string} text @param {string} sort @param {string} [filter] */
          const opens = (text, sort, filter) => (text === "—" || text === "unknown" ? text : html`<a href=${address(path, { sort, filter })}>${text}</a>`);
          const slow = each.seconds.p95 === undefined ? undefined : `seconds>=${each.seconds.p95}`;
          return html`<tr><td class="name"><a data-row=${each.run.id} href=${runPath(each.run.id)}>${each.run.label}</a></td>
            <td><${Counts} run=${each.run} /></td>
            <td>${estimate ? html`<${Estimate} estimate=${estimate} run=${each.run.id} rows=${each.run.counts.total} />` : "—"}</td>
            <td class="n">${opens(cost(each.cost), "-cost")}</td><td class="n">${opens(cost(each.cost_per_item), "-cost")}</td>
            <td class="n">${opens(tokens(each.tokens.input), "-tokens")}</td><td class="n">${opens(tokens(each.tokens.output), "-tokens")}</td>
            <td class="n">${opens(seconds(each.seconds.median), "-seconds")}</td><td class="n">${opens(seconds(each.seconds.p95), "seconds", slow)}</td>
            <td class="n">${opens(seconds(each.queue_seconds.median), "-seconds")}</td></tr>`;
        })}</tbody>
      </table></div>`}<//>`;
  }
}
